"""Privacy against accuracy: numbers by hand, and studies that run, resume and are drawn."""

import json
import math
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from gradveil._tradeoff_curves import Attacked, Measured, mechanism_result
from gradveil._tradeoff_distances import median_ratios
from gradveil.cli import app
from gradveil.errors import RecordError, SpecError, UnknownNameError
from gradveil.grid import Settings
from gradveil.metrics import cap, cap_interval, ppc, ppc_position, resample_curve
from gradveil.record import Network, Outcome, Record, Run, Scores, Threat, read, read_images
from gradveil.report import build_tradeoff, render_tradeoff
from gradveil.report.tradeoff_page import spread
from gradveil.spec import Cell, spec_from
from gradveil.tradeoff import (
    STUDY_AUDIT,
    Judges,
    Mechanism,
    TradeoffRecord,
    TradeoffSpec,
    distances_of,
    null_distances,
    read_tradeoff,
    read_tradeoff_spec,
    run_tradeoff,
    tradeoff_from,
)

CPU = torch.device("cpu")

# Numbers by hand


def test_cap_and_ppc_equal_numbers_made_by_hand() -> None:
    accuracies, distances = [0.9, 0.6, 0.2], [0.1, 0.5, 2.0]
    assert cap(accuracies, distances) == pytest.approx((0.09 + 0.3 + 0.4) / 3)
    assert [(p.accuracy, p.distance) for p in ppc(accuracies, distances)] == [(0.2, 2.0), (0.6, 0.5), (0.9, 0.1)]
    assert [ppc_position(ratio) for ratio in (0.0, 9.0, 999.0)] == pytest.approx([0.0, 1.0, 3.0])


def test_other_victims_move_the_cap_as_chance_would() -> None:
    """Two victims at 0 and 2, drawn twice: their mean is 0, 1 or 2 with probability 1/4, 1/2, 1/4."""
    caps = resample_curve([[0.5]], [[[0.0, 2.0]]], resamples=4000).caps()
    values, counts = np.unique(caps, return_counts=True)
    assert values == pytest.approx([0.0, 0.5, 1.0])
    assert counts / 4000 == pytest.approx([0.25, 0.5, 0.25], abs=0.03)
    assert cap_interval([[0.5]], [[[0.0, 2.0]]]) == pytest.approx((0.0, 1.0))


def test_other_seeds_move_accuracy_and_distance_together() -> None:
    accuracies, distances = [[0.2], [0.6]], [[[1.0]], [[3.0]]]
    caps = resample_curve(accuracies, distances).caps()
    assert sorted({round(value, 9) for value in caps}) == [0.2, 0.8, 1.8]  # (0, 0), one of each, (1, 1)


def test_a_victim_is_the_same_at_every_strength() -> None:
    drawn = resample_curve([[1.0, 1.0]], [[[0.0, 2.0, 5.0], [1.0, 3.0, 6.0]]]).distances
    assert np.ptp(drawn[:, 0]) > 0
    assert drawn[:, 1] - drawn[:, 0] == pytest.approx(np.ones(len(drawn)))


def test_a_curve_without_one_accuracy_per_distance_is_refused() -> None:
    with pytest.raises(ValueError, match=r"accuracies \(S, M\) and distances \(S, M, V\)"):
        resample_curve([[0.5, 0.5]], [[[1.0]]])


def test_the_ratio_of_a_victim_is_that_of_its_median_layer() -> None:
    ratios = {"a.weight": [1.0, 9.0], "a.bias": [6.0, 3.0], "b.weight": [4.0, 5.0], "b.bias": [math.inf, 1.0]}
    assert median_ratios({**ratios, "c.weight": [100.0, 0.5]}) == [6.0, 1.0]
    assert median_ratios({"a.weight": [math.inf]}) == [math.inf]
    assert median_ratios({}) == []


# Curves from distances

SWEEP = Mechanism(defense="gaussian-noise", field="std", values=("1e-3", "1"))


def measured(
    accuracy: float | None, distances: Sequence[float], *, ratio: float = math.inf, error: str = ""
) -> Measured:
    nulls = {"reconstruction": 0.9}
    attacked = Attacked(
        attack="dlg", informed=False, distances={"reconstruction": list(distances)}, nulls=nulls, ratios=[ratio] * 2
    )
    return Measured(accuracy=accuracy, attacked=[attacked], error=error)


def seeds_of(last: Measured) -> list[Mapping[str, Measured]]:
    first = {
        "none": measured(0.9, [0.0, 0.2]),
        "gaussian-noise:std=1e-3": measured(0.8, [0.2, 0.4], ratio=99.0),
        "gaussian-noise:std=1": measured(0.4, [1.0, 2.0], ratio=0.5),
    }
    second = {
        "none": measured(0.7, [0.1, 0.1]),
        "gaussian-noise:std=1e-3": measured(0.6, [0.0, 0.2], ratio=9.0),
        "gaussian-noise:std=1": last,
    }
    return [first, second]


def test_points_and_cap_of_a_mechanism_equal_numbers_made_by_hand() -> None:
    made = mechanism_result(SWEEP, seeds_of(measured(0.2, [1.0, 0.0], ratio=0.1)))
    weak, strong = made.strengths
    assert [weak.accuracy, strong.accuracy] == pytest.approx([0.7, 0.3])
    assert [weak.ratio, weak.position, strong.ratio] == pytest.approx([54.0, math.log10(55), 0.3])
    assert (weak.region, strong.region) == ("red", "green")

    (curve,) = made.curves
    assert curve.means == pytest.approx([0.2, 1.0])
    assert curve.performances == pytest.approx([0.14, 0.3])
    assert curve.cap == pytest.approx(0.22)
    assert [curve.null, curve.plain] == pytest.approx([0.9, 0.1])
    assert curve.cap_interval[0] < 0.22 < curve.cap_interval[1]
    assert tuple(curve.cap_interval) == cap_interval([[0.8, 0.4], [0.6, 0.2]], curve.distances)
    assert np.shape(curve.distances) == (2, 2, 2)


def test_who_knows_nothing_has_a_cap_too_and_a_mean_is_not_all_that_is_said() -> None:
    made = mechanism_result(SWEEP, seeds_of(measured(0.2, [1.0, 0.0], ratio=0.1)))
    assert made.null_cap("reconstruction") == pytest.approx((0.7 + 0.3) / 2 * 0.9)
    assert made.null_cap("tracing") is None
    unknown = mechanism_result(SWEEP, seeds_of(measured(None, [1.0, 0.0], ratio=0.1)))
    assert unknown.null_cap("reconstruction") is None
    (curve,) = made.curves
    assert spread(curve, 0) == "std 0.163, closest 0.000, 100.0% ≤ 0.5"  # 0.2, 0.4, 0.0, 0.2
    assert spread(replace(curve, measure="tracing"), 1) == "std 0.816, closest 0.000"  # 1, 2, 1, 0


def test_who_knows_nothing_is_measured_on_the_victims_of_every_seed() -> None:
    seeds = seeds_of(measured(0.2, [1.0, 0.0]))
    weak = seeds[1]["gaussian-noise:std=1e-3"]
    other = replace(weak, attacked=[replace(weak.attacked[0], nulls={"reconstruction": 0.5})])
    made = mechanism_result(SWEEP, [seeds[0], {**seeds[1], "gaussian-noise:std=1e-3": other}])
    assert made.curves[0].null == pytest.approx((0.9 + 0.5) / 2)
    unsaid = replace(weak, attacked=[replace(weak.attacked[0], nulls={})])
    assert mechanism_result(SWEEP, [seeds[0], {**seeds[1], "gaussian-noise:std=1e-3": unsaid}]).curves[0].null is None


def test_no_cap_is_given_where_a_strength_has_no_accuracy() -> None:
    made = mechanism_result(SWEEP, seeds_of(measured(None, [1.0, 0.0], ratio=0.1, error="the loss became nan")))
    assert (made.strengths[1].accuracy, made.strengths[1].errors) == (None, ["the loss became nan"])
    (curve,) = made.curves
    assert (curve.cap, curve.cap_interval, curve.performances) == (None, [], [])
    assert curve.means == pytest.approx([0.2, 1.0])


def test_a_curve_that_lacks_a_strength_is_not_drawn() -> None:
    failed = Attacked(attack="dlg", informed=False, distances={}, nulls={}, error="dlg failed")
    made = mechanism_result(SWEEP, seeds_of(Measured(accuracy=0.5, attacked=[failed])))
    assert made.curves == []
    assert made.strengths[1].errors == ["dlg failed"]


# Distances from records


def a_record(errors: list[list[float]], label_accuracy: Sequence[float] = ()) -> Record:
    nulls = {"grey": [[0.8]] * len(errors), "mean-image": [[0.6]] * len(errors), "own-mean": [[0.1]] * len(errors)}
    return Record(
        spec={},
        status="done",
        title="",
        attack="dlg",
        defenses=[],
        threat=Threat(knowledge=[]),
        network=Network(spec="mlp", state="untrained", mode="eval", parameters=1),
        outcome=Outcome(objective=[], diverged=[], steps=[], label_accuracy=list(label_accuracy)),
        scores={"rmse": Scores(private=errors, protected=errors, nulls=nulls, higher_is_better=False)},
        identification={},
        labels=[[0, 1]] * len(errors),
        classes=["a", "b", "c", "d"],
        run=Run(date="", seconds={}, chunk=0, device="", versions={}),
    )


def judges(queries: torch.Tensor, *, network: nn.Module | None = None) -> Judges:
    return Judges(queries=queries, participants=2, most=100, network=network, device=CPU, seed=1)


def test_distances_are_those_of_the_record_and_of_its_pictures() -> None:
    shades = np.asarray([[10, 20], [200, 210]], dtype=np.uint8).reshape(2, 2, 1, 1, 1)
    swapped = np.asarray([[11, 199], [21, 209]], dtype=np.uint8).reshape(2, 2, 1, 1, 1)
    record = a_record([[0.2, 0.4], [3.0, 0.5]], label_accuracy=[1.0, 0.5])
    queries = torch.tensor([10, 15, 30, 205], dtype=torch.uint8).view(4, 1, 1, 1)
    found = distances_of(record, {"guess": swapped, "private": shades}, judges=judges(queries))

    assert found["reconstruction"] == [0.3, 1.75]
    assert found["reconstruction-capped"] == [0.3, 0.75]
    assert found["membership"] == [0.0, 0.5]
    # 10 is nearest to 11 (participant 0), 20 to 21 (1), 200 to 199 (0), 210 to 209 (1): one of two is wrong for each.
    assert found["tracing"] == [0.5, 0.5]
    # The image 10 is private already; 15, 30 and 205 are dealt in some order, and the shares stay between 0 and 1.
    assert len(found["tracing-all"]) == 2
    right = distances_of(record, {"guess": shades, "private": shades}, judges=judges(queries[:1]))
    assert right["tracing"] == right["tracing-all"] == [0.0, 0.0]


def test_what_a_record_cannot_tell_is_left_out() -> None:
    found = distances_of(a_record([[0.2, 0.4]]), {}, judges=judges(torch.zeros(1, 1, 1, 1, dtype=torch.uint8)))
    assert sorted(found) == ["reconstruction", "reconstruction-capped"]


def test_a_network_judges_the_class_of_reconstructions() -> None:
    images = np.asarray([[[255, 0], [255, 0]]], dtype=np.uint8).reshape(1, 2, 1, 1, 2)
    given = judges(torch.zeros(1, 1, 1, 2, dtype=torch.uint8), network=nn.Flatten())
    found = distances_of(a_record([[0.2, 0.4]]), {"guess": images, "private": images}, judges=replace(given))
    assert found["membership-by-classifier"] == [0.5]  # labels 0 and 1, both of which look like class 0


def test_who_knows_nothing_guesses_or_shows_the_better_constant() -> None:
    nulls = null_distances(a_record([[0.2]]), participants=4)
    assert nulls["reconstruction"] == pytest.approx(0.6)
    assert (nulls["tracing"], nulls["membership"]) == (0.75, 0.75)


# What to sweep


@pytest.mark.parametrize(
    ("defense", "field", "expected"),
    [
        ("gaussian-noise", "std", "gaussian-noise:std=0.1"),
        ("pruning:fraction=0.9 + gaussian-noise", "std", "pruning:fraction=0.9 + gaussian-noise:std=0.1"),
        ("pruning + gaussian-noise:std=0.2", "fraction", "pruning:fraction=0.1 + gaussian-noise:std=0.2"),
    ],
)
def test_a_value_is_set_where_its_setting_belongs(defense: str, field: str, expected: str) -> None:
    assert Mechanism(defense=defense, field=field, values=("0.1",)).strengths() == (expected,)


def test_sweeps_that_make_no_sense_are_refused() -> None:
    with pytest.raises(UnknownNameError, match="did you mean std"):
        Mechanism(defense="gaussian-noise", field="sdt", values=("1",))
    with pytest.raises(SpecError, match=r"2 of .* have a setting std"):
        Mechanism(defense="gaussian-noise + gaussian-noise", field="std", values=("1",))
    with pytest.raises(SpecError, match="values that differ"):
        Mechanism(defense="gaussian-noise", field="std", values=("1", "1"))
    with pytest.raises(SpecError, match="one accuracy per value, got 1 for 2"):
        Mechanism(defense="gaussian-noise", field="std", values=("1", "2"), accuracies=(0.5,))
    with pytest.raises(SpecError, match="std must be at least 0"):
        Mechanism(defense="gaussian-noise", field="std", values=("-1",))
    with pytest.raises(SpecError, match="got 20 victims; ask for more victims or fewer"):
        TradeoffSpec(mechanisms=(SWEEP,), participants=21)
    with pytest.raises(SpecError, match="leave them out"):
        TradeoffSpec(mechanisms=(SWEEP,), audit=replace(STUDY_AUDIT, defenses=("pruning",)))
    with pytest.raises(SpecError, match="at least 1 mechanism"):
        tradeoff_from({})


def test_a_spec_file_says_the_same_as_the_spec(tmp_path: Path) -> None:
    other = Mechanism(
        defense="pruning", field="fraction", values=("0.5", "0.9"), name="Pruning", accuracies=(0.5, 0.25)
    )
    spec = TradeoffSpec(mechanisms=(SWEEP, other), seeds=3, participants=4, queries=50)
    (tmp_path / "study.toml").write_text(spec.to_toml())
    assert read_tradeoff_spec(tmp_path / "study.toml") == spec
    assert tradeoff_from(tomllib.loads(spec.to_toml())).audit == STUDY_AUDIT


def test_every_seed_has_its_own_images_weights_and_noise() -> None:
    spec = TradeoffSpec(mechanisms=(SWEEP,), seeds=2, audit=replace(STUDY_AUDIT, victims=12, batch_size=2, start=5))
    first, second = spec.audit_of(0), spec.audit_of(1)
    assert (first.start, second.start) == (5, 29)
    assert (second.seed, second.model_seed) == (first.seed + 1, first.model_seed + 1)
    assert first.defenses == ("none", "gaussian-noise:std=1e-3", "gaussian-noise:std=1")
    assert "rmse" in first.metrics


# Studies that run

AUDIT = {
    "models": "mlp:hidden=6",
    "attacks": "inverting-gradients:steps=2",
    "victims": 3,
    "adaptive": False,
    "null_victims": 0,
    "decoys": 5,
    "metrics": ["psnr"],
    "knowledge": ["nothing"],
}


def a_study(values: tuple[str, ...] = ("1e-4", "10"), seeds: int = 1) -> TradeoffSpec:
    audit = spec_from({"audit": AUDIT, "training": {"epochs": 1, "batch_size": 512}})
    sweep = replace(SWEEP, values=values)
    return TradeoffSpec(mechanisms=(sweep,), seeds=seeds, participants=3, queries=30, audit=audit)


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, TradeoffRecord]:
    folder = tmp_path_factory.mktemp("tradeoff") / "run"
    return folder, run_tradeoff(a_study(seeds=2), folder, settings=Settings(device=CPU))


def without_run(record: TradeoffRecord) -> TradeoffRecord:
    return replace(record, run=Run(date="", seconds={}, chunk=0, device="", versions={}))


def test_a_study_holds_what_its_audits_and_networks_gave(study: tuple[Path, TradeoffRecord]) -> None:
    folder, made = study
    assert read_tradeoff(folder) == made
    assert (made.status, made.seeds) == ("done", [0, 1])
    (mechanism,) = made.mechanisms
    curves = {curve.measure: curve for curve in mechanism.curves}
    assert {"reconstruction", "tracing", "membership", "membership-by-classifier"} <= set(curves)

    cell = Cell(
        model="mlp:hidden=6",
        state="untrained",
        defenses="gaussian-noise:std=10",
        attack="inverting-gradients:steps=2",
    )
    record = read(folder / "seed-1" / "cells" / cell.name)
    errors = np.asarray(record.scores["rmse"].private).mean(1)
    assert curves["reconstruction"].distances[1][1] == pytest.approx(errors, abs=1e-6)
    assert curves["membership"].distances[1][1] == pytest.approx(1 - np.asarray(record.outcome.label_accuracy))
    assert [strength.region for strength in mechanism.strengths] == ["red", "green"]
    assert made.plain_accuracy is not None


def test_a_finished_study_is_not_run_again(study: tuple[Path, TradeoffRecord]) -> None:
    folder, made = study
    before = {file: file.stat().st_mtime_ns for file in folder.rglob("record.json")}
    again = run_tradeoff(a_study(seeds=2), folder, settings=Settings(device=CPU))
    assert {file: file.stat().st_mtime_ns for file in folder.rglob("record.json")} == before
    assert without_run(again) == without_run(made)
    with pytest.raises(SpecError, match="holds another study"):
        run_tradeoff(a_study(values=("1",)), folder)


def test_an_interrupted_study_keeps_no_pictures_if_redacted_and_goes_on(
    study: tuple[Path, TradeoffRecord], tmp_path: Path
) -> None:
    def interrupt(number: int, _total: int, _cell: Cell) -> None:
        if number == 3:
            raise KeyboardInterrupt

    settings = Settings(device=CPU, redact=True)
    with pytest.raises(KeyboardInterrupt):
        run_tradeoff(a_study(seeds=2), tmp_path, settings=replace(settings, announce=interrupt))
    assert len(list(tmp_path.rglob("distances.json"))) == 2
    assert list(tmp_path.rglob("images.npz")) == []

    made = run_tradeoff(a_study(seeds=2), tmp_path, settings=settings)
    assert without_run(made) == without_run(study[1])
    assert list(tmp_path.rglob("images.npz")) == []
    assert all(not read_images(file.parent, read(file)) for file in tmp_path.rglob("record.json"))


def test_accuracies_measured_elsewhere_take_the_place_of_trained_ones(tmp_path: Path) -> None:
    given = replace(a_study(), mechanisms=(replace(SWEEP, values=("1",), accuracies=(0.75,)),))
    made = run_tradeoff(given, tmp_path, settings=Settings(device=CPU))
    assert [strength.accuracies for strength in made.mechanisms[0].strengths] == [[0.75]]
    assert len(list((tmp_path / "seed-0" / "models").glob("*.safetensors"))) == 1


def test_the_page_of_a_study_needs_nothing_else(study: tuple[Path, TradeoffRecord]) -> None:
    page = build_tradeoff(study[0]).read_text(encoding="utf-8")
    assert not re.search(r"""(src|href)=["']?(https?:)?//""", page)
    assert page.count('class="ppc"') == len(study[1].mechanisms[0].curves)
    for words in ("green", "white", "red", "CAP", "gaussian-noise, std", "log10(‖B‖ / ‖E‖ + 1)", "closest"):
        assert words in page
    held = re.search(r"application/json;charset=utf-8;base64,([^\"]+)", page)
    assert held is not None


def test_a_page_without_a_cap_says_so(study: tuple[Path, TradeoffRecord]) -> None:
    (mechanism,) = study[1].mechanisms
    curves = [replace(curve, cap=None, cap_interval=[], performances=[]) for curve in mechanism.curves]
    broken = replace(study[1], mechanisms=[replace(mechanism, curves=curves)], status="running")
    page = render_tradeoff(broken)
    assert "No CAP can be given" in page
    assert "Unfinished" in page


def test_something_else_is_no_study(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"there is no tradeoff\.json"):
        read_tradeoff(tmp_path)
    (tmp_path / "tradeoff.json").write_text('{"format": 1}')
    with pytest.raises(RecordError, match="is no record of a trade-off"):
        read_tradeoff(tmp_path)


# The command

COMMAND = (
    "tradeoff --defense gaussian-noise --field std --model mlp:hidden=6 --attack inverting-gradients:steps=2 "
    "--no-adaptive --victims 2 --participants 2 --epochs 1 --device cpu"
)


def test_the_command_says_what_failed_and_shows_the_rest(tmp_path: Path) -> None:
    """Noise of 1e38 overflows: no network can be trained under it."""
    done = CliRunner().invoke(app, [*COMMAND.split(), "--values", "0.1,1e38", "--out", str(tmp_path), "--json"])
    assert done.exit_code == 1, done.output
    made = json.loads(done.stdout)
    (mechanism,) = made["mechanisms"]
    assert mechanism["strengths"][0]["errors"] == []
    assert "the loss became" in mechanism["strengths"][1]["errors"][0]
    assert all(curve["cap"] is None for curve in mechanism["curves"])
    assert (tmp_path / "report.html").exists()


def test_the_command_refuses_half_a_sweep_in_one_sentence() -> None:
    done = CliRunner().invoke(app, ["tradeoff", "--defense", "pruning"])
    assert done.exit_code == 2
    assert "--field and --values is missing" in " ".join(done.output.split())
