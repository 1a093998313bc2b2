"""Linear regression from mixtures to images, pixel by pixel."""

import torch
from torch import Tensor

from gradveil.engine.runtime import exact_products

_LITTLE = 1e-3  # of a mixture is rounding, and no image


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
        return pseudo_inverse(weights) @ mixtures


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


def pseudo_inverse(weights: Tensor) -> Tensor:
    """Return (V, P, N); factored on the CPU, as are the matrices of pixels: GPUs take such ones one after another."""
    inverse: Tensor = torch.linalg.pinv(weights.cpu())
    return inverse.to(weights)
