"""Finding, listing, reading and fetching data sets by name."""

import os
from pathlib import Path
from typing import NamedTuple

from gradveil.data._base import Dataset, sources
from gradveil.data._download import Progress, fetch, no_progress
from gradveil.errors import DataError


class Availability(NamedTuple):
    """Whether a data set can be loaded now, and if not, what to do."""

    name: str
    present: bool
    explanation: str


def data_root(root: Path | str | None = None) -> Path:
    """Return the data folder: the argument, else GRADVEIL_DATA, else `~/.cache/gradveil/data`.

    Example:
        >>> str(data_root("my/data"))
        'my/data'
    """
    if root is not None:
        return Path(root).expanduser()
    return Path(os.environ.get("GRADVEIL_DATA") or "~/.cache/gradveil/data").expanduser()


def load(spec: str, root: Path | str | None = None) -> Dataset:
    """Read a data set.

    Args:
        spec: a name such as `cifar100`, or `folder:PATH,size=32` for your own images.
        root: the data folder; see `data_root`.

    Example:
        >>> digits = load("digits")
        >>> digits.input_shape, len(digits.train), len(digits.test)
        ((1, 8, 8), 1438, 359)
    """
    return sources.build(spec).load(data_root(root))


def available(root: Path | str | None = None) -> list[Availability]:
    """List every data set, whether it can be loaded now, and how to get it.

    Example:
        >>> [item.name for item in available(Path("nowhere")) if item.present]
        ['digits', 'folder']
    """
    folder = data_root(root)
    found = [(name, sources.get(name)) for name in sources.names()]
    return [Availability(name, source.present(folder), source.explain()) for name, source in found]


def explain(name: str) -> str:
    """Say what a data set is and how to get its files, by command or by hand.

    Example:
        >>> explain("cifar10").splitlines()[0]
        'CIFAR-10: 50,000 / 10,000 photographs, colour, 32x32 pixels, 10 classes.'
    """
    return sources.get(name).explain()


def download(
    name: str, root: Path | str | None = None, *, progress: Progress = no_progress, base_url: str | None = None
) -> tuple[Path, ...]:
    """Fetch the published files that are not in the data folder yet.

    Args:
        name: of the data set.
        root: the data folder; see `data_root`.
        progress: called with bytes done and bytes in all, over all files; 0 in all means that nobody knows.
        base_url: a mirror that holds the files under their own names; None takes the published addresses.

    Returns:
        What was fetched; empty if everything was there.

    Example:
        >>> download("digits")
        ()
    """
    source, folder = sources.get(name), data_root(root)
    missing = [file for file in source.files if not file.present(folder)]
    if not all(file.url for file in missing):
        raise DataError(f"{name} cannot be downloaded by a program; `gradveil data explain {name}` says how to get it")

    total, before = sum(file.size for file in missing), 0
    fetched: tuple[Path, ...] = ()
    for file in missing:
        fetched += fetch(file, folder, progress=_onward(progress, before, total), base_url=base_url)
        before += file.size
    return fetched


def _onward(progress: Progress, before: int, total: int) -> Progress:
    """Count on from the files fetched before."""
    return lambda done, size: progress(before + done, total or size)
