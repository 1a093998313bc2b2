"""What the parts of an experiment, and whole experiments, share; and what is kept of a run."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gradveil.attacks._decoders import decode_mixing
from gradveil.attacks._decoders.decode_oracle import DecodeOracle
from gradveil.grid import Settings, run_audit
from gradveil.record import Identification
from gradveil.reproducing import (
    Artefact,
    Means,
    Size,
    _audits,
    _decodings,
    find_artefact,
    find_experiments,
    keep,
    read_plan,
    reproduce,
)
from gradveil.reproducing._kinds import matches
from gradveil.reproducing.measuring import of_share
from gradveil.reproducing.plans import Part, Wanted
from gradveil.spec import spec_from

EXPERIMENTS = find_experiments(Path(__file__).parents[2] / "experiments")
MEANS = Means(settings=Settings(device=torch.device("cpu"), chunk=64, redact=True))
AUDIT = {
    "models": ["mlp:hidden=8"],
    "states": ["trained-with-defense"],
    "victims": 2,
    "batch_size": 4,
    "attacks": ["inverting-gradients:steps=1"],
    "metrics": ["psnr"],
    "adaptive": False,
    "decoys": 5,
    "null_victims": 0,
}


def written(folder: Path, spec: str, rows: list[tuple[str, str]]) -> Artefact:
    """Write an experiment of ours."""
    place = folder / "experiments" / "tiny"
    place.mkdir(parents=True)
    (place.parent / "catalogue.toml").write_text('[[ats]]\nname = "tiny"\ntitle = "a table"\n')
    (place / "spec.toml").write_text(spec)
    printed = [{"row": row, "column": column, "value": None, "unit": ""} for row, column in rows]
    (place / "expected.json").write_text(json.dumps({"paper": "ats", "table": "none", "rows": printed}))
    return find_artefact(place.parent, "tiny")


def tables(**audit: Any) -> dict[str, dict[str, Any]]:
    return {"audit": {**AUDIT, **audit}, "training": {"epochs": 1}}


# What is shared


@pytest.mark.parametrize("size", ["small", "paper"])
@pytest.mark.parametrize("name", ["none", "3-1-7", "43-18-18", "hybrid"])
def test_the_default_attack_is_the_same_audit_in_both_tables_of_policies(name: str, size: Size) -> None:
    plans = [
        read_plan(EXPERIMENTS / table / "spec.toml", size, out=Path("run"))
        for table in ("re-ats-table-2", "ats-table-1a")
    ]
    first, second = (next(part for part in plan.parts if part.name == name) for plan in plans)
    assert first.checkpoint == second.checkpoint
    assert _audits.to_spec(first, MEANS) == _audits.to_spec(second, MEANS)


@pytest.mark.parametrize(
    ("first", "second", "shared"),
    [
        ("loda-table-1", "loda-table-2", {"extractor", "none", "pruning", "loda"}),
        ("loda-table-1", "loda-table-5", {"extractor", "accuracy", "loda"}),
        ("spn-table-8", "spn-table-11", {"cifar10"}),
    ],
)
def test_small_tables_that_share_parts_may_run_into_one_folder(first: str, second: str, shared: set[str]) -> None:
    plans = [read_plan(EXPERIMENTS / name / "spec.toml", "small", out=Path("run")) for name in (first, second)]
    ours, theirs = ({part.name: part for part in plan.parts} for plan in plans)
    assert ours.keys() & theirs.keys() == shared
    for name in shared:
        kinds = {"extractor": ("extractor", "training"), "federation": ("federation",), "audit": ("audit",)}
        for table in kinds.get(ours[name].kind, ("training",)):
            assert ours[name].table(table) == theirs[name].table(table)
        assert {**ours[name].table("decoding"), "defenses": []} == {**theirs[name].table("decoding"), "defenses": []}


def test_every_row_of_the_tables_of_loda_means_one_record_of_the_folder_that_they_share() -> None:
    tables = ("loda-table-1", "loda-table-2", "loda-table-5")
    plans = [read_plan(EXPERIMENTS / name / "spec.toml", "small", out=Path("run")) for name in tables]
    made: dict[str, set[str]] = {}
    for part in (part for plan in plans for part in plan.parts):
        for table in ("audit", "decoding", "network"):
            made.setdefault(part.name, set()).update(part.table(table).get("defenses", ()))
    for wanted in (wanted for plan in plans for wanted in plan.wanted):
        chosen = replace(wanted, match={"defenses": wanted.match["defenses"]})
        assert sum(matches({"defenses": defense}, chosen) for defense in made[wanted.part]) == 1, wanted


def test_parts_that_want_the_same_network_train_it_once(tmp_path: Path) -> None:
    parts = "".join(
        f'[parts.{name}]\nkind = "audit"\n[parts.{name}.audit]\nattacks = ["{attack}"]\n'
        for name, attack in (("first", "inverting-gradients:steps=1"), ("second", "dlg:steps=1"))
    )
    shared = (
        '[small]\n[shared.audit]\nmodels = ["mlp:hidden=8"]\nstates = ["trained"]\nvictims = 1\nmetrics = ["psnr"]\n'
    )
    rest = "adaptive = false\ndecoys = 5\nnull_victims = 0\n[shared.training]\nepochs = 1\n"
    reproduce(written(tmp_path, shared + rest + parts, []), "small", tmp_path / "run", means=MEANS)
    assert len(list((tmp_path / "run").rglob("*.safetensors"))) == 1


def test_only_records_behind_numbers_and_those_of_parts_without_any_are_kept(tmp_path: Path) -> None:
    spec = """
[small]
[shared.federation]
model = "mlp:hidden=8"
clients = 2
rounds = 1
defenses = ["none", "pruning:fraction=0.5"]
[parts.read]
kind = "federation"
[parts.beneath]
kind = "federation"
[[values]]
part = "read"
column = "accuracy"
take = "accuracy"
rows = { plain = "none" }
"""
    artefact, out = written(tmp_path, spec, [("plain", "accuracy")]), tmp_path / "run"
    reproduce(artefact, "small", out, means=MEANS)
    keep(artefact, "small", out)
    kept = [
        file.parent.relative_to(artefact.folder / "records/small") for file in artefact.folder.rglob("federation.json")
    ]
    assert sorted(f"{path.parent}/{path.name[:4]}" for path in kept) == ["beneath/none", "beneath/prun", "read/none"]


# Networks that are trained with images from a pool


def test_a_network_trains_under_a_defense_that_draws_from_the_spec_s_pool(tmp_path: Path) -> None:
    spec = spec_from(tables(defenses=["mixup:k=3,from_pool=1"], pool="test", batch_size=4))
    own = spec_from(tables(defenses=["mixup:k=3,from_pool=1"], batch_size=4))
    for one, name in ((spec, "named"), (own, "own")):
        (done,) = run_audit(one, tmp_path / name, settings=MEANS.settings)
        assert done.status == "done", done.error
    networks = {file.stem for file in tmp_path.rglob("*.safetensors")}
    assert len(networks) == 2, "networks of different pools are different networks"


# Decodings


def decoding(**table: Any) -> Part:
    base = {"dataset": "digits", "model": "mlp:hidden=8", "images": 5, "rounds": 4, "decoys": 10, "public_images": 30}
    return Part(name="part", kind="decoding", tables={"decoding": {**base, "defenses": ["mixup:k=2"], **table}})


def taken(folder: Path, take: str, **where: str) -> float | None:
    wanted = Wanted(row="", column="", part="part", take=take, match={"defenses": "mixup:*", **where})
    found = _decodings.measure(folder, wanted)
    return None if found is None else found.value


def test_true_encodings_go_to_several_decoders_and_each_has_its_own_number(tmp_path: Path) -> None:
    few = "train_steps=1,pairs=4,width=2,refinements=0,steps=1"
    chosen = ["decode-oracle:flipped=no", f"decode-mixing:images=5,k=2,flipped=no,{few}"]
    _decodings.run(decoding(attack="", decoders=chosen), tmp_path, MEANS)
    oracle, told_nothing = (
        taken(tmp_path, "psnr.decoded.mean", decoder=f"{name}*") for name in ("decode-o", "decode-m")
    )
    assert oracle is not None
    assert oracle > 60
    assert taken(tmp_path, "first.decoded.mean", decoder="decode-o*") == 1
    assert taken(tmp_path, "psnr.recovered.mean") is None
    (file,) = tmp_path.rglob(_decodings.FILE)
    record = _decodings.read(file)
    assert [oracle, told_nothing] == [pytest.approx(np.mean(record.decoded[name]["psnr"])) for name in chosen]
    assert record.oracles == chosen[:1]


def test_a_share_of_images_that_are_found_first_is_not_sure_because_all_are_alike(tmp_path: Path) -> None:
    _decodings.run(decoding(attack="", decoders=["decode-oracle:flipped=no"]), tmp_path, MEANS)
    wanted = Wanted(row="", column="", part="part", take="first.decoded.mean", match={"defenses": "mixup:*"})
    found = _decodings.measure(tmp_path, wanted)
    assert found is not None
    assert found.value == 1
    assert found.interval is not None
    assert found.interval[0] == pytest.approx(0.5655, abs=1e-3), "Wilson, 5 of 5"
    spec = spec_from(tables(models=["mlp:hidden=8"], states=["untrained"], batch_size=1, victims=5))
    run_audit(spec, tmp_path / "audit", settings=MEANS.settings)
    audited = _audits.measure(tmp_path / "audit", replace(wanted, take="first.private.mean", match={}))
    assert audited is not None
    assert audited.interval == of_share(audited.value, 5)


def test_a_decoder_that_finds_nothing_is_written_down_and_the_others_stay(tmp_path: Path) -> None:
    impossible = "decode-mixing:images=30,k=2,flipped=no,train_steps=1,pairs=4,width=2,refinements=0,steps=1"
    part = decoding(attack="inverting-gradients:steps=1", decoders=[impossible, "decode-oracle:flipped=no"])
    _decodings.run(part, tmp_path, MEANS)
    (file,) = tmp_path.rglob(_decodings.FILE)
    made = _decodings.read(file)
    assert list(made.decoded) == ["decode-oracle:flipped=no"]
    assert "fewer encodings" in made.failures[impossible]
    assert taken(tmp_path, "psnr.decoded.mean", decoder="decode-mixing*") is None
    assert len(made.recovered["first"]) == 5 * 4


def test_an_interrupted_decoding_does_not_decode_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few = "train_steps=1,pairs=4,width=2,refinements=0,steps=1"
    chosen = ["decode-oracle:flipped=no", f"decode-mixing:images=5,k=2,flipped=no,{few}"]
    part = decoding(attack="", decoders=chosen)

    def stop(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as late:
        late.setattr(decode_mixing, "solve_mixtures", stop)
        with pytest.raises(KeyboardInterrupt):
            _decodings.run(part, tmp_path / "killed", MEANS)
    kept = sorted(file.stem[8:].rpartition("_")[2][:7] for file in (tmp_path / "killed").rglob("*.safetensors"))
    assert kept == ["decoded", "mapping", "similar"]
    with monkeypatch.context() as early:
        early.setattr(decode_mixing, "train_similarity", stop)
        early.setattr(DecodeOracle, "decode", stop)
        _decodings.run(part, tmp_path / "killed", MEANS)
    assert not list((tmp_path / "killed").rglob("*.safetensors"))
    _decodings.run(part, tmp_path / "whole", MEANS)
    first, second = (_decodings.read(next((tmp_path / n).rglob(_decodings.FILE))) for n in ("killed", "whole"))
    assert first.decoded == second.decoded


# Identification


def test_the_share_of_images_that_are_found_first_is_read_off_a_record(tmp_path: Path) -> None:
    (made,) = run_audit(spec_from(tables(states=["untrained"], batch_size=2)), tmp_path, settings=MEANS.settings)
    ranks = Identification(ranks=[[0.0, 0.5], [3.0, 0.0]], nulls={}, decoys=5)
    changed = replace(made, identification={"correlation": ranks})
    assert _audits._scores(changed, "first.private.mean").tolist() == [[1, 0], [0, 1]]
    assert _audits._scores(changed, "first.private.mean.last-1").tolist() == [[0], [1]]
