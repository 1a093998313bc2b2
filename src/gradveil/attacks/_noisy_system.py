"""The noisy linear system of the SPN paper: B x = W with the bias gradient B and the weight gradient W of a layer."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Solution:
    """What the system gives.

    Args:
        inputs: (V, d), 0 where no equation was left: what pruning drops was small.
        residual: (V,) ||W - B x|| / ||W||; near 0 if one sample explains all rows.
    """

    inputs: Tensor
    residual: Tensor


@dataclass(frozen=True, slots=True)
class Certificate:
    """What Theorem 2.2 of the SPN paper says about a perturbation that is known.

    Args:
        condition: (V,) ||E_B|| / ||B||, which bounds ||B⁻¹ E_B||.
        bound: (V,) on ||x* - x|| / ||x||; infinite unless the condition is below 1.
    """

    condition: Tensor
    bound: Tensor

    @property
    def holds(self) -> Tensor:
        """(V,), whether the condition of the theorem is met; otherwise nothing is guaranteed."""
        return self.condition < 1


def largest_rows(bias: Tensor, rows: int | None) -> Tensor:
    """Return the (V, m) mask of the rows with the largest bias gradients; None takes all.

    Example:
        >>> largest_rows(torch.tensor([[1.0, -3.0, 2.0]]), 1)
        tensor([[False,  True, False]])
    """
    kept = torch.zeros_like(bias, dtype=torch.bool)
    number = bias.shape[1] if rows is None else min(rows, bias.shape[1])
    return kept.scatter(1, bias.abs().topk(number, dim=1).indices, True)


def solve(weight: Tensor, bias: Tensor, known: Tensor) -> Solution:
    """Solve bias * x = weight by least squares, pixel by pixel; one row makes it the division of the paper.

    Args:
        weight: (V, m, d).
        bias: (V, m).
        known: (V, m, d) mask of the equations to use.

    Example:
        >>> image = torch.tensor([0.25, 0.5])
        >>> bias = torch.tensor([[1.0, -2.0]])
        >>> solve(bias[..., None] * image, bias, torch.ones(1, 2, 2, dtype=torch.bool)).inputs
        tensor([[0.2500, 0.5000]])
    """
    coefficients = bias[:, :, None] * known
    squares = coefficients.square().sum(1)
    inputs = torch.where(squares == 0, 0, (coefficients * weight).sum(1) / squares)
    rest = torch.where(known, weight, 0) - coefficients * inputs[:, None]
    length = torch.where(known, weight, 0).flatten(1).norm(dim=1).clamp_min(1e-300)
    return Solution(inputs, rest.flatten(1).norm(dim=1) / length)


def certify(weight: Tensor, bias: Tensor, clean_weight: Tensor, clean_bias: Tensor, rows: Tensor) -> Certificate:
    """Bound the error of `solve` from the perturbation of the rows that it uses (Theorem 2.2, Eq. 2 and 3).

    The system of several rows is B x = W with the column B of their biases, so its condition number is 1 and its
    pseudo-inverse has the norm 1 / ||B||; the proof of the theorem holds word for word. With one row it is the paper's.

    Args:
        weight: (V, m, d) as shared.
        bias: (V, m) as shared.
        clean_weight: (V, m, d) before the perturbation.
        clean_bias: (V, m) before it.
        rows: (V, m) mask of the rows in use.
    """

    def norm(tensor: Tensor) -> Tensor:
        mask = rows.view(*rows.shape, *[1] * (tensor.ndim - 2))
        length: Tensor = torch.where(mask, tensor, 0).flatten(1).norm(dim=1)
        return length

    condition = norm(bias - clean_bias) / norm(clean_bias)
    relative = norm(weight - clean_weight) / norm(clean_weight)
    bound = (condition + relative) / (1 - condition)
    return Certificate(condition, torch.where(condition < 1, bound, torch.inf))
