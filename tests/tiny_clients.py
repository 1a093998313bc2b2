"""Tiny clients in float64, defenses that are easy to follow, and the literal computation beside them."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from typing_extensions import override

from gradveil.client import Client, Step, step
from gradveil.defenses import (
    Adversary,
    DataDefense,
    ModelDefense,
    StackedNetwork,
    StepDefense,
    StepResult,
    UpdateDefense,
)
from gradveil.streams import Streams
from gradveil.types import Batch, Gradients, Knowledge, LossFn, Protected, State

VICTIMS, SIZE, CLASSES = 3, 5, 4
STREAMS = Streams(seed=0, purpose="client")
EVERYTHING = ~Knowledge.NOTHING


def network(seed: int = 0) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        layers = (nn.Conv2d(2, 3, 3), nn.Tanh(), nn.Flatten(), nn.Linear(12, CLASSES))
        return nn.Sequential(*layers).double()


def normed() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(12, CLASSES)).double()


def private(victims: int = VICTIMS) -> Batch:
    streams = Streams(seed=1, purpose="test").bind(victims)
    inputs = streams.uniform("inputs", (SIZE, 2, 4, 4)).double()
    return Batch(inputs, streams.integers("labels", CLASSES, (SIZE,)))


def taken(batch: Batch | None = None, *, model: nn.Module | None = None, **settings: Any) -> Step:
    beside = {
        k: settings.pop(k) for k in ("knowledge", "auxiliary", "parameters", "buffers", "runtime") if k in settings
    }
    client = Client(model=model or network(), loss=settings.pop("loss", F.cross_entropy), **settings)
    return step(batch or private(), client, streams=STREAMS, **beside)


def autograd(model: nn.Module, batch: Batch, victim: int) -> list[Tensor]:
    loss = F.cross_entropy(model(batch.inputs[victim]), batch.labels[victim])
    return list(torch.autograd.grad(loss, list(model.parameters())))


def assert_equal(found: Sequence[Tensor], expected: Sequence[Tensor], tolerance: float = 1e-10) -> None:
    left, right = (torch.cat([t.flatten() for t in tensors]) for tensors in (found, expected))
    assert float((left - right).norm()) <= tolerance * float(right.norm())


@dataclass(frozen=True)
class Mirror(DataDefense):
    """Turn every image around, and add its negative."""

    adversary: ClassVar[Adversary] = Adversary(reason="a test")

    @override
    def protect(self, data: Protected, *, pool: Tensor | None, streams: Streams) -> Protected:
        inputs = torch.cat([data.inputs.flip(-1), 1 - data.inputs], 1)
        twice = (torch.cat([tensor, tensor], 1) for tensor in (data.labels, data.origin, data.weights))
        return Protected(inputs, *twice)


@dataclass(frozen=True)
class PoolPatch(DataDefense):
    """Replace every image by the first of the pool."""

    adversary: ClassVar[Adversary] = Adversary(reason="a test")

    @override
    def protect(self, data: Protected, *, pool: Tensor | None, streams: Streams) -> Protected:
        assert pool is not None
        return replace(data, inputs=pool[0].expand_as(data.inputs))


class Scaled(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.scale = nn.Parameter(torch.tensor(2.0, dtype=torch.float64))

    @override
    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.inner(inputs)
        return outputs * self.scale


@dataclass(frozen=True)
class ServerScale(ModelDefense):
    """Scale the outputs, in the model that the server sends."""

    adversary: ClassVar[Adversary] = Adversary(reason="a test")
    server_side: ClassVar[bool] = True

    @override
    def wrap(self, model: nn.Module) -> nn.Module:
        return Scaled(model)


@dataclass(frozen=True)
class SecretShift(ModelDefense):
    """Shift the first weights and the loss at the client alone."""

    adversary: ClassVar[Adversary] = Adversary(reason="a test")

    @override
    def wrap(self, model: nn.Module) -> nn.Module:
        changed = copy.deepcopy(model)
        with torch.no_grad():
            next(changed.parameters()).add_(0.5)
        return changed

    @override
    def wrap_loss(self, loss: LossFn) -> LossFn:
        return lambda outputs, labels: 3 * loss(outputs, labels)


class Headed(nn.Module):
    """A network of the same names with a secret bias behind it."""

    def __init__(self, layers: nn.Module) -> None:
        super().__init__()
        for name, layer in layers.named_children():
            self.add_module(name, layer)
        self.secret = nn.Parameter(torch.zeros(CLASSES, dtype=torch.float64))

    @override
    def forward(self, inputs: Tensor) -> Tensor:
        for layer in self.children():
            inputs = layer(inputs)
        return inputs + self.secret


@dataclass(frozen=True)
class SecretBias(ModelDefense):
    """Add a private bias to the outputs, another one for every client."""

    adversary: ClassVar[Adversary] = Adversary(reason="a test")

    @override
    def wrap(self, model: nn.Module) -> nn.Module:
        return Headed(model)

    @override
    def start(self, model: nn.Module, *, streams: Streams) -> State:
        return {"secret": streams.normal("secret", (CLASSES,)).double()}


@dataclass(frozen=True)
class Twice(StepDefense):
    """Double the gradient of the first sample, and say that the model saw it alone."""

    adversary: ClassVar[Adversary] = Adversary(reason="a test")

    @override
    def gradient(
        self, network: StackedNetwork, /, data: Protected, *, sensitive: Tensor | None, streams: Streams
    ) -> StepResult:
        first = Protected(data.inputs[:, :1], data.labels[:, :1], data.origin[:, :1], data.weights[:, :1])
        if sensitive is not None:
            first = replace(first, inputs=first.inputs * sensitive[:, :1, None, None, None])
        found = network(first.inputs, first.labels).gradients
        return StepResult(tuple(2 * tensor.detach() for tensor in found), first)


@dataclass(frozen=True)
class Negate(UpdateDefense):
    """Turn the update around."""

    adversary: ClassVar[Adversary] = Adversary(reason="a test")

    @override
    def apply(self, update: Gradients, *, streams: Streams) -> Gradients:
        return tuple(-tensor for tensor in update)
