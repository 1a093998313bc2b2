"""Local training on a GPU as a CUDA graph of one step, since small networks spend their time on starting kernels."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Self, TypeAlias

import torch
from torch import Tensor

from gradveil.defenses import StackedNetwork, StepDefense
from gradveil.engine import gradient_function
from gradveil.engine._unrolled import move
from gradveil.engine.capture import capture
from gradveil.types import LocalTraining, State

Record: TypeAlias = Callable[[Callable[[], Tensor], Mapping[str, Tensor]], Callable[[], Tensor] | None]
"""From a step and the state that it changes in place to what repeats it; None where it cannot be recorded."""

Samples: TypeAlias = Callable[[int], tuple[Tensor, Tensor]]
"""From the number of a step to its inputs (V, b, ...) and labels (V, b) or (V, b, K)."""

_WORTH_IT = 12  # steps from which on recording, which itself takes a few, pays


@dataclass(frozen=True, slots=True)
class Graphed:
    """The tensors of a recorded training, which every step changes in place.

    Args:
        weights: (V, *shape) by name.
        buffers: (V, *shape) by name.
        momenta: (V, *shape) the state of the optimizer, by the names that `move` gives it; empty where it has none.
        count: () steps taken, in float64.
    """

    weights: dict[str, Tensor]
    buffers: dict[str, Tensor]
    momenta: dict[str, Tensor]
    count: Tensor

    @classmethod
    def begin(cls, weights: State, buffers: State, local: LocalTraining) -> Self:
        """Copy what training begins with; at rest, momentum is the same as none."""
        endings = ("/1", "/2") if local.optimizer == "adam" else ("",) if local.momentum else ()
        momenta = {name + ending: torch.zeros_like(tensor) for name, tensor in weights.items() for ending in endings}
        count = torch.zeros((), dtype=torch.float64, device=next(iter(weights.values())).device)
        return cls(_copied(weights), _copied(buffers), _copied(momenta), count)

    def named(self) -> dict[str, Tensor]:
        """Name everything that a step changes."""
        groups = {"weight": self.weights, "buffer": self.buffers, "momentum": self.momenta}
        named = {f"{kind}/{name}": tensor for kind, group in groups.items() for name, tensor in group.items()}
        return {**named, "count": self.count}


def can_be_graphed(network: StackedNetwork, local: LocalTraining, step_defense: StepDefense | None, size: int) -> bool:
    """Tell whether every step of a training does the same with other samples, and there are enough of them.

    Args:
        network: of the clients.
        local: their training.
        step_defense: computes gradients with noise or decisions of its own.
        size: samples of a step.
    """
    plain = step_defense is None and local.steps >= _WORTH_IT
    wanted = network.runtime.capture and network.runtime.probe is None and network.make is gradient_function
    if not (plain and wanted and next(network.model.parameters()).is_cuda):
        return False
    own_buffers = network.mode == "eval" or {*dict(network.model.named_buffers())} <= {*network.buffers}
    return own_buffers and not network.draw(size, network.streams)


def graphed_steps(
    network: StackedNetwork, local: LocalTraining, samples: Samples, begun: Graphed, *, record: Record = capture
) -> Graphed:
    """Take all local steps, and return where they led.

    Args:
        network: of V clients.
        local: their training.
        samples: of every step.
        begun: where they begin; it is changed in place.
        record: makes of one step what repeats it.
    """
    inputs, labels = (tensor.clone() for tensor in samples(0))
    current = replace(network, parameters={**network.parameters, **begun.weights}, buffers=begun.buffers)

    def step() -> Tensor:
        found = current(inputs, labels)
        for name, tensor in found.buffers.items():
            begun.buffers[name].copy_(tensor)
        momenta = dict(begun.momenta)
        gradients = dict(zip(network.names, (g.detach() for g in found.gradients), strict=True))
        moved = move(begun.weights, gradients, local, momenta, begun.count)
        for place, values in ((begun.weights, moved), (begun.momenta, momenta)):
            for name, tensor in values.items():
                place[name].copy_(tensor)
        begun.count.add_(1)
        return found.losses

    repeat = record(step, begun.named()) or step
    for number in range(local.steps):
        for place, tensor in zip((inputs, labels), samples(number), strict=True):
            place.copy_(tensor)
        repeat()
    return begun


def _copied(state: State) -> dict[str, Tensor]:
    return {name: tensor.detach().clone(memory_format=torch.contiguous_format) for name, tensor in state.items()}
