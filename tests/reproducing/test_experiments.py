"""Every experiment of the repository: it runs, says what it wants, and keeps what its records say."""

import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from gradveil.federated.settings import build_federation
from gradveil.grid import Settings
from gradveil.policies import SearchSettings
from gradveil.reproducing import (
    SIZES,
    Means,
    Size,
    _audits,
    catalogue,
    find_artefact,
    find_experiments,
    read_plan,
    reproduce,
    to_result,
)
from gradveil.reproducing.plans import Part
from gradveil.reproducing.running import KINDS
from gradveil.spec import build_defenses

EXPERIMENTS = find_experiments(Path(__file__).parents[2] / "experiments")
ALL = catalogue(EXPERIMENTS)
MEANS = Means(settings=Settings(device=torch.device("cpu"), chunk=64, redact=True))
NAMES = [artefact.name for artefact in ALL if artefact.built]


def values(result: dict[str, Any]) -> dict[tuple[str, str], Any]:
    return {(value["row"], value["column"]): value for value in result["values"]}


@pytest.mark.parametrize("name", NAMES)
def test_every_artefact_runs_at_smoke_and_every_part_gives_a_number(name: str, tmp_path: Path) -> None:
    artefact = find_artefact(EXPERIMENTS, name)
    lines = reproduce(artefact, "smoke", tmp_path, means=MEANS)
    result = json.loads((tmp_path / "result.json").read_text())
    plan = read_plan(artefact.folder / "spec.toml", "smoke", out=tmp_path)
    assert any(line.ours is not None for line in lines)
    for part in plan.parts:
        measured = {wanted.row + wanted.column for wanted in plan.wanted if wanted.part == part.name}
        found = [value for value in result["values"] if value["row"] + value["column"] in measured]
        assert found or part.kind in {"extractor", "federation"}, part.name
    for value in result["values"]:
        assert math.isfinite(value["value"]), value
        assert value["device"].startswith("CPU")
        assert value["date"] > "2026"
        assert value["records"]
        assert all((tmp_path / file).is_file() for file in value["records"])


@pytest.mark.parametrize("name", NAMES)
def test_every_number_we_want_stands_in_the_paper_s_table(name: str) -> None:
    artefact = find_artefact(EXPERIMENTS, name)
    printed = [(expected.row, expected.column) for expected in artefact.expected()]
    assert len(set(printed)) == len(printed)
    for size in SIZES:
        plan = read_plan(artefact.folder / "spec.toml", size, out=Path("run"))
        wanted = [(one.row, one.column) for one in plan.wanted]
        assert len(set(wanted)) == len(wanted)
        assert set(wanted) <= set(printed)
        assert {one.part for one in plan.wanted} <= {part.name for part in plan.parts}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("size", ["small", "paper"])
def test_sizes_that_are_too_large_to_run_here_can_be_built(name: str, size: Size) -> None:
    for part in read_plan(EXPERIMENTS / name / "spec.toml", size, out=Path("run")).parts:
        assert part.kind in KINDS
        if part.kind in {"audit", "client-audit", "correlation"}:
            assert _audits.to_spec(_without_extractor(part), Means()).cells()
        if part.kind == "federation":
            table = part.table("federation")
            assert build_federation(table["settings"], table["local"], rounds=table["rounds"], seed=0).rounds >= 20
            assert all(build_defenses(text) is not None for text in table.get("defenses", []))
        if part.kind in {"search", "correlation"}:
            table = {key: value for key, value in part.table("search").items() if key not in {"dataset", "model"}}
            assert SearchSettings(**{**table, "include": tuple(table.get("include", ()))}).images == 100


def _without_extractor(part: Part) -> Part:
    """Leave out the file that another part makes."""
    text = json.dumps(dict(part.tables)).replace(",extractor=run/extractor/extractor.safetensors", "")
    return replace(part, tables=json.loads(text))


SUMS = {
    "ats-figure-2": (1, 0.697), "ats-figure-5": (2, 8.0), "ats-table-1a": (10, 424.639), "ats-table-1b": (10, 392.55),
    "ats-table-1c": (10, 500.79), "ats-table-1d": (10, 496.32), "ats-table-2": (12, 106.6), "ats-table-3": (16, 607.38),
    "ats-table-4": (16, 775.85), "re-ats-figure-6": (4, 98.31), "re-ats-table-1": (24, 747.04),
    "re-ats-table-2": (10, 69.59), "dcs2-table-1-mnist": (49, 1108.42), "dcs2-table-1-cifar10": (49, 809.45),
    "dcs2-table-3": (16, 723.74), "dcs2-table-4": (24, 601.75), "dcs2-table-6": (18, 519.35),
    "dcs2-table-7": (27, 741.45), "loda-table-1": (63, 1073.485), "loda-table-2": (63, 1174.108),
    "loda-table-3": (56, 1061.849), "loda-table-4": (56, 1150.504), "loda-table-5": (35, 499.991),
    "loda-table-6": (35, 571.839), "loda-table-7": (12, 1091.05), "spn-table-7": (36, 65.92),
    "spn-table-8": (36, 17.88), "spn-table-9": (36, 7.73), "spn-table-11": (92, 62.4854), "spn-figure-7": (0, 0.0),
}  # fmt: skip
"""How many numbers a table prints, and what they add up to in the text of the paper."""


@pytest.mark.parametrize("name", NAMES)
def test_the_numbers_of_a_table_add_up_as_in_the_paper(name: str) -> None:
    printed = [one.value for one in find_artefact(EXPERIMENTS, name).expected() if one.value is not None]
    assert (len(printed), round(sum(printed), 6)) == SUMS[name]


def test_the_catalogue_names_every_folder_once_and_gives_a_reason_for_what_is_not_built() -> None:
    names = [artefact.name for artefact in ALL]
    assert len(set(names)) == len(names)
    assert {artefact.paper for artefact in ALL} == {"ats", "re-ats", "dcs2", "loda", "spn"}
    assert {path.parent.name for path in EXPERIMENTS.glob("*/spec.toml")} == set(NAMES)
    assert all(artefact.why for artefact in ALL if not artefact.built)
    for artefact in ALL:
        others = [name for name in NAMES if re.search(rf"\b{name}\b", artefact.why)]
        assert others or artefact.state != "run as another", artefact.name


PRINTED = {"ats": (4, 6), "re-ats": (2, 14), "dcs2": (11, 7), "loda": (7, 2), "spn": (11, 29)}


@pytest.mark.parametrize("paper", PRINTED)
def test_the_catalogue_names_every_table_and_figure_that_a_paper_prints(paper: str) -> None:
    """Titles name them as `Table 1(a): …` or `Figures 3, 4 and 8 to 14: …`."""
    named: dict[str, set[int]] = {"Table": set(), "Figure": set()}
    for title in (artefact.title.partition(":")[0] for artefact in ALL if artefact.paper == paper):
        for first, last in re.findall(r"(\d+)(?: to (\d+))?", title.partition(", CIFAR")[0]):
            named[title.partition(" ")[0].rstrip("s")].update(range(int(first), int(last or first) + 1))
    tables, figures = PRINTED[paper]
    assert named == {"Table": set(range(1, tables + 1)), "Figure": set(range(1, figures + 1))}


@pytest.mark.parametrize("name", NAMES)
def test_a_readme_says_not_run_exactly_where_no_result_is_kept(name: str) -> None:
    artefact = find_artefact(EXPERIMENTS, name)
    text = (artefact.folder / "README.md").read_text()
    verdict = text.partition("## Verdict\n")[2].strip()
    for heading in ("## Claim", "## What we do", "## Deviations"):
        assert heading in text
    assert verdict.startswith(("**Not run.**", "**Reproduced.**", "**Partly reproduced.**", "**Not reproduced.**"))
    assert verdict.startswith("**Not run.**") == (artefact.result() is None)
    assert artefact.state != "partly run" or "not run" in verdict


@pytest.mark.parametrize("name", NAMES)
def test_a_kept_result_is_what_its_records_say(name: str) -> None:
    artefact = find_artefact(EXPERIMENTS, name)
    kept = artefact.result()
    if kept is None:
        return
    assert kept["size"] != "smoke"
    plan = read_plan(artefact.folder / "spec.toml", kept["size"], out=Path("run"))
    again = values(to_result(artefact, plan, artefact.folder / "records" / kept["size"]))
    for place, value in values(kept).items():
        known = ("value", "interval", "seed", "device", "date")
        assert {key: value[key] for key in known} == {key: again[place][key] for key in known}
        assert value["device"]
        assert value["date"] > "2026"
        for file in value["records"]:
            assert json.loads((artefact.folder / file).read_text(encoding="utf-8"))["spec"]
