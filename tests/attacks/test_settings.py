"""Many settings in one stack, against each setting alone."""

import copy
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from gradveil.attacks import DLG, IDLG, Attack, GradientMatching, InvertingGradients, attack_each
from gradveil.attacks._matching import Plan, match, match_each
from gradveil.client import observe
from gradveil.engine import Runtime
from gradveil.models import build
from gradveil.streams import Streams
from gradveil.types import Batch, Knowledge, Observation

VICTIMS = 2
IG = InvertingGradients
SETTINGS: dict[str, Sequence[Attack]] = {
    "inverting-gradients": (
        IG(steps=50, tv=1e-4),
        IG(steps=20, tv=1e-2, lr=0.3, start="zeros"),
        IG(steps=16, tv=0.0, signed=False, boxed=False, start="pattern", weights="linear"),
        IG(steps=50, tv=1e-3, start="smooth", mean=0.1, weights="balanced"),
        IG(steps=16, restarts=3, choice="loss", weights="exponential"),
        IG(steps=12, restarts=3, choice="registered-mean"),
        IG(steps=12, restarts=2, choice="tv", start="uniform"),
        IG(steps=8, variation="isotropic", tv=1e-2),
        IG(steps=8, variation="isotropic", tv=1e-3, opponents=True),
        IG(steps=12, coarse=2, tv=1e-3),
        IG(steps=9, coarse=2, lr=0.2),
        IG(steps=8, restarts=2, choice="pixel-mean", polish=5),
        IG(steps=8, restarts=2, choice="objective", polish=7, objective="row-cosine"),
        IG(steps=8, restarts=2, choice="registered-mean", polish=5, tv=1e-2),
    ),
    "gradient-matching": (
        GradientMatching(steps=50, layers=("first-4",), tv=1e-3),
        GradientMatching(steps=30, layers=("not-fc",), decay=False, lr=0.05),
        GradientMatching(steps=20, objective="layer-cosine", median=5),
        GradientMatching(steps=12, objective="layer-cosine", median=5, weights="linear"),
        GradientMatching(preset="sgd-cosine", steps=20, labels="analytic"),
    ),
    # From a normal start L-BFGS blows rounding errors up a thousandfold every few steps, alone as in a stack.
    "dlg": (DLG(steps=2, inner=5), DLG(steps=6, inner=5, lr=0.5, restarts=2), DLG(steps=10, inner=5, start="uniform")),
    "idlg": (IDLG(steps=10, inner=5), IDLG(steps=7, inner=5, lr=0.3, stop_below=10.0)),
}


@cache
def see(knowledge: Knowledge) -> Observation:
    streams = Streams(seed=21, purpose="test").bind(VICTIMS)
    batch = Batch(streams.uniform("images", (1, 3, 8, 8)).double(), streams.integers("labels", 10, (1,)))
    model = build("lenet", input_shape=(3, 8, 8), num_classes=10, seed=3).double()
    return observe(batch, model, F.cross_entropy, knowledge=knowledge)


@pytest.mark.parametrize(
    ("name", "chunk"), [("inverting-gradients", 5), ("gradient-matching", 100), ("dlg", 100), ("idlg", 3)]
)
def test_a_stack_of_settings_gives_what_each_setting_alone_gives(name: str, chunk: int) -> None:
    labels = Knowledge.LABELS if name == "inverting-gradients" else Knowledge.NOTHING
    settings, seen, streams = SETTINGS[name], see(labels), Streams(seed=0)
    together = attack_each(settings, seen, streams=streams, runtime=Runtime(chunk=chunk))
    for attack, found in zip(settings, together, strict=True):
        alone = attack(seen, streams=streams, runtime=Runtime(chunk=VICTIMS))
        torch.testing.assert_close(found.inputs, alone.inputs, rtol=0, atol=1e-9)
        torch.testing.assert_close(found.objective, alone.objective, rtol=0, atol=1e-9)
        assert torch.equal(found.steps, alone.steps)
        assert found.labels is not None
        assert alone.labels is not None
        torch.testing.assert_close(found.labels, alone.labels, rtol=0, atol=1e-9)


def test_settings_that_can_share_a_stack_make_one_minimization() -> None:
    tasks: list[str] = []
    runtime = Runtime(chunk=100, progress=lambda task, _done, _total: tasks.append(task))
    settings = [IG(steps=3, tv=tv, lr=lr) for tv in (1e-4, 1e-2) for lr in (0.1, 0.2)]
    attack_each(settings, see(Knowledge.LABELS), streams=Streams(seed=0), runtime=runtime)
    assert set(tasks) == {"attack/settings-0/0-8"}


def test_settings_that_differ_in_the_choice_alone_are_searched_once() -> None:
    tasks: list[str] = []
    runtime = Runtime(chunk=100, progress=lambda task, _done, _total: tasks.append(task))
    settings = [IG(steps=3, restarts=3, choice=choice) for choice in ("objective", "pixel-mean", "registered-median")]
    guesses = attack_each(settings, see(Knowledge.LABELS), streams=Streams(seed=0), runtime=runtime)
    assert set(tasks) == {f"attack/settings-0/0-{VICTIMS}"}
    for attack, guess in zip(settings, guesses, strict=True):
        alone = attack(see(Knowledge.LABELS), streams=Streams(seed=0), runtime=Runtime(chunk=VICTIMS))
        torch.testing.assert_close(guess.inputs, alone.inputs, rtol=0, atol=1e-9)


def test_plans_that_need_different_loops_are_refused_in_one_stack() -> None:
    seen, streams = see(Knowledge.LABELS), Streams(seed=0).bind(VICTIMS)
    with pytest.raises(ValueError, match="must agree in objective"):
        match_each(seen, [Plan(), Plan(objective="l1")], streams=streams, runtime=Runtime())


def test_one_plan_for_all_runs_on_plain_numbers() -> None:
    # Equal bits, not only equal numbers: the stack must not leave the fast path when nothing differs.
    seen, streams, plan = see(Knowledge.LABELS), Streams(seed=0).bind(VICTIMS), Plan(steps=5, tv=1e-2, decay=True)
    one, each = (
        match(seen, plan, streams=streams, runtime=Runtime()),
        match_each(seen, [plan, replace(plan)], streams=streams, runtime=Runtime()),
    )
    assert torch.equal(one.inputs, each.inputs)


def test_the_observation_is_left_alone() -> None:
    seen = see(Knowledge.LABELS)
    before = copy.deepcopy(seen.model.state_dict())
    update: list[Tensor] = [tensor.clone() for tensor in seen.update]
    attack_each([IG(steps=2), IG(steps=3)], seen, streams=Streams(seed=0), runtime=Runtime(chunk=4))
    assert all(torch.equal(before[name], tensor) for name, tensor in seen.model.state_dict().items())
    assert all(torch.equal(a, b) for a, b in zip(update, seen.update, strict=True))
    assert all(parameter.requires_grad for parameter in seen.model.parameters())
