"""The example app that `gradveil init flower` writes."""

from importlib import resources
from pathlib import Path
from typing import Final

from gradveil.errors import SpecError
from gradveil.storage import write_atomically

_PACKAGE: Final = "federation"
_AT_TOP: Final = ("pyproject.toml", "README.md", "run.py")


def write_example(folder: Path | str) -> list[Path]:
    """Write a Flower app with protection switched on, and return its files.

    Args:
        folder: new or empty.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as place:
        ...     sorted(path.name for path in write_example(place))[:3]
        ['README.md', '__init__.py', 'client_app.py']
    """
    folder = Path(folder)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise SpecError(f"{folder} is not empty; name a new folder for the example app")
    texts = {
        entry.name.removesuffix(".tmpl"): entry.read_text(encoding="utf-8")
        for entry in (resources.files("gradveil") / "flower" / "templates").iterdir()
        if entry.name.endswith(".tmpl")
    }
    texts["__init__.py"] = '"""A protected federation."""\n'
    made = []
    for name, text in sorted(texts.items()):
        path = folder / name if name in _AT_TOP else folder / _PACKAGE / name
        write_atomically(path, text.encode())
        made.append(path)
    return made
