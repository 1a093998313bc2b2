"""What must not become a number: runs of another size, unfinished ones, damaged files, folders that are not there."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_artefact import tiny_artefact

from gradveil.errors import RecordError, SpecError
from gradveil.grid import Settings
from gradveil.record import Run
from gradveil.reproducing import (
    Artefact,
    Means,
    _correlations,
    _decodings,
    _federations,
    _tradeoffs,
    _trainings,
    catalogue,
    keep,
    reproduce,
)
from gradveil.reproducing.plans import Part, Wanted
from gradveil.tradeoff import Curve, MechanismResult, TradeoffRecord, write_tradeoff

MEANS = Means(settings=Settings(device=torch.device("cpu"), chunk=64, redact=True))
SPEC = """
[smoke]
clients = 2
[small]
clients = 3
[paper]
clients = 4
[parts.first]
kind = "federation"
[parts.first.federation]
model = "mlp:hidden=8"
clients = "$clients"
rounds = 1
[parts.second]
kind = "federation"
[parts.second.federation]
model = "mlp:hidden=8"
clients = "$clients"
rounds = 1
seed = 1
[[values]]
part = "first"
column = "accuracy"
take = "accuracy"
rows = { first = "none" }
[[values]]
part = "second"
column = "accuracy"
take = "accuracy"
rows = { second = "none" }
"""


@pytest.fixture
def artefact(tmp_path: Path) -> Artefact:
    """Return an experiment of two federations."""
    return tiny_artefact(tmp_path, SPEC)


def test_a_folder_of_one_size_gives_no_number_to_another(artefact: Artefact, tmp_path: Path) -> None:
    reproduce(artefact, "smoke", tmp_path / "run", means=MEANS, parts=["first"])
    with pytest.raises(SpecError, match="holds a smoke run; name a new folder with --out"):
        reproduce(artefact, "small", tmp_path / "run", means=MEANS, parts=["second"])
    with pytest.raises(SpecError, match="holds a smoke run"):
        keep(artefact, "small", tmp_path / "run")
    reproduce(artefact, "smoke", tmp_path / "run", means=MEANS, parts=["second"])


def test_nothing_is_not_kept_and_what_was_kept_stays(artefact: Artefact, tmp_path: Path) -> None:
    result = artefact.folder / "result.json"
    result.write_text("kept before")
    with pytest.raises(SpecError, match="holds no number of tiny in size small; run it first"):
        keep(artefact, "small", tmp_path / "run")
    assert result.read_text() == "kept before"


def test_a_fuller_result_of_another_size_stays(artefact: Artefact, tmp_path: Path) -> None:
    reproduce(artefact, "small", tmp_path / "small", means=MEANS)
    kept = keep(artefact, "small", tmp_path / "small").read_text()
    reproduce(artefact, "paper", tmp_path / "paper", means=MEANS, parts=["first"])
    with pytest.raises(
        SpecError, match="of the 2 numbers in the kept small result of tiny, this paper run lacks 1; run"
    ):
        keep(artefact, "paper", tmp_path / "paper")
    assert (artefact.folder / "result.json").read_text() == kept
    reproduce(artefact, "paper", tmp_path / "paper", means=MEANS, parts=["second"])
    keep(artefact, "paper", tmp_path / "paper")
    assert json.loads((artefact.folder / "result.json").read_text())["size"] == "paper"


@pytest.mark.parametrize("means", [{"adopted": (Path("nowhere"),)}, {"checkpoints": Path("nowhere")}])
def test_a_folder_that_is_not_there_is_named_before_anything_runs(
    means: dict[str, Any], artefact: Artefact, tmp_path: Path
) -> None:
    with pytest.raises(SpecError, match="there is no folder nowhere to take"):
        reproduce(artefact, "small", tmp_path / "run", means=replace(MEANS, **means))
    assert not (tmp_path / "run").exists()


def test_a_correlation_of_other_settings_is_not_taken_for_the_one_that_is_wanted(tmp_path: Path) -> None:
    audit = {
        "models": ["mlp:hidden=8"], "states": ["untrained"], "victims": 1, "attacks": ["inverting-gradients:steps=1"],
        "metrics": ["psnr"], "knowledge": ["labels"], "adaptive": False, "decoys": 5, "null_victims": 0,
    }  # fmt: skip
    search = {"model": "mlp:hidden=8", "policies": 2, "images": 2, "rounds": 1, "round_size": 12, "intervals": 1}
    tables: dict[str, dict[str, Any]] = {
        "audit": audit,
        "search": search,
        "semi_training": {"epochs": 1, "batch_size": 512},
    }
    part = Part(name="p", kind="correlation", tables=tables)
    _correlations.run(part, tmp_path, MEANS)
    _correlations.run(part, tmp_path, MEANS)
    for name, changed in (("audit", {**audit, "victims": 2}), ("search", {**search, "policies": 3})):
        with pytest.raises(SpecError, match=r"of another spec.*; name a new folder"):
            _correlations.run(replace(part, tables={**tables, name: changed}), tmp_path, MEANS)


def test_a_study_whose_seeds_are_not_all_in_has_no_number_yet(tmp_path: Path) -> None:
    curve = Curve(
        attack="dlg", informed=False, measure="tracing", null=None, plain=None, distances=[[[0.5]]], means=[0.5],
        bands=[[0.5, 0.5]], performances=[0.25], cap=0.25, cap_interval=[0.2, 0.3],
    )  # fmt: skip
    mechanism = MechanismResult(name="DP", defense="gaussian-noise", field="std", strengths=[], curves=[curve])
    run = Run(date="2026-01-01", seconds={}, chunk=0, device="CPU", versions={})
    made = TradeoffRecord(
        spec={}, status="running", seeds=[0], plain_accuracy=0.5, mechanisms=[mechanism], bounds=[1, 10], run=run
    )
    wanted = Wanted(row="", column="", part="p", take="cap", match={"mechanism": "DP", "measure": "tracing"})
    write_tradeoff(made, tmp_path)
    assert _tradeoffs.measure(tmp_path, wanted) is None
    write_tradeoff(replace(made, status="done"), tmp_path)
    assert _tradeoffs.measure(tmp_path, wanted).value == 0.25  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "read", [_correlations.read, _decodings.read, _federations.read, _trainings._read], ids=lambda read: read.__module__
)
def test_a_damaged_record_is_to_be_removed_because_a_new_run_alone_stops_at_it(read: Any, tmp_path: Path) -> None:
    (tmp_path / "some.json").write_text('{"broken')
    with pytest.raises(RecordError, match=r"some\.json is not the record of a .*; remove it and run again"):
        read(tmp_path / "some.json")


def test_a_damaged_catalogue_is_named(tmp_path: Path) -> None:
    (tmp_path / "catalogue.toml").write_text("broken")
    with pytest.raises(RecordError, match=r"catalogue\.toml cannot be read as TOML .*; restore it from the repository"):
        catalogue(tmp_path)
