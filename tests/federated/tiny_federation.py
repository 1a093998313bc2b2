"""Tiny clients in float64, and the literal loops beside them."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from typing_extensions import override

from gradveil.data import Split
from gradveil.defenses import Adversary, StackedNetwork, StepDefense, StepResult, UpdateDefense
from gradveil.streams import Streams
from gradveil.types import Gradients, Protected

CLASSES = 3


def network(seed: int = 0) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Conv2d(1, 2, 3), nn.Tanh(), nn.Flatten(), nn.Linear(8, CLASSES)).double()


def normed() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layers = (nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(8, CLASSES))
        return nn.Sequential(*layers).double()


def private(sizes: Sequence[int] = (8, 8, 12), seed: int = 0) -> list[Split]:
    draw = np.random.default_rng(seed)
    return [
        Split(
            torch.from_numpy(draw.integers(256, size=(size, 1, 4, 4), dtype=np.uint8)),
            torch.from_numpy(draw.integers(CLASSES, size=size)),
        )
        for size in sizes
    ]


def weights(model: nn.Module) -> Tensor:
    return torch.cat([tensor.detach().flatten() for tensor in model.parameters()])


def trained(
    model: nn.Module, batches: Sequence[tuple[Tensor, Tensor]], *, lr: float, momentum: float = 0.0
) -> nn.Module:
    """Train a copy with torch's own optimizer, one batch after another."""
    own = copy.deepcopy(model).train()
    optimizer = torch.optim.SGD(own.parameters(), lr=lr, momentum=momentum)
    for inputs, labels in batches:
        optimizer.zero_grad()
        F.cross_entropy(own(inputs), labels).backward()
        optimizer.step()
    return own


def averaged(models: Sequence[nn.Module], sizes: Sequence[int]) -> dict[str, Tensor]:
    """Average state dicts by number of samples, as in the paper of FedAvg."""
    states = [model.state_dict() for model in models]
    return {
        name: sum(size / sum(sizes) * state[name] for size, state in zip(sizes, states, strict=True))
        for name in states[0]
    }


@dataclass(frozen=True)
class SensitiveAlone(StepDefense):
    """Show the model black in the place of samples that are not sensitive."""

    adversary: ClassVar[Adversary] = Adversary(reason="a test")

    @override
    def gradient(
        self, network: StackedNetwork, /, data: Protected, *, sensitive: Tensor | None, streams: Streams
    ) -> StepResult:
        marks = torch.ones_like(data.labels) if sensitive is None else sensitive
        found = network(data.inputs * marks[:, :, None, None, None], data.labels)
        return StepResult(tuple(tensor.detach() for tensor in found.gradients), data)


@dataclass(frozen=True)
class BrokenAtOne(UpdateDefense):
    """Let client 1 share numbers that are none."""

    adversary: ClassVar[Adversary] = Adversary(reason="a test")

    @override
    def apply(self, update: Gradients, *, streams: Streams) -> Gradients:
        broken = torch.tensor([float("nan") if key == (1,) else 0.0 for key in streams.keys])
        return tuple(tensor + broken.to(tensor).view(-1, *[1] * (tensor.ndim - 1)) for tensor in update)
