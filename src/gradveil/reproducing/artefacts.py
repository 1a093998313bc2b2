"""All tables and figures of the papers: what is built, what was run, what is not possible and why."""

import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

import gradveil
from gradveil.errors import RecordError, SpecError, unknown_name
from gradveil.reproducing.plans import read_plan

State: TypeAlias = Literal["run", "partly run", "not run", "run as another", "not possible", "no numbers"]
RESULT = "result.json"
_REASONS = {"run_as_another": "run as another", "not_possible": "not possible", "no_numbers": "no numbers"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """A number as a paper prints it; None where the table has a row of ours that the paper has not."""

    row: str
    column: str
    value: float | None
    unit: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Artefact:
    """A table or figure of a paper.

    Args:
        name: such as `ats-table-1a`, which is also its folder.
        paper: short name.
        title: what it shows.
        state: `run` (a result is kept), `partly run` (some of its numbers are not there), `not run` (built, no result
            yet), `run as another` (that one shows its numbers), `not possible` or `no numbers`.
        why: of the last three, and what of the table is left out otherwise.
        folder: of the experiment.
    """

    name: str
    paper: str
    title: str
    state: State
    why: str
    folder: Path

    @property
    def built(self) -> bool:
        """Whether there is a spec to run."""
        return self.state in {"run", "partly run", "not run"}

    def expected(self) -> tuple[Expected, ...]:
        """Read the numbers of the paper."""
        content = _json(self.folder / "expected.json")
        return tuple(Expected(**row) for row in content["rows"])

    def result(self) -> dict[str, Any] | None:
        """Read the result that is kept; None if there is none."""
        file = self.folder / RESULT
        return _json(file) if file.exists() else None

    def missing(self) -> int:
        """Count the numbers that the experiment measures and the kept result does not have."""
        values = (self.result() or {"values": []})["values"]
        return self.measured() - len({(value["row"], value["column"]) for value in values})

    def measured(self) -> int:
        """Count the numbers that the experiment measures; what of the paper's table it leaves out does not count."""
        plan = read_plan(self.folder / "spec.toml", "small", out=Path("runs"))
        return len({(wanted.row, wanted.column) for wanted in plan.wanted})


def find_experiments(given: Path | None = None) -> Path:
    """Return the folder of the experiments: the given one, that of the current folder, or that of the source tree.

    Example:
        >>> find_experiments(Path("missing"))
        Traceback (most recent call last):
        ...
        gradveil.errors.SpecError: there is no catalogue.toml in missing; clone the repository and name its experiments
    """
    places = [given] if given else [Path("experiments"), Path(gradveil.__file__).parents[2] / "experiments"]
    for place in places:
        if (place / "catalogue.toml").exists():
            return place
    raise SpecError(f"there is no catalogue.toml in {places[0]}; clone the repository and name its experiments")


def catalogue(experiments: Path) -> tuple[Artefact, ...]:
    """List every table and figure of the papers, in the order of the catalogue."""
    file = experiments / "catalogue.toml"
    try:
        content = tomllib.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise RecordError(f"{file} cannot be read as TOML ({error}); restore it from the repository") from error
    return tuple(_artefact(experiments, paper, row) for paper, rows in content.items() for row in rows)


def find_artefact(experiments: Path, name: str) -> Artefact:
    """Return one of the catalogue that can be run."""
    known = {artefact.name: artefact for artefact in catalogue(experiments)}
    if name not in known:
        raise unknown_name("table or figure", name, known)
    found = known[name]
    if not found.built:
        raise SpecError(f"{name} is {found.state}: {found.why}")
    return found


def _artefact(experiments: Path, paper: str, row: Mapping[str, str]) -> Artefact:
    folder, reasons = experiments / row["name"], [key for key in _REASONS if key in row]
    if reasons:
        state: Any = _REASONS[reasons[0]]
    else:
        state = "run" if (folder / RESULT).exists() else "not run"
    why = row[reasons[0]] if reasons else row.get("left_out", "")
    found = Artefact(name=row["name"], paper=paper, title=row["title"], state=state, why=why, folder=folder)
    return replace(found, state="partly run") if found.state == "run" and found.missing() else found


def _json(file: Path) -> Any:
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RecordError(f"{file} cannot be read as JSON ({error}); restore it from the repository") from error
