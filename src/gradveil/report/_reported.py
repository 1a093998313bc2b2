"""What papers print, read from the experiments: `expected.json`, and `result.json` beside it where one was run."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradveil._tradeoff_record import read_tradeoff
from gradveil.errors import RecordError
from gradveil.record import read

_OF_ATTACKS = ("record.json", "decoding.json", "tradeoff.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reported:
    """One cell of a paper's table.

    Args:
        paper: short name.
        table: such as Table 1(a).
        row: of the table.
        column: of the table.
        value: as printed; None where the paper has no such cell.
        unit: of both values.
        ours: our number for the same cell, None if it was not run.
        interval: of ours; empty if there is none.
        record: behind ours, relative to the folder that was searched; empty if there is none.
        records: how many stand behind it.
        attacked: whether one of them is that of an attack, and not of a training or a search alone.
        informed: whether one of them is that of an attack that knows the defense, or has no defense; None of a single
            audit, whose own card tells.
    """

    paper: str
    table: str
    row: str
    column: str
    value: float | None
    unit: str
    ours: float | None
    interval: tuple[float, ...]
    record: str
    records: int
    attacked: bool
    informed: bool | None

    @property
    def difference(self) -> float | None:
        """Ours minus the paper's; None where one is missing."""
        return None if self.value is None or self.ours is None else self.ours - self.value


def read_reported(expected: Path, folder: Path) -> list[Reported]:
    """Read the cells of an experiment.

    Args:
        expected: its `expected.json`.
        folder: that places of records are relative to.
    """
    content, result = _json(expected), expected.with_name("result.json")
    values = _json(result).get("values", []) if result.exists() else []
    try:
        ours = {(value["row"], value["column"]): value for value in values}
        return [
            _reported(content, row, ours.get((row["row"], row["column"])), expected.parent, folder)
            for row in content["rows"]
        ]
    except (KeyError, TypeError, AttributeError) as error:
        raise RecordError(f"{expected} or its result holds no rows and columns ({error}); restore it") from error


def _reported(
    content: dict[str, Any], row: dict[str, Any], ours: dict[str, Any] | None, experiment: Path, folder: Path
) -> Reported:
    records = [] if ours is None else list(ours.get("records", []))
    places = [str((experiment / name).relative_to(folder)) for name in records]
    return Reported(
        paper=str(content.get("paper", "")),
        table=str(content.get("table", "")),
        row=row["row"],
        column=row["column"],
        value=row.get("value"),
        unit=row.get("unit", ""),
        ours=None if ours is None else ours["value"],
        interval=tuple((ours or {}).get("interval") or ()),
        record=places[0] if len(places) == 1 else "",
        records=len(places),
        attacked=any(Path(name).name in _OF_ATTACKS for name in records),
        informed=_informed([experiment / name for name in records], row["row"]),
    )


def _informed(files: Sequence[Path], row: str) -> bool | None:
    """Tell whether an attack knows the defense: decoders do, trade-offs and audits say it."""
    if len(files) == 1 and files[0].name == "record.json":
        return None
    return any(_knows(file, row) for file in files if file.name in _OF_ATTACKS and file.exists())


def _knows(file: Path, row: str) -> bool:
    if file.name == "decoding.json":
        return True
    try:
        if file.name == "tradeoff.json":
            found = [one for one in read_tradeoff(file).mechanisms if one.name == row]
            return any(curve.informed for one in found for curve in one.curves)
        made = read(file)
    except RecordError:
        return False  # what cannot be read vouches for nothing
    return not made.defenses or made.threat.adaptive


def _json(file: Path) -> Any:
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RecordError(f"{file} cannot be read as JSON ({error}); restore it from the repository") from error
