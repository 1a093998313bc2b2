"""Lengths of updates, victim by victim."""

import math

import torch
from torch import Tensor

from gradveil.engine import spread
from gradveil.types import Gradients


def inner(first: Gradients, second: Gradients) -> Tensor:
    """Return the (V,) inner products of two updates.

    Example:
        >>> inner((torch.ones(2, 3),), (torch.full((2, 3), 2.0),))
        tensor([6., 6.])
    """
    return torch.stack([(a * b).flatten(1).sum(1) for a, b in zip(first, second, strict=True)]).sum(0)


def lengths(update: Gradients) -> Tensor:
    """Return the (V,) L2 norms over all tensors together.

    Example:
        >>> lengths((torch.tensor([[3.0]]), torch.tensor([[4.0]])))
        tensor([5.])
    """
    return inner(update, update).sqrt()


def clip(update: Gradients, norm: float) -> Gradients:
    """Shorten the updates that are longer than `norm`; the others keep every bit.

    Example:
        >>> clip((torch.tensor([[3.0], [0.3]]), torch.tensor([[4.0], [0.4]])), 1.0)[0]
        tensor([[0.6000],
                [0.3000]])
    """
    factors = (norm / lengths(update)).clamp_max(1)
    return tuple(tensor * spread(factors, tensor) for tensor in update)


def check_noise(norm: float, noise_multiplier: float) -> None:
    """Refuse a norm to clip to, or noise in its units, that makes no sense."""
    if not norm > 0:
        raise ValueError(f"norm must be above 0, got {norm}")
    if not 0 <= noise_multiplier < math.inf:
        raise ValueError(f"noise_multiplier must be at least 0, got {noise_multiplier}")
    if noise_multiplier > 0 and norm == math.inf:
        raise ValueError("noise needs a finite norm to be measured by, got inf; set norm or a noise_multiplier of 0")
