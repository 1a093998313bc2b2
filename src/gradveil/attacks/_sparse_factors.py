"""A weight gradient as a product of sparse activations and inputs: the algebra of SPEAR."""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

_INSIDE = 1e-2  # length outside the span of what was chosen, below which a direction brings nothing new


@dataclass(frozen=True, slots=True)
class LowRank:
    """The gradient G = left @ right of a batch of B, which is D @ X for the wanted inputs X.

    Args:
        left: (V, m, B) orthonormal columns; D = left @ Q for some invertible Q.
        right: (V, B, d); X = Q⁻¹ @ right.
        shift: (V, B), what the bias gradient D @ 1 is in terms of `left`: Q @ 1.
        live: (V, m), rows that at least one sample activates.
        tolerance: share of the largest entry of a column below which an entry counts as zero.
    """

    left: Tensor
    right: Tensor
    shift: Tensor
    live: Tensor
    tolerance: float

    @classmethod
    def of(cls, weight: Tensor, bias: Tensor, batch: int, *, tolerance: float) -> Self:
        """Decompose (V, m, d) and (V, m) gradients; an update that is not finite becomes zero."""
        weight, bias = torch.nan_to_num(weight, 0.0, 0.0, 0.0), torch.nan_to_num(bias, 0.0, 0.0, 0.0)
        left, values, right = torch.linalg.svd(weight, full_matrices=False)
        left, right = left[:, :, :batch], values[:, :batch, None] * right[:, :batch]
        size = weight.norm(dim=2)
        live = size > tolerance / 10 * size.amax(1, keepdim=True)
        return cls(left, right, (left * bias[:, :, None]).sum(1), live, tolerance)


def propose(factors: LowRank, draws: Tensor, weights: Tensor) -> Tensor:
    """Return (V, T, B) unit directions q, each zero in B - 1 rows of left @ q.

    If one sample is inactive in all of these rows, its column of Q is the only such direction.

    Args:
        factors: of the gradient.
        draws: (V, T, B - 1) uniform in [0, 1), which rows to take.
        weights: (V, m), how likely a row is taken.
    """
    total = weights.cpu().cumsum(1).to(weights.device)  # which a GPU does not repeat to the bit
    rows = torch.searchsorted(total, draws.flatten(1) * total[:, -1:], right=True).clamp(max=total.shape[1] - 1)
    victims = torch.arange(len(rows), device=rows.device)[:, None, None]
    chosen = factors.left[victims, rows.view_as(draws)]
    complete: Tensor = torch.linalg.qr(chosen.transpose(2, 3), mode="complete").Q
    return complete[..., -1]


def row_weights(factors: LowRank, picked: Tensor) -> Tensor:
    """Return (V, m): live rows count the more, the more of the (V, n, B) directions picked so far vanish in them.

    Where other samples are inactive a sample is inactive more often than elsewhere, since all are images.
    """
    silent = zeros(factors, picked).double().mean(1) if picked.shape[1] else torch.ones_like(factors.shift[:, :1])
    return factors.live * (silent**2 + 0.02)


def zeros(factors: LowRank, directions: Tensor) -> Tensor:
    """Return (V, T, m), which live rows of left @ q are zero for each direction."""
    columns = (directions @ factors.left.transpose(1, 2)).abs()
    return (columns <= factors.tolerance * columns.amax(2, keepdim=True)) & factors.live[:, None]


def pick(factors: LowRank, pool: Tensor) -> Tensor:
    """Choose (V, B, B) directions of a (V, T, B) pool: the sparsest first, none in the span of those before.

    A mixture of samples is zero only where all of them are, so that each of them is sparser on its own: once the pool
    holds every sample's direction, exactly these are chosen.
    """
    sparsity, outside = zeros(factors, pool).sum(2), pool
    picked = []
    for _ in range(pool.shape[2]):
        new = outside.norm(dim=2) > _INSIDE
        best = torch.where(new, sparsity, -1).argmax(1)[:, None, None].expand(-1, 1, pool.shape[2])
        picked.append(pool.gather(1, best))
        basis = outside.gather(1, best)
        basis = basis / basis.norm(dim=2, keepdim=True).clamp_min(1e-30)
        outside = outside - (outside @ basis.transpose(1, 2)) * basis
    return torch.cat(picked, 1)


def refine(factors: LowRank, directions: Tensor) -> Tensor:
    """Recompute (V, B, B) directions from all rows in which they vanish, instead of the few they came from."""
    vanishing = zeros(factors, directions).to(directions.dtype)
    gram = torch.einsum("vkm,vma,vmb->vkab", vanishing, factors.left, factors.left)
    vectors: Tensor = torch.linalg.eigh(gram).eigenvectors
    return vectors[..., 0]


@dataclass(frozen=True, slots=True)
class Inversion:
    """The inputs that go with a choice of directions.

    Args:
        inputs: (V, B, d); not finite where the directions do not span.
        agreement: (V, B), share of live rows in which the network activates a sample as its gradient says, in [0, 1].
    """

    inputs: Tensor
    agreement: Tensor


def invert(factors: LowRank, directions: Tensor, weight: Tensor, bias: Tensor) -> Inversion:
    """Scale the directions by the bias gradient, and solve for the inputs.

    Args:
        factors: of the gradient.
        directions: (V, B, B), one per row.
        weight: (m, d) of the layer, or (V, m, d).
        bias: (m,) or (V, m).
    """
    inverse = torch.linalg.inv_ex(directions.transpose(1, 2)).inverse
    scales = (inverse @ factors.shift[:, :, None]).squeeze(2)
    inputs = (inverse @ factors.right) / scales[:, :, None]

    active = inputs @ weight.transpose(-1, -2) + bias[..., None, :] > 0
    live = factors.live[:, None]
    agree = ((active != zeros(factors, directions)) & live).sum(2) / live.sum(2).clamp(min=1)
    finite = torch.isfinite(inputs).all(2)
    return Inversion(inputs, torch.where(finite, agree, 0.0))
