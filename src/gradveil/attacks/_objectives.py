"""Distances between a trial update and the observed one, victim by victim."""

from collections.abc import Callable
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from gradveil.engine import Factored, Factors, formed, row_squares_and_products, spread, square_and_product
from gradveil.types import Gradients

Objective: TypeAlias = Literal["cosine", "l2", "l1", "layer-cosine", "row-cosine", "masked-cosine"]
Distance: TypeAlias = Callable[[Factors], Tensor]
"""A trial update, multiplied out or not, to its (V,) distances from the observed one."""

Compare: TypeAlias = Callable[[Tensor | Factored, Tensor], tuple[Tensor, Tensor]]
"""A trial gradient and a target to (V, rows) squares of the trial and products of the two."""

_SMALLEST = 1e-20  # square of a row that counts


def inner(first: Gradients, second: Gradients) -> Tensor:
    """Return the (V,) inner products of two updates.

    Example:
        >>> inner((torch.ones(2, 3),), (torch.full((2, 3), 2.0),))
        tensor([6., 6.])
    """
    return torch.stack([(a * b).flatten(1).sum(1) for a, b in zip(first, second, strict=True)]).sum(0)


def squared_distance(trial: Factors, target: Gradients) -> Tensor:
    """Return the (V,) sums of squared differences."""
    return torch.stack([(formed(a) - b).square().flatten(1).sum(1) for a, b in zip(trial, target, strict=True)]).sum(0)


def absolute_distance(trial: Factors, target: Gradients) -> Tensor:
    """Return the (V,) sums of absolute differences."""
    return torch.stack([(formed(a) - b).abs().flatten(1).sum(1) for a, b in zip(trial, target, strict=True)]).sum(0)


def unit(update: Gradients) -> Gradients:
    """Scale each victim's update to length 1.

    Example:
        >>> unit((torch.tensor([[3.0]]), torch.tensor([[4.0]])))
        (tensor([[0.6000]]), tensor([[0.8000]]))
    """
    norm = inner(update, update).sqrt().clamp_min(1e-12)
    return tuple(tensor / spread(norm, tensor) for tensor in update)


def cosine_distance(trial: Factors, target: Gradients) -> Tensor:
    """Return (V,) one minus the cosine over all parameters together, to a target of length 1."""
    pairs = [square_and_product(a, b) for a, b in zip(trial, target, strict=True)]
    squares, products = torch.stack([torch.stack(pair) for pair in pairs]).sum(0)
    cosine: Tensor = products / squares.clamp_min(1e-24).sqrt()
    return 1 - cosine


def distance_to(target: Gradients, objective: Objective, *, weights: Tensor | None = None) -> Distance:
    """Return the function that says how far trial updates are from an observed one.

    Args:
        target: the observed update.
        objective: `cosine` and `l2` over all parameters together, `l1` the sum of absolute differences, `layer-cosine`
            and `row-cosine` the mean over parameters and over their output rows, `masked-cosine` over the entries that
            are not exactly zero in the observed update.
        weights: (V, n) of the parameters, None for all equal; a parameter of weight 0 does not count at all.

    Example:
        >>> distance_to((torch.tensor([[1.0, 3.0]]),), "l1")((torch.tensor([[2.0, 1.0]]),))
        tensor([3.])
    """
    if objective in {"layer-cosine", "row-cosine"}:
        return _mean_cosine_to(target, weights, row_squares_and_products if objective == "row-cosine" else _whole)
    scale = _scaling(weights, power=1.0 if objective == "l1" else 0.5)
    goal = _formed(scale(target))
    if objective == "l2":
        return lambda trial: squared_distance(scale(trial), goal)
    if objective == "l1":
        return lambda trial: absolute_distance(scale(trial), goal)
    goal = unit(goal)
    if objective == "cosine":
        return lambda trial: cosine_distance(scale(trial), goal)
    masks = tuple(tensor != 0 for tensor in goal)
    return lambda trial: cosine_distance(tuple(g * m for g, m in zip(_formed(scale(trial)), masks, strict=True)), goal)


def _formed(trial: Factors) -> Gradients:
    return tuple(formed(gradient) for gradient in trial)


def _scaling(weights: Tensor | None, *, power: float) -> Callable[[Factors], Factors]:
    """Return what multiplies the parameters by powers of their weights, and leaves those out that weigh nothing."""
    if weights is None:
        return lambda update: update
    factors = weights**power
    kept = [i for i in range(factors.shape[1]) if bool(factors[:, i].any())]
    return lambda update: tuple(_times(update[i], factors[:, i]) for i in kept)


def _times(gradient: Tensor | Factored, factors: Tensor) -> Tensor | Factored:
    return gradient.times(factors) if isinstance(gradient, Factored) else gradient * spread(factors, gradient)


def _whole(trial: Tensor | Factored, target: Tensor) -> tuple[Tensor, Tensor]:
    """Return the square and the product of a parameter, (V, 1) each."""
    square, product = square_and_product(trial, target)
    return square[:, None], product[:, None]


def _mean_cosine_to(target: Gradients, weights: Tensor | None, compare: Compare) -> Distance:
    """Return one minus the weighted mean of the cosines of all rows; rows of zeros have no slope."""
    squares = [compare(tensor, tensor)[0] for tensor in target]
    inverse = [square.clamp_min(_SMALLEST).rsqrt() for square in squares]
    shares = torch.ones((len(target[0]), len(target)), device=target[0].device) if weights is None else weights
    counts = torch.tensor([square.shape[1] for square in squares], device=shares.device, dtype=shares.dtype)
    shares = (shares / (shares * counts).sum(1, keepdim=True)).to(target[0].dtype)
    kept = [i for i in range(len(target)) if bool(shares[:, i].any())]

    def distance(trial: Factors) -> Tensor:
        cosines = []
        for i in kept:
            square, product = compare(trial[i], target[i])
            cosines.append((product * square.clamp_min(_SMALLEST).rsqrt() * inverse[i]).sum(1) * shares[:, i])
        return 1 - torch.stack(cosines).sum(0)

    return distance
