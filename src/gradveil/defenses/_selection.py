"""The largest entries of an update, and what is left of it."""

import math
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from gradveil.defenses._base import Shared
from gradveil.types import Gradients, State

Scope: TypeAlias = Literal["tensor", "global"]
"""Whether entries compete inside their tensor or over the whole update."""


def largest(update: Gradients, share: float, *, scope: Scope) -> Gradients:
    """Return masks of the entries of largest magnitude, a share of them rounded up to whole entries, victim by victim.

    Example:
        >>> largest((torch.tensor([[1.0, -3.0]]), torch.tensor([[2.0, 4.0]])), 0.5, scope="global")
        (tensor([[False,  True]]), tensor([[False,  True]]))
    """
    if scope == "tensor":
        return tuple(_largest(tensor.flatten(1), share).view_as(tensor) for tensor in update)
    flat = [tensor.flatten(1) for tensor in update]
    parts = _largest(torch.cat(flat, 1), share).split([tensor.shape[1] for tensor in flat], 1)
    return tuple(part.view_as(tensor) for part, tensor in zip(parts, update, strict=True))


def keep(update: Gradients, masks: Gradients) -> Gradients:
    """Set the entries outside of the masks to zero."""
    return tuple(torch.where(mask, tensor, 0) for tensor, mask in zip(update, masks, strict=True))


def with_residual(update: Gradients, kept: State) -> Gradients:
    """Add what earlier rounds have left; in the first round there is nothing."""
    if not kept:
        return update
    return tuple(tensor + kept[f"residual.{i}"] for i, tensor in enumerate(update))


def share_largest(update: Gradients, share: float, *, scope: Scope) -> Shared:
    """Share the largest entries, and keep the others for the next round."""
    masks = largest(update, share, scope=scope)
    rest = keep(update, tuple(~mask for mask in masks))
    return Shared(keep(update, masks), {f"residual.{i}": tensor for i, tensor in enumerate(rest)})


def check_share(name: str, share: float) -> None:
    """Refuse a share that is not one."""
    if not 0 < share <= 1:
        raise ValueError(f"{name} must be above 0 and at most 1, got {share}")


def _largest(flat: Tensor, share: float) -> Tensor:
    # A product such as 0.3 * 10 comes out a little above 3, and must not be rounded up to 4.
    count = min(flat.shape[1], math.ceil(flat.shape[1] * share - 1e-9))
    chosen = flat.abs().topk(count, dim=1).indices
    return torch.zeros_like(flat, dtype=torch.bool).scatter(1, chosen, True)
