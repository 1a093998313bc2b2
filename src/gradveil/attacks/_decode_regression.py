"""Regression from mixtures to images, pixel by pixel: linear, and on magnitudes where signs were flipped."""

from typing import Literal, TypeAlias

import torch
from torch import Tensor

from gradveil.engine import Adam, Runtime, Variable, minimize
from gradveil.engine.runtime import exact_products

Solver: TypeAlias = Literal["lifted", "adam"]
"""`lifted`: linear in the products of unknowns, then alternating; `adam`: gradient descent from zero, as published."""

_LITTLE = 1e-3  # of a mixture is rounding, and no image
_PUSH = 0.05  # weight of the published term that drives standardized pixels away from zero


def least_squares(weights: Tensor, mixtures: Tensor) -> Tensor:
    """Solve weights · images = mixtures, with the smallest images where several solve it.

    Args:
        weights: (V, N, P).
        mixtures: (V, N, D).

    Returns:
        (V, P, D).

    Example:
        >>> weights = torch.tensor([[[0.5, 0.5], [0.25, 0.75]]])
        >>> images = torch.tensor([[[1.0, 0.0], [0.0, 1.0]]])
        >>> torch.allclose(least_squares(weights, weights @ images), images, atol=1e-5)
        True
    """
    with exact_products():
        return _pseudo_inverse(weights) @ mixtures


def solve_mixtures(weights: Tensor, mixtures: Tensor) -> tuple[Tensor, Tensor]:
    """Solve weights · images = mixtures, where what is missing to weights of one belongs to images of a public set.

    Args:
        weights: (V, N, P).
        mixtures: (V, N, D).

    Returns:
        The images (V, P, D), and the mixtures (V, N, D) without the mean public image.

    Example:
        >>> weights = torch.tensor([[[0.5, 0.2], [0.2, 0.5], [0.4, 0.4]]])
        >>> images, public = torch.eye(2)[None], torch.tensor([0.8, 0.6])
        >>> found, own = solve_mixtures(weights, weights @ images + public_share(weights) * public)
        >>> torch.allclose(found, images, atol=1e-5), torch.allclose(own, weights @ images, atol=1e-5)
        (True, True)
    """
    share = public_share(weights)
    found = least_squares(torch.cat([weights, share], 2), mixtures)
    return found[:, :-1], mixtures - share * found[:, -1:]


def public_share(weights: Tensor) -> Tensor:
    """Return (V, N, 1), how much of each mixture is not of the private images (V, N, P)."""
    missing = 1 - weights.sum(2, keepdim=True)
    return missing * (missing > _LITTLE)


def solve_magnitudes(
    weights: Tensor, magnitudes: Tensor, *, solver: Solver, steps: int, lr: float, runtime: Runtime
) -> Tensor:
    """Solve |weights · images| = magnitudes; a pixel and its negative, in all images at once, solve it equally well.

    Args:
        weights: (V, N, P).
        magnitudes: (V, N, D), at least 0.
        solver: see `Solver`.
        steps: of the alternation or of Adam.
        lr: of Adam.
        runtime: progress.

    Returns:
        (V, P, D).
    """
    # The rounding of tf32, which networks bear well, would be all that is left of badly conditioned products.
    with exact_products():
        if solver == "adam":
            return _descend(weights, magnitudes, steps=steps, lr=lr, runtime=runtime)
        return _alternate(weights, magnitudes, _lift(weights, magnitudes), steps=steps)


def misfit(weights: Tensor, images: Tensor, magnitudes: Tensor) -> Tensor:
    """Return (V,), the mean square of |weights · images| - magnitudes."""
    return ((weights @ images).abs() - magnitudes).square().mean((1, 2))


def _lift(weights: Tensor, magnitudes: Tensor) -> Tensor:
    """Find the matrix x xᵀ of every pixel, in which squared magnitudes are linear, and take its largest direction."""
    images = weights.shape[2]
    first, second = torch.triu_indices(images, images, device=weights.device)
    twice = torch.where(first == second, 1.0, 2.0).to(weights)
    terms = weights[..., first] * weights[..., second] * twice
    # Images of a public set add to the square of a mixture, on average, by their share.
    with_public = torch.cat([terms, public_share(weights).square()], 2)
    products = least_squares(with_public, magnitudes.square())[:, :-1]
    matrices = weights.new_zeros(len(weights), magnitudes.shape[2], images, images)
    matrices[..., first, second] = products.transpose(1, 2)
    matrices[..., second, first] = products.transpose(1, 2)
    values, vectors = torch.linalg.eigh(matrices.cpu())
    largest: Tensor = vectors[..., -1] * values[..., -1:].clamp_min(0).sqrt()
    return largest.transpose(1, 2).to(weights)


def _alternate(weights: Tensor, magnitudes: Tensor, images: Tensor, *, steps: int) -> Tensor:
    """Take the signs of the current images for true and solve the linear problem, until no sign changes."""
    inverse = _pseudo_inverse(weights)
    signs = torch.zeros_like(magnitudes)
    for _ in range(steps):
        before, signs = signs, torch.where(weights @ images >= 0, 1.0, -1.0).to(magnitudes)
        if torch.equal(before, signs):
            break
        images = inverse @ (signs * magnitudes)
    return images


def _pseudo_inverse(weights: Tensor) -> Tensor:
    """Return (V, P, N); factored on the CPU, as are the matrices of pixels: GPUs take such ones one after another."""
    inverse: Tensor = torch.linalg.pinv(weights.cpu())
    return inverse.to(weights)


def _descend(weights: Tensor, magnitudes: Tensor, *, steps: int, lr: float, runtime: Runtime) -> Tensor:
    def objective(values: tuple[Tensor, ...]) -> Tensor:
        mixed = weights @ values[0]
        # At zero both signs fit equally well; the first one is taken, so that the descent can begin.
        residual = torch.where(mixed >= 0, mixed - magnitudes, mixed + magnitudes)
        return residual.square().mean((1, 2)) + _PUSH * (1 - values[0].abs()).mean((1, 2))

    start = weights.new_zeros(len(weights), weights.shape[2], magnitudes.shape[2])
    found = minimize(objective, [Variable(start=start)], optimizer=Adam(lr=lr), steps=steps, runtime=runtime)
    return found.values[0]
