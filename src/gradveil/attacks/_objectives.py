"""Distances between a trial update and the observed one, victim by victim."""

from functools import reduce

import torch
from torch import Tensor

from gradveil.types import Gradients


def inner(first: Gradients, second: Gradients) -> Tensor:
    """Return the (V,) inner products of two updates.

    Example:
        >>> inner((torch.ones(2, 3),), (torch.full((2, 3), 2.0),))
        tensor([6., 6.])
    """
    products = (_rowwise(a.flatten(1), b.flatten(1)) for a, b in zip(first, second, strict=True))
    return reduce(torch.add, products)


def squared_distance(trial: Gradients, target: Gradients) -> Tensor:
    """Return the (V,) sums of squared differences."""
    differences = tuple(a - b for a, b in zip(trial, target, strict=True))
    return inner(differences, differences)


def cosine_distance(trial: Gradients, target: Gradients) -> Tensor:
    """Return (V,) one minus the cosine over all parameters together."""
    norms = (inner(trial, trial) * inner(target, target)).sqrt()
    return 1 - inner(trial, target) / norms.clamp_min(1e-8)


def _rowwise(first: Tensor, second: Tensor) -> Tensor:
    # A batched product of a row and a column makes no intermediate of the size of the update.
    return torch.bmm(first[:, None], second[:, :, None]).flatten()
