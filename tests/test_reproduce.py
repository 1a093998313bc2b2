import json
import re
import shlex
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import binomtest, pearsonr
from typer.testing import CliRunner

from gradveil import record
from gradveil.cli import app
from gradveil.errors import GradVeilError, RecordError, SpecError, UnknownNameError
from gradveil.grid import Settings, run_audit
from gradveil.policies import ScoredPolicy, SearchRecord
from gradveil.policies.result import write
from gradveil.record import Run
from gradveil.reproducing import (
    Artefact,
    Means,
    _audits,
    _client_audits,
    _correlations,
    _searches,
    _tradeoffs,
    catalogue,
    compare,
    find_artefact,
    find_experiments,
    keep,
    read_plan,
    reproduce,
)
from gradveil.reproducing._adopting import adopt, fits
from gradveil.reproducing._short_forms import substitute
from gradveil.reproducing.measuring import of_correlation, of_mean, of_share, pearson
from gradveil.reproducing.plans import Part, Wanted
from gradveil.spec import AuditSpec

EXPERIMENTS = find_experiments(Path(__file__).parents[1] / "experiments")
ALL = catalogue(EXPERIMENTS)
MEANS = Means(settings=Settings(device=torch.device("cpu"), chunk=64, redact=True))
RUN = Run(date="2026-01-01T00:00:00+00:00", seconds={}, chunk=0, device="none", versions={})

SEARCH = {"model": "mlp:hidden=8", "policies": 1, "images": 2, "rounds": 1, "round_size": 12, "intervals": 1}
TINY = """
[small]
victims = 3

[parts.cells]
kind = "client-audit"

[parts.cells.client]
sensitive = 1
pool = "digits"

[parts.cells.audit]
models = ["mlp:hidden=8"]
victims = "$victims"
batch_size = 2
defenses = ["none", "gaussian-noise:std=0.1", "gaussian-noise:std=0.2"]
attacks = ["inverting-gradients:steps=2"]
metrics = ["psnr"]
adaptive = false
decoys = 5
null_victims = 0

[[values]]
part = "cells"
column = "last"
take = "psnr.private.mean.last-1"
rows = { plain = "none" }

[[values]]
part = "cells"
column = "noise"
take = "psnr.protected.mean"
rows = { noisy = "gaussian-noise*" }

[[values]]
part = "cells"
column = "accuracy"
unit = "%"
take = "accuracy"
rows = { plain = "none" }
"""


@pytest.fixture
def tiny(tmp_path: Path) -> Artefact:
    """Return an experiment of three cells whose `small` takes no time."""
    folder = tmp_path / "experiments" / "tiny"
    folder.mkdir(parents=True)
    (folder.parent / "catalogue.toml").write_text('[[ats]]\nname = "tiny"\ntitle = "a table"\n')
    (folder / "spec.toml").write_text(TINY)
    cells = [("plain", "last"), ("noisy", "noise"), ("plain", "accuracy"), ("plain", "not measured")]
    rows = [{"row": row, "column": column, "value": 5.0, "unit": ""} for row, column in cells]
    (folder / "expected.json").write_text(json.dumps({"paper": "ats", "table": "none", "rows": rows}))
    return find_artefact(folder.parent, "tiny")


# Running, resuming, keeping


def test_numbers_are_those_of_the_records_and_a_second_run_makes_none_again(tiny: Artefact, tmp_path: Path) -> None:
    out = tmp_path / "run"
    lines = {(line.row, line.column): line for line in reproduce(tiny, "small", out, means=MEANS)}
    files = sorted((out / "cells").glob("cells/*/record.json"))
    content = [json.loads(file.read_text()) for file in files]
    plain = next(made for made in content if made["spec"]["cell"]["defenses"] == "none")
    noisy = [made for made in content if made["spec"]["cell"]["defenses"] != "none"]
    last = np.array(plain["scores"]["psnr"]["private"])[:, -1].mean()
    assert lines["plain", "last"].ours == pytest.approx(last, abs=1e-5)
    assert lines["plain", "last"].difference == pytest.approx(last - 5.0, abs=1e-5)
    means = [np.mean(made["scores"]["psnr"]["protected"]) for made in noisy]
    assert lines["noisy", "noise"].ours == pytest.approx(np.mean(means), abs=1e-5)
    assert lines["noisy", "noise"].interval == pytest.approx((min(means), max(means)), abs=1e-5)
    assert lines["plain", "accuracy"].ours == pytest.approx(100 * plain["network"]["accuracy"], abs=1e-4)
    assert lines["plain", "not measured"].ours is None
    assert lines["plain", "not measured"].difference is None
    assert all(made["spec"]["client"] == {"sensitive": 1, "pool": "digits"} for made in content)

    before = {file: file.stat().st_mtime_ns for file in files}
    again = reproduce(tiny, "small", out, means=MEANS)
    assert {file: file.stat().st_mtime_ns for file in files} == before
    assert again == list(lines.values())


def test_a_kept_run_becomes_the_result_with_its_records_beside_it(tiny: Artefact, tmp_path: Path) -> None:
    out = tmp_path / "run"
    lines = reproduce(tiny, "small", out, means=MEANS)
    assert keep(tiny, "small", out) == tiny.folder / "result.json"
    (kept,) = catalogue(tiny.folder.parent)
    assert kept.state == "run"
    result = kept.result()
    assert result is not None
    assert compare(tiny, result) == lines
    for value in result["values"]:
        made = [record.read(tiny.folder / file) for file in value["records"]]
        assert all(one.images == "" and one.run.date <= value["date"] for one in made)
    with pytest.raises(SpecError, match="smoke"):
        keep(tiny, "smoke", out)


def test_parts_run_alone_and_what_did_not_run_has_no_number(tiny: Artefact, tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="part of tiny"):
        reproduce(tiny, "small", tmp_path / "run", means=MEANS, parts=["cell"])
    other = TINY.replace("[[values]]", '[parts.more]\nkind = "search"\n\n[[values]]', 1)
    (tiny.folder / "spec.toml").write_text(
        other.replace('part = "cells"\ncolumn = "noise"', 'part = "more"\ncolumn = "noise"')
    )
    lines = {line.column: line for line in reproduce(tiny, "small", tmp_path / "run", means=MEANS, parts=["cells"])}
    assert lines["last"].ours is not None
    assert lines["noise"].ours is None
    keep(tiny, "small", tmp_path / "run")
    (kept,) = catalogue(tiny.folder.parent)
    assert kept.state == "partly run"
    assert 0 < kept.missing() < kept.measured()


def test_a_network_trained_before_takes_the_place_of_one_to_be_trained(tmp_path: Path) -> None:
    (tmp_path / "plain.safetensors").touch()
    part = Part(name="a", kind="audit", tables={"audit": {"states": ["trained"]}}, checkpoint="plain")
    assert _audits.to_spec(part, Means(checkpoints=tmp_path)).states == (
        f"checkpoint:{tmp_path / 'plain.safetensors'}",
    )
    assert _audits.to_spec(part, Means()).states == ("trained",)
    assert _audits.to_spec(replace(part, checkpoint="other"), Means(checkpoints=tmp_path)).states == ("trained",)


def test_a_cell_that_fails_stops_the_run_with_its_reason(tiny: Artefact, tmp_path: Path) -> None:
    spec = TINY.replace('"client-audit"', '"audit"').replace(
        '[parts.cells.client]\nsensitive = 1\npool = "digits"\n', ""
    )
    (tiny.folder / "spec.toml").write_text(spec.replace('"none", "gaussian-noise:std=0.1"', '"none", "mixup:k=6"'))
    with pytest.raises(RecordError, match="1 of 3 cells failed"):
        reproduce(tiny, "small", tmp_path / "run", means=MEANS)


ADOPTABLE: list[tuple[dict[str, Any], bool]] = [
    ({}, True),
    ({"attacks": ("inverting-gradients:tv=1e-4,steps=2",)}, True),
    ({"metrics": ("psnr", "mse")}, True),
    ({"metrics": ("mse",)}, False),
    ({"attacks": ("inverting-gradients:steps=3",)}, False),
    ({"defenses": ("gaussian-noise:std=0.2",)}, False),
    ({"seed": 1}, False),
    ({"victims": 3}, False),
    ({"model_seed": 1}, False),
    ({"decoys": 4}, False),
    ({"precision": "float32"}, False),
    ({"knowledge": ("nothing",)}, False),
]


@pytest.mark.parametrize(("changes", "same"), ADOPTABLE)
def test_an_audit_run_elsewhere_is_taken_over_only_if_it_is_the_same(
    changes: dict[str, Any], same: bool, tmp_path: Path
) -> None:
    small = {"models": ("mlp:hidden=8",), "victims": 2, "metrics": ("psnr",), "knowledge": ("labels",)}
    rest = {"attacks": ("inverting-gradients:steps=2",), "defenses": ("gaussian-noise:std=0.1",), "decoys": 5}
    spec = AuditSpec(**small, **rest, adaptive=False, null_victims=0)  # type: ignore[arg-type]
    run_audit(replace(spec, **changes), tmp_path / "elsewhere", settings=MEANS.settings)
    part = Part(name="a", kind="audit", tables=spec.to_dict())
    assert adopt(part, spec, tmp_path / "here", [tmp_path / "elsewhere"]) == int(same)
    assert len(list((tmp_path / "here").glob("cells/*/record.json"))) == int(same)


def test_what_is_taken_over_is_said_before_the_rest_runs(tmp_path: Path) -> None:
    small = {"models": ["mlp:hidden=8"], "victims": 1, "metrics": ["psnr"], "attacks": ["inverting-gradients:steps=1"]}
    audit = {**small, "adaptive": False, "decoys": 5, "null_victims": 0}
    said: list[str] = []
    means = replace(MEANS, adopted=(tmp_path / "first",), say=said.append)
    _audits.run(Part(name="a", kind="audit", tables={"audit": audit}), tmp_path / "first", MEANS)
    both = {**audit, "defenses": ["none", "pruning"]}
    _audits.run(Part(name="b", kind="audit", tables={"audit": both}), tmp_path / "second", means)
    assert said == ["b: 1 of 2 cells taken over"]
    _searches.run(Part(name="c", kind="search", tables={"search": {**SEARCH}}), tmp_path / "third", means)
    assert said[1:] == ["c: no search taken over"]


def test_a_network_from_a_file_is_known_by_its_name(tmp_path: Path) -> None:
    spec = AuditSpec(victims=2, attacks=("inverting-gradients:steps=1",), adaptive=False, decoys=5, null_victims=0)
    (made,) = run_audit(spec, tmp_path, settings=MEANS.settings)
    cell = {**made.spec["cell"], "state": "checkpoint:nets/plain.safetensors"}
    stored = replace(made, spec={**made.spec, "cell": cell})
    wanted = replace(spec, states=("trained",))
    assert fits(stored, wanted, wanted.cells()[0], checkpoint="plain")
    assert not fits(stored, wanted, wanted.cells()[0], checkpoint="other")
    assert not fits(stored, wanted, wanted.cells()[0])
    assert not fits(made, wanted, wanted.cells()[0], checkpoint="plain")


def test_the_last_samples_of_a_batch_are_marked() -> None:
    from gradveil import data

    spec = AuditSpec(victims=2, batch_size=3)
    batch = _client_audits._batch(spec, data.load("digits"), {"sensitive": 2, "distinct_labels": True})
    assert batch.sensitive is not None
    assert batch.sensitive.tolist() == [[False, True, True]] * 2
    assert all(len(row.unique()) == 3 for row in batch.labels)


# Kinds against slower ways to the same numbers


def test_policies_attacked_in_one_stack_come_out_as_each_alone(tmp_path: Path) -> None:
    audit = {
        "models": ["mlp:hidden=8"], "states": ["untrained"], "victims": 2, "attacks": ["inverting-gradients:steps=3"],
        "metrics": ["psnr"], "knowledge": ["labels"], "adaptive": False, "decoys": 5, "null_victims": 0,
    }  # fmt: skip
    search = {"model": "mlp:hidden=8", "policies": 3, "images": 2, "rounds": 1, "round_size": 12, "intervals": 1}
    training = {"epochs": 1, "batch_size": 128}
    part = Part(name="p", kind="correlation", tables={"audit": audit, "search": search, "semi_training": training})
    _correlations.run(part, tmp_path / "stack", MEANS)
    made = _correlations.read(tmp_path / "stack" / "correlation.json")
    defenses = tuple(f"transform-policy:policy={policy}" for policy in made.policies)
    alone = run_audit(replace(_audits.to_spec(part, MEANS), defenses=defenses), tmp_path / "a", settings=MEANS.settings)
    for row, private, one in zip(made.protected, made.private, alone, strict=True):
        assert row == pytest.approx([score for (score,) in one.scores["psnr"].protected], abs=1e-3)
        assert private == pytest.approx([score for (score,) in one.scores["psnr"].private], abs=1e-3)
    wanted = Wanted(row="", column="", part="p", take="pearson.protected", match={"over": "policies"})
    found = _correlations.measure(tmp_path / "stack", wanted)
    assert found is not None
    assert found.value == pytest.approx(pearsonr(made.privacy, np.mean(made.protected, axis=1)).statistic)


def test_numbers_of_a_search_are_those_computed_by_hand(tmp_path: Path) -> None:
    scores = {"3-1-7": 0.2, "3-15": 0.3, "5-6": 0.5, "9": 0.6}
    drawn = [ScoredPolicy(policy=policy, accuracy=-70, privacy=privacy) for policy, privacy in scores.items()]
    given = {"28": 0.4, "3-15-18": 0.25, "3": 0.1, "2": 0.7}
    drawn += [
        ScoredPolicy(policy=policy, accuracy=-70, privacy=privacy, privacy_error=0.01, origin="given")
        for policy, privacy in given.items()
    ]
    made = SearchRecord(spec={"search": {"seed": 4}}, status="done", threshold=-85, scored=drawn, run=RUN)
    write(made, tmp_path)

    def found(take: str, **match: str) -> Any:
        return _searches.measure(tmp_path, Wanted(row="", column="", part="", take=take, match=match))

    assert found("mean-of-random", policy="*").value == pytest.approx((0.2 + 0.3 + 0.5 + 0.6) / 4)
    assert found("mean-with-two-of", of="3+15+1").value == pytest.approx((0.2 + 0.3) / 2)
    assert found("share-beaten-by-three-of", of="3+15+18").value == pytest.approx(3 / 4)
    assert found("privacy", policy="none").value == 0.4
    assert found("privacy", policy="none").interval == pytest.approx((0.4 - 0.0196, 0.4 + 0.0196))
    assert found("lowest-single", policy="*").value == 3
    assert found("lowest-five-in", of="3+2+15").value == 2
    assert found("privacy", policy="49") is None
    assert found("privacy", policy="none").seed == 4
    with pytest.raises(SpecError, match="not 'other'"):
        found("other", policy="*")


def test_a_trade_off_without_the_federation_it_takes_accuracies_from_is_refused(tmp_path: Path) -> None:
    table = {"defense": "spn", "field": "alpha2", "values": ["0.1"], "federations": ["spn:alpha2=0.1"]}
    with pytest.raises(SpecError, match="no federation under spn"):
        _tradeoffs._mechanism(dict(table), tmp_path)
    assert _tradeoffs._mechanism(dict(table), None) == {k: v for k, v in table.items() if k != "federations"}


def test_intervals_agree_with_scipy_and_with_simple_cases() -> None:
    wilson = binomtest(37, 120).proportion_ci(method="wilson")
    assert of_share(37 / 120, 120) == pytest.approx((wilson.low, wilson.high), abs=1e-4)
    assert of_mean([3.0]) is None
    assert of_correlation([(0, 0), (1, 1), (2, 3)]) is None
    pairs = [(float(x), float(x**2)) for x in range(8)]
    assert pearson(pairs) == pytest.approx(pearsonr(*zip(*pairs, strict=True)).statistic)
    interval = of_correlation(pairs)
    assert interval is not None
    assert interval[0] < pearson(pairs) < interval[1]


# Wrong use, and the command


def test_words_that_a_size_does_not_have_are_named(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="victim"):
        substitute("$victims", {"victim": 1})
    (tmp_path / "spec.toml").write_text("[small]\n[tables]\n")
    with pytest.raises(UnknownNameError, match="tables"):
        read_plan(tmp_path / "spec.toml", "small", out=tmp_path)
    with pytest.raises(SpecError, match="no spec"):
        read_plan(tmp_path / "other.toml", "small", out=tmp_path)


def test_what_cannot_be_run_says_why() -> None:
    with pytest.raises(SpecError, match="224"):
        find_artefact(EXPERIMENTS, "dcs2-table-2")
    with pytest.raises(UnknownNameError, match="did you mean ats-table-1a"):
        find_artefact(EXPERIMENTS, "ats-tabel-1a")
    with pytest.raises(GradVeilError, match="catalogue"):
        find_experiments(Path("nowhere"))


def command(line: str) -> Any:
    return CliRunner().invoke(app, shlex.split(line))


def test_the_command_lists_all_artefacts_with_their_state() -> None:
    shown = command(f"reproduce --list --experiments {EXPERIMENTS} --json")
    rows = {row["name"]: row for row in json.loads(shown.stdout)}
    assert set(rows) == {artefact.name for artefact in ALL}
    assert rows["dcs2-table-2"]["state"] == "not possible"
    assert "LPIPS" in rows["loda-table-1"]["why"]
    table = command(f"reproduce --list --experiments {EXPERIMENTS}")
    assert table.exit_code == 0
    assert "not possible" in table.stdout
    assert set(re.findall(r"[\w-]+", table.stdout)) >= set(rows)  # whole names, to be typed


def test_the_command_prints_paper_ours_and_difference(tiny: Artefact, tmp_path: Path) -> None:
    where = f"--experiments {tiny.folder.parent} --out {tmp_path / 'run'} --size small --device cpu --chunk 8"
    shown = command(f"reproduce tiny {where} --json")
    assert shown.exit_code == 0, shown.output
    rows = json.loads(shown.stdout)["rows"]
    assert rows[0]["difference"] == pytest.approx(rows[0]["ours"] - rows[0]["paper"])
    printed = command(f"reproduce tiny {where} --quiet --keep")
    assert printed.exit_code == 0, printed.output
    assert all(word in printed.stdout for word in ("paper", "ours", "difference"))
    assert (tiny.folder / "result.json").exists()
    assert asdict(tiny)["state"] == "not run"


def test_statistics_stand_below_the_comparison_and_a_kept_result_is_shown_without_a_run(
    tiny: Artefact, tmp_path: Path
) -> None:
    where, out = f"--experiments {tiny.folder.parent}", tmp_path / "run"
    missing = command(f"reproduce tiny {where} --show")
    assert missing.exit_code == 2
    assert "no result of tiny is kept" in missing.output
    run = f"reproduce tiny {where} --out {out} --size small --device cpu --chunk 8"
    printed = command(f"{run} --quiet --keep").stdout
    files = sorted(out.glob("cells/cells/*/record.json"))
    for made in map(record.read, files):
        scores = np.array(made.scores["psnr"].private)
        name = "plain, last" if made.spec["cell"]["defenses"] == "none" else "noisy, noise"
        short = r"; the search stopped short on \d of 3 updates"
        listed = re.findall(rf"^(\d+)  {name}(?:{short})? *$", printed, flags=re.MULTILINE)
        found = f"{scores.mean():.2f} +{scores.std(ddof=1):.2f} +.*{scores.max():.2f} "
        assert any(re.match(f"({'|'.join(listed)}) +{found}", line) for line in printed.splitlines()), (listed, found)
    told = json.loads(command(f"{run} --json").stdout)["statistics"]
    assert {line["name"] for line in told} == {"plain, last", "noisy, noise"}
    assert {"psnr_worst", "psnr_above_threshold", "psnr_null_grey"} <= set(told[0])

    for file in files:
        file.unlink()
    shown = command(f"reproduce tiny {where} --show")
    assert shown.exit_code == 0, shown.output
    assert shown.stdout.splitlines()[1:] == [
        line for line in printed.splitlines()[1:] if not line.startswith("records:")
    ]


@pytest.mark.parametrize("line", ["reproduce tiny --size huge", "reproduce tinny", "reproduce tiny --keep"])
def test_wrong_use_of_the_command_costs_one_sentence(line: str, tiny: Artefact) -> None:
    result = command(f"{line} --experiments {tiny.folder.parent}")
    assert result.exit_code == 2
