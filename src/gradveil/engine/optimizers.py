"""First-order optimizers for stacks of victims; all state is tensors, changed in place."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias, final

import torch
from torch import Tensor
from typing_extensions import override

OptimizerState: TypeAlias = dict[str, Tensor]


class Optimizer(ABC):
    """How variables move. An optimizer is configuration; its state is named tensors that a checkpoint can keep."""

    lr: float

    @abstractmethod
    def start(self, values: Sequence[Tensor]) -> OptimizerState:
        """Make the state for variables of shape (V, ...)."""

    @abstractmethod
    def move(
        self,
        values: Sequence[Tensor],
        gradients: Sequence[Tensor],
        losses: Tensor,
        *,
        state: OptimizerState,
        rate: Tensor,
        active: Tensor,
    ) -> Tensor:
        """Change values and state in place, for active victims alone.

        Args:
            values: the variables.
            gradients: of the objective, one per variable.
            losses: (V,) the objective at `values`.
            state: from `start`.
            rate: factor on the learning rate, () for all victims or (V,) each one's own.
            active: (V,) victims that still move.

        Returns:
            (V,) victims that have converged and need no further step.
        """

    def iterations(self, steps: int) -> int:
        """Return how many evaluations so many steps take."""
        return steps


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Adam(Optimizer):
    """Adam (Kingma and Ba 2015)."""

    lr: float = 0.1
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8

    @override
    def start(self, values: Sequence[Tensor]) -> OptimizerState:
        state = {"count": torch.zeros((), dtype=values[0].dtype, device=values[0].device)}
        for i, value in enumerate(values):
            state |= {f"first.{i}": torch.zeros_like(value), f"second.{i}": torch.zeros_like(value)}
        return state

    @override
    def move(
        self,
        values: Sequence[Tensor],
        gradients: Sequence[Tensor],
        losses: Tensor,
        *,
        state: OptimizerState,
        rate: Tensor,
        active: Tensor,
    ) -> Tensor:
        count = state["count"].add_(1)
        for i, (value, gradient) in enumerate(zip(values, gradients, strict=True)):
            first = state[f"first.{i}"].lerp_(gradient, 1 - self.beta1)
            second = state[f"second.{i}"].lerp_(gradient.square(), 1 - self.beta2)
            corrected = (second / (1 - self.beta2**count)).sqrt_().add_(self.eps)
            step = own(rate, value) * self.lr * first / (1 - self.beta1**count) / corrected
            value.sub_(torch.where(spread(active, step), step, 0))
        return torch.zeros_like(active)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class SGD(Optimizer):
    """Gradient descent with Nesterov momentum."""

    lr: float = 0.01
    momentum: float = 0.9

    @override
    def start(self, values: Sequence[Tensor]) -> OptimizerState:
        return {f"velocity.{i}": torch.zeros_like(value) for i, value in enumerate(values)}

    @override
    def move(
        self,
        values: Sequence[Tensor],
        gradients: Sequence[Tensor],
        losses: Tensor,
        *,
        state: OptimizerState,
        rate: Tensor,
        active: Tensor,
    ) -> Tensor:
        for i, (value, gradient) in enumerate(zip(values, gradients, strict=True)):
            velocity = state[f"velocity.{i}"].mul_(self.momentum).add_(gradient)
            step = own(rate, value) * self.lr * (gradient + self.momentum * velocity)
            value.sub_(torch.where(spread(active, step), step, 0))
        return torch.zeros_like(active)


def spread(per_victim: Tensor, like: Tensor) -> Tensor:
    """Give a (V,) tensor the number of axes of another, for broadcasting."""
    return per_victim.view(-1, *[1] * (like.ndim - 1))


def own(rate: Tensor, like: Tensor) -> Tensor:
    """Broadcast a rate to a variable (V, ...): one for all stays (), a (V,) rate is each victim's own."""
    return rate if rate.ndim == 0 else spread(rate, like)
