"""What a kind of experiment is: how a part of it runs, and how a number is read off its records."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from hashlib import sha256
from pathlib import Path

from gradveil.errors import SpecError
from gradveil.grid import Settings
from gradveil.reproducing.measuring import Measurement
from gradveil.reproducing.plans import Part, Wanted


@dataclass(frozen=True, slots=True, kw_only=True)
class Means:
    """What an experiment runs with; nothing here changes what is measured.

    Args:
        settings: device, data folder, progress.
        checkpoints: folder of networks that were trained before, by the name that a part gives; None for none.
        adopted: folders with records of audits that were run before, to be taken over where they fit.
        say: is told what was taken over.
    """

    settings: Settings = field(default_factory=Settings)
    checkpoints: Path | None = None
    adopted: tuple[Path, ...] = ()
    say: Callable[[str], None] = lambda _: None

    def check(self) -> None:
        """Refuse folders that are not there, before anything is run in the place of what they should hold."""
        for folder in (*self.adopted, *filter(None, [self.checkpoints])):
            if not folder.is_dir():
                raise SpecError(f"there is no folder {folder} to take runs or networks from; name one that is there")

    def checkpoint(self, part: Part) -> Path | None:
        """Return the network that was trained before for a part, if there is one."""
        if self.checkpoints is None or not part.checkpoint:
            return None
        file = self.checkpoints / f"{part.checkpoint}.safetensors"
        return file if file.exists() else None


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of experiment.

    Args:
        run: runs a part into its folder; what is finished is kept, what was interrupted goes on.
        measure: reads a wanted number off the records in a part's folder; None where there is no record yet.
    """

    run: Callable[[Part, Path, Means], None]
    measure: Callable[[Path, Wanted], Measurement | None]


def matches(fields: Mapping[str, str], wanted: Wanted) -> bool:
    """Tell whether a record is meant; patterns may end in `*`.

    Example:
        >>> wanted = Wanted(row="a", column="b", part="c", take="d", match={"attack": "dlg*"})
        >>> matches({"attack": "dlg:steps=3"}, wanted)
        True
    """
    return all(fnmatchcase(fields.get(name, ""), pattern) for name, pattern in wanted.match.items())


def slug(text: str) -> str:
    """Turn a spec string into the name of a folder that no other one has.

    Example:
        >>> slug("gaussian-noise:std=0.1")[:22]
        'gaussian-noise-std-0.1'
    """
    words = re.sub(r"[^a-zA-Z0-9.]+", "-", text).strip("-")
    return f"{words[:60]}-{sha256(text.encode()).hexdigest()[:8]}"
