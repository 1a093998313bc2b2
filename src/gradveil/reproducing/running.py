"""Running an artefact: its parts one after the other, the numbers off their records, and the paper's beside them."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from gradveil import record
from gradveil.errors import unknown_name
from gradveil.record import Record
from gradveil.reproducing import (
    _audits,
    _client_audits,
    _correlations,
    _decodings,
    _federations,
    _searches,
    _tradeoffs,
    _trainings,
)
from gradveil.reproducing._claiming import claim
from gradveil.reproducing._kinds import Kind, Means
from gradveil.reproducing.artefacts import RESULT, Artefact
from gradveil.reproducing.measuring import Interval, Measurement
from gradveil.reproducing.plans import Plan, Size, Wanted, read_plan
from gradveil.storage import write_atomically

KINDS: Final[Mapping[str, Kind]] = MappingProxyType(
    {
        "audit": Kind(_audits.run, _audits.measure),
        "client-audit": Kind(_client_audits.run, _audits.measure),
        "federation": Kind(_federations.run, _federations.measure),
        "training": Kind(_trainings.run, _trainings.measure),
        "extractor": Kind(_trainings.run_extractor, _trainings.measure),
        "decoding": Kind(_decodings.run, _decodings.measure),
        "search": Kind(_searches.run, _searches.measure),
        "tradeoff": Kind(_tradeoffs.run, _tradeoffs.measure),
        "correlation": Kind(_correlations.run, _correlations.measure),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A cell of a table: the paper's number beside ours.

    Args:
        row: of the table.
        column: of the table.
        paper: as printed; None where the paper has none.
        ours: None where nothing was run.
        interval: of ours, where there is one.
        unit: of both.
    """

    row: str
    column: str
    paper: float | None
    ours: float | None
    interval: Interval | None
    unit: str

    @property
    def difference(self) -> float | None:
        """Ours minus the paper's; None where one is missing."""
        return None if self.paper is None or self.ours is None else self.ours - self.paper


def reproduce(
    artefact: Artefact, size: Size, out: Path, *, means: Means | None = None, parts: Sequence[str] = ()
) -> list[Line]:
    """Run an artefact in one size into a folder, write `result.json` there, and set ours beside the paper's.

    Args:
        artefact: from the catalogue.
        size: smoke, small or paper.
        out: run folder; the same folder resumes.
        means: device, data folder, networks trained before.
        parts: run these alone; numbers of others are taken if they ran before.
    """
    plan, means = read_plan(artefact.folder / "spec.toml", size, out=out), _sharing(means or Means(), out)
    means.check()
    known = [part.name for part in plan.parts]
    for name in parts:
        if name not in known:
            raise unknown_name(f"part of {artefact.name}", name, known)
    for part in plan.parts:
        if part.kind not in KINDS:
            raise unknown_name("kind of experiment", part.kind, KINDS)
    claim(out, size)
    for part in (part for part in plan.parts if not parts or part.name in parts):
        KINDS[part.kind].run(part, out / part.name, means)
    result = to_result(artefact, plan, out)
    write_atomically(out / RESULT, json.dumps(result, indent=1, allow_nan=False).encode())
    return compare(artefact, result)


def _sharing(means: Means, out: Path) -> Means:
    """Let all parts keep the networks that they train in one place, so that none is trained twice."""
    return dataclasses.replace(means, settings=dataclasses.replace(means.settings, networks=out / "networks"))


def to_result(artefact: Artefact, plan: Plan, folder: Path) -> dict[str, Any]:
    """Read every wanted number off the records below a folder; those without a record are left out."""
    kinds = {part.name: part.kind for part in plan.parts}
    values = []
    for wanted in plan.wanted:
        found = KINDS[kinds[wanted.part]].measure(folder / wanted.part, wanted)
        if found is not None:
            values.append(_entry(wanted, found.scaled(100.0 if wanted.unit == "%" else 1.0), folder))
    return {"artefact": artefact.name, "size": plan.size, "spec": dict(plan.words), "values": values}


def audits_behind(folder: Path) -> list[tuple[str, Record]]:
    """Read the records of audits behind a result, each once, with the first cell of the table that it is in.

    Args:
        folder: of a run, or of an experiment with a kept result.
    """
    cells: dict[str, str] = {}
    for value in json.loads((folder / RESULT).read_text(encoding="utf-8"))["values"]:
        for name in value["records"]:
            if Path(name).name == "record.json":
                cells.setdefault(name, f"{value['row']}, {value['column']}")
    return [(cell, record.read(folder / name)) for name, cell in cells.items()]


def compare(artefact: Artefact, result: Mapping[str, Any]) -> list[Line]:
    """Set a result beside the numbers of the paper, in the paper's order."""
    ours = {(value["row"], value["column"]): value for value in result["values"]}
    lines = []
    for expected in artefact.expected():
        value = ours.get((expected.row, expected.column))
        lines.append(
            Line(
                row=expected.row,
                column=expected.column,
                paper=expected.value,
                ours=None if value is None else value["value"],
                interval=None if value is None or value["interval"] is None else (*value["interval"],),
                unit=expected.unit,
            )
        )
    return lines


def _entry(wanted: Wanted, found: Measurement, folder: Path) -> dict[str, Any]:
    values = dataclasses.asdict(found)
    names = [str(file.relative_to(folder)) for file in values.pop("records")]
    interval = None if found.interval is None else [round(bound, 6) for bound in found.interval]
    values |= {"value": round(found.value, 6), "interval": interval, "records": names}
    return {"row": wanted.row, "column": wanted.column, "unit": wanted.unit, **values}
