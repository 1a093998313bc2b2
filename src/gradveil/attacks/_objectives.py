"""Distances between a trial update and the observed one, victim by victim."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from gradveil.engine import spread
from gradveil.types import Gradients


def inner(first: Gradients, second: Gradients) -> Tensor:
    """Return the (V,) inner products of two updates.

    Example:
        >>> inner((torch.ones(2, 3),), (torch.full((2, 3), 2.0),))
        tensor([6., 6.])
    """
    return torch.stack([(a * b).flatten(1).sum(1) for a, b in zip(first, second, strict=True)]).sum(0)


def squared_distance(trial: Gradients, target: Gradients) -> Tensor:
    """Return the (V,) sums of squared differences."""
    return torch.stack([(a - b).square().flatten(1).sum(1) for a, b in zip(trial, target, strict=True)]).sum(0)


def unit(update: Gradients) -> Gradients:
    """Scale each victim's update to length 1.

    Example:
        >>> unit((torch.tensor([[3.0]]), torch.tensor([[4.0]])))
        (tensor([[0.6000]]), tensor([[0.8000]]))
    """
    norm = inner(update, update).sqrt().clamp_min(1e-12)
    return tuple(tensor / spread(norm, tensor) for tensor in update)


def cosine_distance(trial: Gradients, target: Gradients) -> Tensor:
    """Return (V,) one minus the cosine over all parameters together, to a target of length 1."""
    pairs = [_Products.apply(a, b) for a, b in zip(trial, target, strict=True)]  # type: ignore[no-untyped-call]
    squares, products = torch.stack([torch.stack(pair) for pair in pairs]).sum(0)
    cosine: Tensor = products / squares.clamp_min(1e-24).sqrt()
    return 1 - cosine


class _Products(torch.autograd.Function):
    """A trial tensor's (V,) square and its (V,) product with the target, differentiated in one pass over both."""

    @staticmethod
    def forward(ctx: Any, trial: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(trial, target)
        axes = tuple(range(1, trial.ndim))
        return torch.linalg.vector_norm(trial, dim=axes).square(), (trial * target).sum(axes)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_square: Tensor, of_product: Tensor) -> tuple[Tensor, None]:
        trial, target = ctx.saved_tensors
        return torch.addcmul(trial * spread(2 * of_square, trial), target, spread(of_product, trial)), None
