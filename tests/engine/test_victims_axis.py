"""A victim's result does not depend on who else is in its stack, through whole attacks."""

import copy
from dataclasses import replace
from functools import cache

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from gradveil.attacks import DLG, Attack, InvertingGradients
from gradveil.client import Client, step
from gradveil.engine import Runtime, normalized
from gradveil.streams import Streams
from gradveil.types import Batch, Knowledge, Observation, Reconstruction

VICTIMS = 4
ATTACKS = [
    DLG(steps=10, inner=5, lr=0.2, history=4),
    InvertingGradients(steps=50),
    InvertingGradients(steps=50, restarts=2, signed=False, boxed=False),
]


def observe(*, size: int = 1, knowledge: Knowledge = Knowledge.LABELS) -> Observation:
    """Let tiny clients in float64 take a step."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        plain = nn.Sequential(nn.Conv2d(1, 4, 3, 2), nn.Sigmoid(), nn.Flatten(), nn.Linear(36, 4)).double()
        inputs, labels = torch.rand(VICTIMS, size, 1, 8, 8).double(), torch.randint(4, (VICTIMS, size))
    client = Client(model=normalized(plain, [0.4], [0.3]), loss=F.cross_entropy)
    return step(
        Batch(inputs, labels), client, streams=Streams(seed=0, purpose="client"), knowledge=knowledge
    ).observation


@cache
def attack_all(attack: Attack) -> Reconstruction:
    return attack(observe(), streams=Streams(seed=4), runtime=Runtime(chunk=VICTIMS))


def close(first: Reconstruction, second: Reconstruction) -> None:
    torch.testing.assert_close(first.inputs, second.inputs, rtol=0, atol=1e-9)
    torch.testing.assert_close(first.objective, second.objective, rtol=0, atol=1e-9)
    torch.testing.assert_close(first.labels, second.labels, rtol=0, atol=1e-9)
    assert torch.equal(first.steps, second.steps)


def rows(guess: Reconstruction, keep: list[int]) -> Reconstruction:
    assert guess.labels is not None
    return replace(
        guess,
        inputs=guess.inputs[keep],
        objective=guess.objective[keep],
        labels=guess.labels[keep],
        steps=guess.steps[keep],
    )


@pytest.mark.parametrize(
    ("attack", "chunk"), [*((attack, chunk) for attack in ATTACKS[:2] for chunk in (1, 2, 3)), (ATTACKS[2], 3)], ids=str
)
def test_every_chunk_gives_what_the_whole_stack_gives(attack: Attack, chunk: int) -> None:
    whole = attack_all(attack)
    cut = attack(observe(), streams=Streams(seed=4), runtime=Runtime(chunk=chunk))
    close(cut, whole)
    assert (whole.chunk, cut.chunk) == (VICTIMS, chunk)
    assert float(whole.objective.max()) > 0
    assert len(whole.inputs.flatten(1).sum(1).unique()) == VICTIMS


@pytest.mark.parametrize("attack", ATTACKS, ids=str)
def test_victims_may_come_in_any_order(attack: Attack) -> None:
    observation = observe(size=2, knowledge=Knowledge.NOTHING)
    streams = Streams(seed=4).bind(VICTIMS)
    whole = attack(observation, streams=streams)
    order = [3, 0]
    some = attack(observation.select(order), streams=streams.select(order))
    close(some, rows(whole, order))


@pytest.mark.parametrize("attack", ATTACKS[:2], ids=str)
def test_out_of_memory_changes_the_chunk_and_nothing_else(attack: Attack) -> None:
    observation, whole = observe(), attack_all(attack)

    class Small(nn.Module):
        """Has room for two images, which the trial of the fast path takes."""

        def __init__(self, model: nn.Module) -> None:
            super().__init__()
            self.inner = copy.deepcopy(model)
            self.inner._forward_pre_hooks.clear()

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            if len(inputs) > 2:
                raise torch.cuda.OutOfMemoryError("CUDA out of memory")
            outputs: torch.Tensor = self.inner(inputs)
            return outputs

    small = normalized(Small(observation.model), [0.4], [0.3])
    names = tuple(f"inner.{name}" for name in observation.names)
    found = attack(replace(observation, model=small, names=names), streams=Streams(seed=4))
    assert (whole.chunk, found.chunk) == (VICTIMS, 2)
    close(found, whole)


@pytest.mark.parametrize("attack", ATTACKS[:2], ids=str)
def test_traces_of_chunks_that_end_at_different_times_join(attack: Attack) -> None:
    observation = observe()
    observation.update[0][0] = torch.nan
    found = attack(observation, streams=Streams(seed=4), runtime=Runtime(chunk=1, trace=True))
    assert found.trace is not None
    assert found.trace.shape == (VICTIMS, 50)
    assert found.diverged.tolist() == [True] + [False] * (VICTIMS - 1)
    torch.testing.assert_close(found.inputs[1:], attack_all(attack).inputs[1:], rtol=0, atol=1e-9)


@pytest.mark.parametrize("attack", ATTACKS, ids=str)
def test_same_seed_same_bits_and_nothing_outside_is_touched(attack: Attack) -> None:
    observation = observe()
    weights, update = copy.deepcopy(observation.model.state_dict()), [t.clone() for t in observation.update]
    random = torch.get_rng_state()
    again, other = (attack(observation, streams=Streams(seed=seed)) for seed in (4, 5))
    assert torch.equal(again.inputs, attack_all(attack).inputs)
    assert not torch.equal(again.inputs, other.inputs)
    assert torch.equal(torch.get_rng_state(), random)
    assert all(torch.equal(t, weights[name]) for name, t in observation.model.state_dict().items())
    assert all(torch.equal(t, u) for t, u in zip(observation.update, update, strict=True))
    assert all(parameter.requires_grad for parameter in observation.model.parameters())
