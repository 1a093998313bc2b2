"""Arrays from npz files, never with pickles."""

from pathlib import Path

import numpy as np
import numpy.typing as npt

from gradveil.data._reading import reading
from gradveil.errors import DataError


def read_npz(path: Path, names: tuple[str, ...]) -> dict[str, npt.NDArray[np.generic]]:
    """Read the named arrays of an npz file.

    Args:
        path: of the file.
        names: of the arrays, all of which must be there.
    """
    # Opened here, because numpy leaves a damaged file open.
    with reading(path, "an npz file"), path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
        missing = [name for name in names if name not in archive.files]
        if missing:
            raise DataError(f"{path} has no array {', '.join(missing)}; it holds {', '.join(archive.files) or 'none'}")
        return {name: archive[name] for name in names}
