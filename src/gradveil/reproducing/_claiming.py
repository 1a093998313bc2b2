"""A run folder belongs to one size, which it remembers: numbers of another size would pass for its own."""

from pathlib import Path

from gradveil.errors import SpecError
from gradveil.reproducing.plans import Size
from gradveil.storage import write_atomically

_FILE = "size"


def claim(out: Path, size: Size) -> None:
    """Make a folder one of runs in this size, which tables may share, or refuse if it is one of another size."""
    refuse_other(out, size)
    write_atomically(out / _FILE, size.encode())


def refuse_other(out: Path, size: Size) -> None:
    """Refuse a folder with runs of another size."""
    file = out / _FILE
    held = file.read_text(encoding="utf-8").strip() if file.exists() else size
    if held != size:
        raise SpecError(f"{out} holds a {held} run; name a new folder with --out, or remove it")
