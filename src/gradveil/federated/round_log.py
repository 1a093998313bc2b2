"""Numbers of rounds for other programs: a CSV file that grows, and TensorBoard where it is installed."""

import csv
import importlib.util
import io
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from gradveil.storage import write_atomically


def append_row(path: Path, row: Mapping[str, object]) -> None:
    """Add a row to a CSV file, whose columns are those of its first row; a crash leaves it whole."""
    earlier = path.read_text(encoding="utf-8") if path.exists() else ""
    columns: Sequence[str] = next(csv.reader(io.StringIO(earlier)), []) or list(row)
    file = io.StringIO()
    writer = csv.DictWriter(file, columns, lineterminator="\n", extrasaction="ignore")
    if not earlier:
        writer.writeheader()
    writer.writerow({name: f"{value:.6g}" if isinstance(value, float) else value for name, value in row.items()})
    write_atomically(path, (earlier + file.getvalue()).encode())


def write_tensorboard(folder: Path, rounds: Iterable[tuple[int, Mapping[str, float | None]]]) -> bool:
    """Write numbers by round for TensorBoard, and say whether it is installed.

    Args:
        folder: for event files.
        rounds: the number of each and what was measured; None is left out.
    """
    if importlib.util.find_spec("tensorboard") is None:
        return False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(folder)) as writer:
        for number, values in rounds:
            for name, value in values.items():
                if value is not None:
                    writer.add_scalar(name, value, number)
    return True
