"""The weights of a federation's model, one for all or one per client."""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor, nn

from gradveil.engine import trainable
from gradveil.types import State


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """What a federation trains.

    Args:
        parameters: `shape`, or `(clients, *shape)` where every client has its own, by name.
        buffers: likewise; running statistics and whatever else the model keeps.
    """

    parameters: Mapping[str, Tensor]
    buffers: Mapping[str, Tensor]

    @classmethod
    def of(cls, model: nn.Module) -> Self:
        """Copy the weights that a model trains, and its buffers."""
        return cls(
            parameters={name: model.get_parameter(name).detach().clone() for name in trainable(model)},
            buffers={name: tensor.detach().clone() for name, tensor in model.named_buffers()},
        )

    def expand(self, clients: int) -> Self:
        """Give the same weights to some clients."""
        return self._map(lambda tensor: tensor.expand(clients, *tensor.shape))

    def select(self, clients: Sequence[int]) -> Self:
        """Keep the weights of some clients."""
        return self._map(lambda tensor: tensor[list(clients)])

    def mean(self) -> Self:
        """Average over the clients."""
        return self._map(lambda tensor: average(tensor, tensor.new_ones(len(tensor), dtype=torch.float64)))

    def into(self, model: nn.Module) -> nn.Module:
        """Return a copy of a model with these weights, in eval mode."""
        filled = copy.deepcopy(model).eval()
        filled.load_state_dict({**self.parameters, **self.buffers}, strict=False)
        for name, tensor in self.buffers.items():  # also those that a state dict leaves out
            filled.get_buffer(name).copy_(tensor)
        return filled

    def moved(self, update: State, rate: float) -> Self:
        """Take a step against an update."""
        return replace(self, parameters={name: t - rate * update[name] for name, t in self.parameters.items()})

    def with_buffers(self, buffers: State) -> Self:
        """Replace those buffers that are given."""
        return replace(self, buffers={name: buffers.get(name, tensor) for name, tensor in self.buffers.items()})

    def _map(self, change: Callable[[Tensor], Tensor]) -> Self:
        return replace(
            self,
            parameters={name: change(tensor) for name, tensor in self.parameters.items()},
            buffers={name: change(tensor) for name, tensor in self.buffers.items()},
        )


def average(stacked: Tensor, shares: Tensor) -> Tensor:
    """Return the mean of (K, *shape) by shares (K,), which need not add up to 1; of whole numbers the largest."""
    if not stacked.is_floating_point():
        return stacked.amax(0)
    weights = (shares / shares.sum()).to(stacked)
    mean: Tensor = torch.tensordot(weights, stacked, dims=1)
    return mean
