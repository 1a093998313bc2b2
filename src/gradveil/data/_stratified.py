"""Dividing images that come without a test part."""

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Indices = npt.NDArray[np.int64]


def stratified(labels: Indices, *, test_fraction: float) -> tuple[Indices, Indices]:
    """Divide 0 .. N - 1 into training and test indices, both ascending, with the same mix of classes.

    A class of two or more images has at least one on each side; a single image goes to training.

    Args:
        labels: (N,) class indices.
        test_fraction: above 0 and below 1.

    Example:
        >>> train, test = stratified(np.array([0, 0, 0, 0, 1, 1, 1, 1]), test_fraction=0.25)
        >>> len(train), len(test)
        (6, 2)
    """
    generator = np.random.default_rng(0)
    test = []
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        count = min(max(round(len(members) * test_fraction), 1), len(members) - 1)
        test.append(generator.permutation(members)[:count])
    held_out = np.sort(np.concatenate(test))
    return np.setdiff1d(np.arange(len(labels)), held_out), held_out


def channel_moments(images: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and standard deviation of each channel of (N, C, H, W) bytes, on [0, 1].

    A channel of one value only gets the standard deviation 1, so that it can be divided by.

    Example:
        >>> channel_moments(torch.tensor([0, 255], dtype=torch.uint8).reshape(2, 1, 1, 1))
        ((0.5,), (0.5,))
    """
    values = torch.arange(256, dtype=torch.float64) / 255
    weights = torch.stack([torch.bincount(c.reshape(-1), minlength=256) for c in images.unbind(1)]).double()
    weights /= weights.sum(1, keepdim=True)
    mean = weights @ values
    std = (weights * (values - mean[:, None]) ** 2).sum(1).sqrt()
    return tuple(mean.tolist()), tuple(torch.where(std > 0, std, 1.0).tolist())
