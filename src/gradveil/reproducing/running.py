"""Running an artefact: its parts one after the other, the numbers off their records, and the paper's beside them."""

import dataclasses
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from gradveil import record
from gradveil.errors import SpecError, unknown_name
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
from gradveil.reproducing._kinds import Kind, Means
from gradveil.reproducing.artefacts import RESULT, Artefact
from gradveil.reproducing.measuring import Interval, Measurement
from gradveil.reproducing.plans import Plan, Size, Wanted, read_plan
from gradveil.storage import write_atomically

_SIZE_FILE = "size"
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
    _claim(out, size)
    for part in (part for part in plan.parts if not parts or part.name in parts):
        KINDS[part.kind].run(part, out / part.name, means)
    result = to_result(artefact, plan, out)
    write_atomically(out / RESULT, json.dumps(result, indent=1, allow_nan=False).encode())
    return compare(artefact, result)


def _claim(out: Path, size: Size) -> None:
    """Make a folder one of runs in this size, which tables may share, or refuse if it is one of another size."""
    _refuse_other(out, size)
    write_atomically(out / _SIZE_FILE, size.encode())


def _refuse_other(out: Path, size: Size) -> None:
    file = out / _SIZE_FILE
    held = file.read_text(encoding="utf-8").strip() if file.exists() else size
    if held != size:
        raise SpecError(f"{out} holds a {held} run; name a new folder with --out, or remove it")


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


def keep(artefact: Artefact, size: Size, out: Path) -> Path:
    """Copy the records of a run, without pictures and networks, beside the artefact, and make them its result.

    Args:
        artefact: from the catalogue.
        size: small or paper; a smoke run says nothing about a paper.
        out: run folder.
    """
    if size == "smoke":
        raise SpecError("a smoke run is no result of a paper's table; keep a small or a paper run")
    _refuse_other(out, size)
    place, plan = artefact.folder / "records" / size, read_plan(artefact.folder / "spec.toml", size, out=out)
    if not to_result(artefact, plan, out)["values"]:
        raise SpecError(f"{out} holds no number of {artefact.name} in size {size}; run it first")
    _refuse_fewer(artefact, size, to_result(artefact, plan, out))
    for file in _behind(artefact, plan, out):
        target = place / file.relative_to(out)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, target)
        _without_pictures(target)
    result = to_result(artefact, plan, place)
    for value in result["values"]:
        value["records"] = [f"records/{size}/{name}" for name in value["records"]]
    write_atomically(artefact.folder / RESULT, json.dumps(result, indent=1, allow_nan=False).encode() + b"\n")
    return artefact.folder / RESULT


def _refuse_fewer(artefact: Artefact, size: Size, result: Mapping[str, Any]) -> None:
    """Let no run take the place of a kept one of another size that has numbers which it lacks."""
    kept = artefact.result()
    if kept is None or kept["size"] == size:
        return
    there, here = ({(value["row"], value["column"]) for value in one["values"]} for one in (kept, result))
    if there - here:
        raise SpecError(
            f"of the {len(there)} numbers in the kept {kept['size']} result of {artefact.name}, this {size} run lacks "
            f"{len(there - here)}; run the other parts too, or remove {artefact.folder / RESULT}"
        )


def _behind(artefact: Artefact, plan: Plan, out: Path) -> list[Path]:
    """List the records that numbers were read off, and all of parts that only others rest on, such as federations."""
    read = {out / name for value in to_result(artefact, plan, out)["values"] for name in value["records"]}
    unread = {part.name for part in plan.parts} - {wanted.part for wanted in plan.wanted}
    below = [file for name in unread for file in (out / name).rglob("*.json") if "unfinished" not in file.parts]
    return sorted({*read, *below})


def _without_pictures(file: Path) -> None:
    """Say in the copy of an audit's record that its pictures were left out."""
    content = json.loads(file.read_text(encoding="utf-8"))
    if isinstance(content, dict) and content.get("images"):
        write_atomically(file, json.dumps({**content, "images": ""}, indent=1, allow_nan=False).encode())


def _entry(wanted: Wanted, found: Measurement, folder: Path) -> dict[str, Any]:
    values = dataclasses.asdict(found)
    names = [str(file.relative_to(folder)) for file in values.pop("records")]
    interval = None if found.interval is None else [round(bound, 6) for bound in found.interval]
    values |= {"value": round(found.value, 6), "interval": interval, "records": names}
    return {"row": wanted.row, "column": wanted.column, "unit": wanted.unit, **values}
