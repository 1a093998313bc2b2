"""What a client notes of its training replays its update, dropout and uneven batches included."""

import copy
import doctest
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tiny_federation import normed, private
from torch import Tensor, nn

from gradveil.errors import RecordError
from gradveil.federated import (
    About,
    Granted,
    Ledger,
    Recorded,
    audit_recorded,
    granting,
    load_granted,
    replay_granted,
    save_granted,
    save_update,
)
from gradveil.types import LocalTraining

LOCAL = LocalTraining(lr=0.2, momentum=0.5, steps=4, local_batch_size=4, shuffled=True, shares="difference")


def dropping() -> nn.Module:
    return nn.Sequential(*normed().children(), nn.Dropout(0.3))


def trained(local: LocalTraining = LOCAL, *, frozen: str = "") -> tuple[Recorded, Granted]:
    """Train with torch's own optimizer, loader order and dropout, and note what was seen; two epochs of 4 + 2."""
    own, ledger = dropping().train(), Ledger()
    if frozen:
        own.get_parameter(frozen).requires_grad_(False)
    (split,) = private((6,), seed=5)
    inputs, labels = split.inputs(dtype=torch.float64), split.labels
    before = {name: tensor.detach().clone() for name, tensor in own.named_parameters()}
    buffers = {name: tensor.clone() for name, tensor in own.named_buffers()}
    optimizer = torch.optim.SGD([p for p in own.parameters() if p.requires_grad], lr=local.lr, momentum=local.momentum)
    with torch.random.fork_rng():
        torch.manual_seed(9)
        for _ in range(2):
            for rows in torch.randperm(6).split(4):
                optimizer.zero_grad()
                ledger.saw(inputs[rows], labels[rows], rows=rows)
                F.cross_entropy(own(inputs[rows]), labels[rows], reduction=local.reduction).backward()
                optimizer.step()
    update = {name: before[name] - tensor.detach() for name, tensor in own.named_parameters()}
    known = About(loss="cross-entropy", mode="train", batch_size=12, num_classes=3, input_shape=(1, 4, 4))
    about = known.filled(About.of_local(local))
    granted = ledger.close(update)
    assert granted is not None
    return Recorded(before=before, buffers=buffers, update=update, about=about), granted


def test_the_noted_steps_give_the_update_again() -> None:
    recorded, granted = trained()
    state = torch.get_rng_state()
    found = replay_granted(recorded, granted, model=dropping())
    assert found.passed
    assert found.residual < 1e-10
    assert torch.equal(torch.get_rng_state(), state)
    assert granted.sizes.tolist() == [4, 2, 4, 2]
    assert sorted(granted.order[:6].tolist()) == sorted(granted.order[6:].tolist()) == list(range(6))


def test_order_and_random_state_are_needed() -> None:
    recorded, granted = trained()
    turned = replace(granted, random_states=granted.random_states.flip(0))
    assert not replay_granted(recorded, turned, model=dropping()).passed
    rolled = replace(granted, inputs=granted.inputs.roll(4, 0), labels=granted.labels.roll(4, 0))
    assert not replay_granted(recorded, rolled, model=dropping()).passed


@pytest.mark.parametrize(
    ("stated", "setting", "words"),
    [
        ({"lr": 0.02}, "lr", "lr=0.2"),
        ({"momentum": 0.9}, "momentum", "momentum=0.5"),
        ({"reduction": "sum"}, "reduction", "reduction=mean"),
        ({"mode": "eval"}, "mode", "mode=train"),
        ({"steps": 9}, "steps", "steps=4"),
        ({"steps": 1}, "steps", "steps=4"),
    ],
)
def test_a_wrongly_stated_setting_is_named(stated: dict[str, Any], setting: str, words: str) -> None:
    recorded, granted = trained()
    found = replay_granted(replace(recorded, about=replace(recorded.about, **stated)), granted, model=dropping())
    assert (found.setting, found.passed) == (setting, False)
    assert words in found.advice
    assert "explains it" in found.advice


def test_a_sum_over_samples_and_a_frozen_layer_are_replayed() -> None:
    recorded, granted = trained(replace(LOCAL, reduction="sum", lr=0.01))
    assert replay_granted(recorded, granted, model=dropping()).residual < 1e-10
    found = replay_granted(*trained(frozen="0.weight"), model=dropping())
    assert found.setting == "frozen"


def noisy(recorded: Recorded) -> Recorded:
    return replace(recorded, update={name: tensor + 0.1 for name, tensor in recorded.update.items()})


def test_the_update_before_noise_is_what_is_compared() -> None:
    recorded, granted = trained()
    assert replay_granted(noisy(recorded), granted, model=dropping()).passed
    assert not replay_granted(noisy(recorded), replace(granted, clean={}), model=dropping()).passed


def same(left: Tensor, right: Tensor) -> bool:
    return left.dtype == right.dtype and torch.equal(left, right)


def test_a_file_gives_back_what_was_granted_and_is_for_its_owner_alone(tmp_path: Path) -> None:
    _, granted = trained()
    path = tmp_path / "round-1-client-0.safetensors"
    save_granted(granted, path)
    read = load_granted(path)
    assert all(same(getattr(read, n), getattr(granted, n)) for n in ("inputs", "labels", "sizes", "order"))
    assert all(same(read.clean[name], tensor) for name, tensor in granted.clean.items())
    assert path.stat().st_mode & 0o077 == 0
    with pytest.raises(RecordError, match="the witness mod"):
        load_granted(tmp_path / "nothing.safetensors")


def test_an_audit_of_recorded_updates_replays_what_was_granted(tmp_path: Path) -> None:
    recorded, granted = trained()
    save_update(noisy(recorded), tmp_path / "sent" / "a.safetensors")
    save_update(noisy(recorded), tmp_path / "sent" / "b.safetensors")
    save_granted(granted, tmp_path / "own" / "a.safetensors")
    audit_recorded(
        [tmp_path / "sent" / "a.safetensors", tmp_path / "sent" / "b.safetensors"],
        attack="inverting-gradients:steps=1",
        out=tmp_path / "run",
        model=copy.deepcopy(dropping()),
        granted=tmp_path / "own",
    )
    outcomes = []
    for name in ("a", "b"):
        checks = json.loads((tmp_path / "run" / "cells" / name / "preflight.json").read_text())["checks"]
        outcomes.append([check["outcome"] for check in checks if check["name"] == "replay"])
    assert outcomes == [["passed"], ["unknown"]]


def test_a_round_in_which_nothing_was_noted_grants_nothing() -> None:
    ledger = Ledger()
    assert ledger.close({}) is None
    ledger.saw(torch.rand(2, 1, 2, 2), torch.zeros(2))
    ledger.open()
    assert ledger.close({}) is None


def test_examples_run() -> None:
    assert doctest.testmod(granting).failed == 0
