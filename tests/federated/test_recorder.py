"""Recorded updates: written, read, observed, checked and replayed."""

import copy
import doctest
import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
import torch.nn.functional as F
from tiny_federation import network, normed, private
from torch import nn

from gradveil.attacks import DLG
from gradveil.defenses import GaussianNoise
from gradveil.errors import RecordError
from gradveil.federated import Federation, Sighting, checking, federate, observing, recorder
from gradveil.federated.checking import Check, preflight
from gradveil.federated.observing import grantable, ruled_out, to_observation
from gradveil.federated.recorder import About, Recorded, load_update, recorded_from, save_update
from gradveil.federated.replaying import Replay, replay
from gradveil.models import build
from gradveil.streams import Streams
from gradveil.types import Batch, Knowledge, LocalTraining

EVERYTHING = Knowledge.BUFFERS | Knowledge.LOCAL_TRAINING
SETTINGS = Federation(rounds=2, batch_size=4, local=LocalTraining(lr=0.2, momentum=0.5))


def sighted(model: nn.Module | None = None, settings: Federation = SETTINGS, **beside: Any) -> list[Sighting]:
    seen: list[Sighting] = []
    model = model or normed()
    federate(model, private(), settings=settings, watch=seen.append, knowledge=EVERYTHING, **beside)
    return seen


@cache
def made(model: nn.Module | None = None, settings: Federation = SETTINGS, **beside: Any) -> tuple[Recorded, Batch]:
    """Return the update of client 2 in round 2, and its batch; nobody changes them."""
    last = sighted(model, settings, **beside)[5]
    return recorded_from(last, About(loss="cross-entropy")), last.evidence.batch


def outcomes(checks: tuple[Check, ...]) -> dict[str, str]:
    return {check.name: check.outcome for check in checks}


def test_a_file_gives_back_what_was_recorded(tmp_path: Path) -> None:
    recorded, _ = made()
    save_update(recorded, tmp_path / "update.safetensors")
    read = load_update(tmp_path / "update.safetensors")
    assert read.about == recorded.about
    for part in ("before", "buffers", "update", "buffers_after"):
        left, right = getattr(recorded, part), getattr(read, part)
        assert left
        assert left.keys() == right.keys()
        assert all(torch.equal(left[name], right[name]) for name in left)


def test_a_file_is_for_its_owner_alone_and_holds_no_pickle(tmp_path: Path) -> None:
    save_update(made()[0], tmp_path / "update.safetensors")
    assert (tmp_path / "update.safetensors").stat().st_mode & 0o077 == 0
    assert safetensors.torch.load_file(tmp_path / "update.safetensors")


def test_the_unknown_is_stored_as_unknown(tmp_path: Path) -> None:
    save_update(Recorded(before={}, buffers={}, update={"w": torch.ones(1)}), tmp_path / "u.safetensors")
    with safetensors.safe_open(str(tmp_path / "u.safetensors"), framework="pt") as file:
        header = json.loads(file.metadata()["gradveil-update"])
    assert header["lr"] == header["mode"] == header["batch_size"] == "unknown"
    assert load_update(tmp_path / "u.safetensors").about == About()


@pytest.mark.parametrize(
    ("about", "words"),
    [
        (About(lr=-1.0), "lr must be above 0 and finite"),
        (About(steps=0, lr=0.1), "steps must be at least 1, got 0"),
        (About(steps=2, shares="gradient"), "2 local steps shares a difference"),
    ],
)
def test_local_training_that_cannot_be_is_refused(about: About, words: str, tmp_path: Path) -> None:
    file = tmp_path / "u.safetensors"
    save_update(Recorded(before={}, buffers={}, update={"w": torch.ones(1)}, about=about), file)
    with pytest.raises(RecordError, match=f"u.safetensors states local training that cannot be .*{words}"):
        load_update(file)


@pytest.mark.parametrize(
    "about", [About(nesterov=True), About(steps=3), About(local_batch_size=2, shares="difference")]
)
def test_local_training_of_which_a_part_is_known_is_read(about: About, tmp_path: Path) -> None:
    file = tmp_path / "u.safetensors"
    save_update(Recorded(before={}, buffers={}, update={"w": torch.ones(1)}, about=about), file)
    assert load_update(file).about == about


def test_a_simulation_records_what_it_knows() -> None:
    about = made()[0].about
    assert (about.batch_size, about.steps, about.local_batch_size, about.lr, about.mode) == (12, 3, 4, 0.2, "train")
    assert (about.client, about.round, about.shares) == (2, 2, "difference")
    assert about.unknown == ("model", "mean", "std", "defenses")


def test_an_observation_is_what_the_server_saw() -> None:
    sighting = sighted()[5]
    recorded = recorded_from(sighting, About(loss="cross-entropy"))
    found = to_observation(recorded, model=normed(), knowledge=EVERYTHING)
    seen = sighting.observation
    assert found.names == seen.names
    assert all(torch.equal(a, b) for a, b in zip(found.update, seen.update, strict=True))
    assert (found.input_shape, found.num_classes, found.mode) == (seen.input_shape, seen.num_classes, seen.mode)
    assert found.local == seen.local
    assert seen.parameters is not None
    for name, tensor in found.model.named_parameters():
        assert torch.equal(tensor, seen.parameters[name][0])


def test_a_recording_that_names_its_model_needs_none() -> None:
    model = build("mlp:hidden=4", input_shape=(1, 4, 4), num_classes=3)
    recorded, _ = made(model, replace(SETTINGS, algorithm="fedsgd", batch_size=None))
    named = replace(recorded, about=replace(recorded.about, model="mlp:hidden=4", mean=(0.5,), std=(0.2,)))
    observation = to_observation(named)
    guess = DLG(steps=2)(observation, streams=Streams(seed=0, purpose="attack"))
    assert guess.inputs.shape == (1, 12, 1, 4, 4)
    assert torch.equal(observation.model.get_parameter("fc.weight"), named.before["fc.weight"])


def test_what_is_unknown_rules_attacks_out() -> None:
    recorded, _ = made()
    assert grantable(recorded) == EVERYTHING
    blind = replace(recorded, buffers_after={}, about=replace(recorded.about, model="x", momentum=None))
    assert grantable(blind) == Knowledge.NOTHING
    assert "dlg" not in ruled_out(blind)
    assert "batch_size" in ruled_out(replace(blind, about=replace(blind.about, batch_size=None)))["dlg"]
    with pytest.raises(RecordError, match="cannot grant buffers"):
        to_observation(blind, model=normed(), knowledge=Knowledge.BUFFERS)
    with pytest.raises(RecordError, match="does not say momentum"):
        blind.about.local()
    with pytest.raises(RecordError, match="does not say mode"):
        to_observation(replace(recorded, about=replace(recorded.about, mode=None)), model=normed())


@pytest.mark.parametrize(
    ("header", "words"),
    [
        (None, "not a recorded update"),
        ("{", "not JSON"),
        ('{"format": 9}', "format 9"),
        ('{"format": 1, "lr": "fast"}', "lr is 'fast'"),
        ('{"format": 1, "mode": "exec"}', "mode is 'exec'"),
        ('{"format": 1, "input_shape": ["a"]}', "input_shape"),
    ],
)
def test_a_file_that_is_none_is_refused(header: str | None, words: str, tmp_path: Path) -> None:
    metadata = None if header is None else {"gradveil-update": header}
    safetensors.torch.save_file({"update/w": torch.ones(1)}, tmp_path / "u.safetensors", metadata=metadata)
    with pytest.raises(RecordError, match=words):
        load_update(tmp_path / "u.safetensors")


def test_half_a_file_is_refused(tmp_path: Path) -> None:
    save_update(made()[0], tmp_path / "u.safetensors")
    (tmp_path / "half.safetensors").write_bytes((tmp_path / "u.safetensors").read_bytes()[:-100])
    with pytest.raises(RecordError, match="not a whole"):
        load_update(tmp_path / "half.safetensors")
    with pytest.raises(RecordError, match="no recorded update"):
        load_update(tmp_path / "none.safetensors")


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_preflight_passes_what_is_stated_rightly(optimizer: Any) -> None:
    recorded, _ = made(settings=replace(SETTINGS, local=LocalTraining(lr=0.05, optimizer=optimizer)))
    found = outcomes(preflight(recorded, normed()))
    assert set(found) >= {"model", "shapes", "numbers", "size", "statistics"}
    assert set(found.values()) == {"passed"}


def test_preflight_passes_gradients() -> None:
    recorded, _ = made(settings=replace(SETTINGS, algorithm="fedsgd"))
    assert set(outcomes(preflight(recorded, normed())).values()) == {"passed"}


def broken(recorded: Recorded, how: str) -> Recorded:
    update = {name: tensor.clone() for name, tensor in recorded.update.items()}
    about = recorded.about
    changes: dict[str, dict[str, Any]] = {
        "model": {"before": {**recorded.before, "extra": torch.ones(1)}},
        "shapes": {"update": {**update, "0.weight": torch.ones(3)}},
        "numbers": {"update": {**update, "0.weight": update["0.weight"] * float("nan")}},
        "size": {"about": replace(about, lr=about.lr and about.lr / 100)},
        "statistics": {"about": replace(about, mode="eval")},
        "still": {"buffers_after": recorded.buffers},
    }
    return replace(recorded, **changes[how])


@pytest.mark.parametrize("how", ["model", "shapes", "numbers", "size", "statistics", "still"])
def test_preflight_names_what_does_not_fit(how: str) -> None:
    found = outcomes(preflight(broken(made()[0], how), normed()))
    assert found[how if how != "still" else "statistics"] == "failed"


def test_preflight_counts_batches() -> None:
    """Batch norm of torch counts its steps, so that a wrong number of them shows."""
    model, (split, *_) = normed(), private()
    own = copy.deepcopy(model).train()
    optimizer = torch.optim.SGD(own.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        F.cross_entropy(own(split.inputs(dtype=torch.float64)), split.labels).backward()
        optimizer.step()
    parameters = dict(model.named_parameters())
    recorded = Recorded(
        before=parameters,
        buffers=dict(model.named_buffers()),
        update={name: (parameters[name] - tensor).detach() for name, tensor in own.named_parameters()},
        buffers_after=dict(own.named_buffers()),
        about=About.of_local(LocalTraining(lr=0.1, steps=3, shares="difference")).filled(About(mode="train")),
    )
    assert outcomes(preflight(recorded, model))["steps"] == "passed"
    wrong = replace(recorded, about=replace(recorded.about, steps=2))
    assert outcomes(preflight(wrong, model))["steps"] == "failed"
    batch = Batch(split.inputs(dtype=torch.float64)[None], split.labels[None])
    assert replay(recorded, batch, model=model, loss=F.cross_entropy).residual < 1e-10


def test_preflight_says_what_it_cannot_tell() -> None:
    recorded = replace(made()[0], about=About())
    found = outcomes(preflight(recorded))
    assert found["model"] == found["size"] == found["statistics"] == "unknown"
    assert found["shapes"] == found["numbers"] == "passed"


def replayed(about: dict[str, Any], model: nn.Module | None = None, **beside: Any) -> Replay:
    recorded, batch = made(model, **beside)
    stated = replace(recorded, about=replace(recorded.about, **about))
    return replay(stated, batch, model=model or normed())


def test_a_rightly_stated_update_is_replayed() -> None:
    found = replayed({})
    assert found.passed
    assert found.residual < 1e-10


@pytest.mark.parametrize(
    ("setting", "wrong"),
    [
        ("reduction", "sum"),
        ("mode", "eval"),
        ("lr", 0.02),
        ("momentum", 0.0),
        ("steps", 2),
        ("weight_decay", 0.01),
    ],
)
def test_a_wrongly_stated_setting_is_named(setting: str, wrong: Any) -> None:
    found = replayed({setting: wrong})
    assert not found.passed
    assert found.setting == setting
    assert "which explains it" in found.advice
    assert min(found.tried.values()) < 1e-3 < found.residual


def test_an_odd_learning_rate_is_found_from_a_single_step() -> None:
    found = replayed({"lr": 0.7}, settings=replace(SETTINGS, batch_size=None))
    assert found.setting == "lr"
    assert "lr=0.2 " in found.advice


def test_frozen_layers_are_named() -> None:
    recorded, batch = made(network(), replace(SETTINGS, batch_size=None))
    still = {name: torch.zeros_like(t) if name.startswith("0") else t for name, t in recorded.update.items()}
    found = replay(replace(recorded, update=still), batch, model=network())
    assert found.setting == "frozen"
    assert "0.weight, 0.bias frozen" in found.advice


def test_other_samples_are_not_explained_by_a_setting() -> None:
    recorded, _ = made()
    other = private(seed=5)[2]
    batch = Batch(other.inputs(dtype=torch.float64)[None], other.labels[None])
    found = replay(recorded, batch, model=normed())
    assert not found.passed
    assert "which explains it" not in found.advice


def test_noise_needs_the_update_before_it() -> None:
    last = sighted(defenses=[GaussianNoise(std=0.01)])[5]
    recorded, batch = recorded_from(last, About(loss="cross-entropy")), last.evidence.batch
    assert not replay(recorded, batch, model=normed()).passed
    clean = {name: tensor[0] for name, tensor in zip(recorded.update, last.evidence.clean, strict=True)}
    assert replay(recorded, batch, model=normed(), clean=clean).passed


def test_examples_run() -> None:
    for module in (recorder, observing, checking):
        assert doctest.testmod(module).failed == 0
