"""Gaussian windows, applied pixel by pixel so that no tensor core rounds what a metric measures."""

import math

import torch.nn.functional as F
from torch import Tensor


def gaussian_window(size: int, sigma: float) -> tuple[float, ...]:
    """Return the weights of a Gaussian of `sigma` pixels at `size` (odd) places; they sum to 1.

    Example:
        >>> [round(weight, 4) for weight in gaussian_window(3, 1.0)]
        [0.2741, 0.4519, 0.2741]
    """
    raw = [math.exp(-0.5 * ((place - size // 2) / sigma) ** 2) for place in range(size)]
    return tuple(weight / sum(raw) for weight in raw)


def filter_inside(images: Tensor, window: tuple[float, ...]) -> Tensor:
    """Filter rows and columns of (..., H, W) at the places where the whole window fits.

    A convolution would be shorter, but runs in reduced precision on devices with tensor cores, and variances of
    nearly flat images drown in that.

    Returns:
        (..., H - size + 1, W - size + 1).
    """
    return _filter_last(_filter_last(images, window).mT, window).mT


def blur(images: Tensor, sigma: float) -> Tensor:
    """Blur (N, C, H, W) with a Gaussian cut at three sigma; the border pixels are repeated outward.

    Example:
        >>> import torch
        >>> blur(torch.ones(1, 3, 8, 8), 0.5).shape
        torch.Size([1, 3, 8, 8])
    """
    radius = math.ceil(3 * sigma)
    padded = F.pad(images, (radius,) * 4, mode="replicate")
    return filter_inside(padded, gaussian_window(2 * radius + 1, sigma))


def _filter_last(images: Tensor, window: tuple[float, ...]) -> Tensor:
    """Weigh and add shifted copies along the last axis."""
    places = images.shape[-1] - len(window) + 1
    filtered = images.narrow(-1, 0, places) * window[0]
    for start, weight in enumerate(window[1:], start=1):
        filtered.add_(images.narrow(-1, start, places), alpha=weight)
    return filtered
