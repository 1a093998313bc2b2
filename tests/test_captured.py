"""Local training that repeats one recorded step gives what training step by step gives."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gradveil._captured import Graphed, Record, can_be_graphed, graphed_steps
from gradveil.client import Client, protect_data, stacked_network, step
from gradveil.defenses import DPSGD, StackedNetwork
from gradveil.engine import Runtime
from gradveil.engine.looped import looped_function
from gradveil.streams import Streams
from gradveil.types import Batch, LocalTraining

VICTIMS, HELD = 3, 30
LOCALS = {
    "plain": LocalTraining(lr=0.2, steps=15, local_batch_size=2, shares="difference"),
    "momentum": LocalTraining(
        lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01, steps=14, local_batch_size=4, shares="difference"
    ),
    "adam": LocalTraining(optimizer="adam", lr=0.01, steps=13, local_batch_size=5, shares="difference"),
}
NEEDS_A_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def network(device: str = "cpu") -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(8)
        # A bias before batch normalization would have gradients of rounding alone, which Adam makes 1e8 times larger.
        first = nn.Conv2d(1, 3, 3, bias=False)
        layers = (first, nn.BatchNorm2d(3), nn.Tanh(), nn.Flatten(), nn.Linear(12, 4))
        return nn.Sequential(*layers).double().to(device)


def batch(device: str = "cpu") -> Batch:
    streams = Streams(seed=12, purpose="test").bind(VICTIMS)
    inputs, labels = streams.uniform("inputs", (HELD, 1, 4, 4)).double(), streams.integers("labels", 4, (HELD,))
    return Batch(inputs, labels).to(device)


def stacked(model: nn.Module, local: LocalTraining, data: Batch, runtime: Runtime | None = None) -> StackedNetwork:
    """Return the clients' network with buffers of their own, as a federation makes it."""
    client = Client(model=model, loss=F.cross_entropy, local=local, mode="train")
    streams = Streams(seed=1, purpose="client").bind(VICTIMS)
    return stacked_network(
        client,
        protect_data(data, client, streams=streams),
        parameters={name: t.detach().expand(VICTIMS, *t.shape) for name, t in model.named_parameters()},
        buffers={name: t.expand(VICTIMS, *t.shape) for name, t in model.named_buffers()},
        streams=streams,
        runtime=runtime or Runtime(precision="float32"),
    )


def eagerly(repeated: Callable[[], Tensor], state: Mapping[str, Tensor]) -> Callable[[], Tensor] | None:
    """Warm up as a GPU does, put the state back, and leave recording out."""
    before = {name: tensor.clone() for name, tensor in state.items()}
    for _ in range(3):
        repeated()
    for name, tensor in state.items():
        tensor.copy_(before[name])
    return None


@pytest.mark.parametrize("record", [lambda step, state: None, eagerly], ids=["at once", "warmed up"])
@pytest.mark.parametrize("name", LOCALS)
def test_steps_that_change_tensors_in_place_lead_where_the_others_do(name: str, record: Record) -> None:
    local, model, data = LOCALS[name], network(), batch()
    own, size = stacked(model, local, data), local.local_batch_size or HELD
    client = Client(model=model, loss=F.cross_entropy, local=local, mode="train")
    wanted = step(data, client, streams=own.streams, parameters=own.parameters, buffers=own.buffers)

    def samples(number: int) -> tuple[Tensor, Tensor]:
        position = number % (HELD // size)
        part = slice(position * size, (position + 1) * size)
        return data.inputs[:, part], data.labels[:, part]

    begun = Graphed.begin(own.parameters, own.buffers, local)
    found = graphed_steps(own, local, samples, begun, record=record)
    for key, update in zip(wanted.observation.names, wanted.observation.update, strict=True):
        made = own.parameters[key] - found.weights[key]
        # A power of a tensor and of a number may differ in the last digit.
        assert torch.allclose(made, update, rtol=1e-12) if name == "adam" else torch.equal(made, update)
    assert all(torch.equal(found.buffers[key], t) for key, t in wanted.evidence.buffers_after.items())


def test_only_trainings_whose_steps_are_all_alike_are_recorded_and_only_on_a_gpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    local, data = LOCALS["plain"], batch()
    own = stacked(network(), local, data)
    assert not can_be_graphed(own, local, None, 2)
    monkeypatch.setattr(torch.nn.Parameter, "is_cuda", True, raising=False)
    assert can_be_graphed(own, local, None, 2)
    assert not can_be_graphed(own, local, DPSGD(), 2)
    assert not can_be_graphed(own, replace(local, steps=3), None, 2)
    assert can_be_graphed(own, replace(local, optimizer="adam"), None, 2)
    assert not can_be_graphed(replace(own, make=looped_function), local, None, 2)
    assert not can_be_graphed(replace(own, buffers={}), local, None, 2)
    assert not can_be_graphed(replace(own, draw=lambda size, streams: {"noise": torch.zeros(1)}), local, None, 2)
    for runtime in (Runtime(capture=False), Runtime(probe=2)):
        assert not can_be_graphed(replace(own, runtime=runtime), local, None, 2)


def test_measuring_memory_takes_no_more_steps_than_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []

    class Counting(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - the name torch gives it
            taken.append(len(input))
            return super().forward(input)

    local = LOCALS["plain"]
    client = Client(model=nn.Sequential(nn.Flatten(), Counting(16, 4)).double(), loss=F.cross_entropy, local=local)
    many = Batch(*(torch.cat([tensor] * 3) for tensor in (batch().inputs, batch().labels)))
    step(many, client, streams=Streams(purpose="client"), runtime=Runtime(precision="float32"))
    asked = 1  # how many outputs there are
    measured = 2  # steps, of one victim and of four
    assert len(taken) == asked + 2 * measured + local.steps


@NEEDS_A_GPU
@pytest.mark.parametrize("shuffled", [False, True])
@pytest.mark.parametrize("name", LOCALS)
def test_a_recorded_training_gives_what_an_eager_one_and_the_cpu_give(name: str, shuffled: bool) -> None:
    local = replace(LOCALS[name], shuffled=shuffled)
    found: list[Any] = []
    for device, capture in (("cuda", True), ("cuda", False), ("cpu", False)):
        model = network(device)
        own = stacked(model, local, batch(device), Runtime(precision="float32", capture=capture))
        client = Client(model=model, loss=F.cross_entropy, local=local, mode="train")
        taken = step(
            batch(device),
            client,
            streams=own.streams,
            parameters=own.parameters,
            buffers=own.buffers,
            runtime=own.runtime,
        )
        tensors = [*taken.observation.update, *taken.evidence.buffers_after.values()]
        found.append(torch.cat([tensor.double().flatten().cpu() for tensor in tensors]))
    assert (found[0] - found[1]).norm() <= 1e-10 * found[1].norm()
    assert (found[0] - found[2]).norm() <= 1e-10 * found[2].norm()
