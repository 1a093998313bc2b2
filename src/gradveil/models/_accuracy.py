"""Accuracy on clean images."""

import copy

import torch
from torch import Tensor, nn

from gradveil.data import Split
from gradveil.errors import DataError


def evaluate(
    model: nn.Module, split: Split, *, device: torch.device | str | None = None, batch_size: int = 1000
) -> float:
    """Return the accuracy on clean images, from 0 to 1, in eval mode; the model stays as and where it is.

    Args:
        model: eats images in [0, 1].
        split: the images.
        device: where to compute; where the model lies if None.
        batch_size: images at once.

    Example:
        >>> split = Split(torch.eye(2, dtype=torch.uint8).view(2, 1, 1, 2), torch.tensor([0, 0]))
        >>> evaluate(nn.Flatten(), split)
        0.5
    """
    if not len(split):
        raise DataError("accuracy needs at least one image, got none; give another split")
    place = place_of(model, device)
    judge = copy.deepcopy(model).to(place).eval()
    dtype = sample_of(judge).dtype
    hits = torch.zeros((), dtype=torch.long, device=place)
    with torch.no_grad():
        for images, labels in zip(split.images.split(batch_size), split.labels.split(batch_size), strict=True):
            outputs = judge(images.to(place).to(dtype).div_(255))
            hits += (outputs.argmax(1) == labels.to(place)).sum()
    return int(hits) / len(split)


def place_of(model: nn.Module, device: torch.device | str | None) -> torch.device:
    """Return the device asked for, or the one where the model lies."""
    return sample_of(model).device if device is None else torch.device(device)


def sample_of(model: nn.Module) -> Tensor:
    """Return a parameter, whose device and number format are the model's."""
    return next(model.parameters(), torch.zeros(()))
