"""Drawing the private batches of victims from a split."""

import numpy as np
import torch
from torch import Tensor

from gradveil.data._base import Split
from gradveil.errors import DataError
from gradveil.types import Batch


def draw_victims(
    split: Split,
    *,
    victims: int,
    batch_size: int,
    seed: int = 0,
    start: int | None = 0,
    distinct_labels: bool = False,
) -> Batch:
    """Make the batches of V victims, no image twice.

    Args:
        split: where the images come from.
        victims: V.
        batch_size: B, images of one victim.
        seed: of the draw, where `start` is None.
        start: take images in their order from this index on, as the papers do; None draws at random.
        distinct_labels: no label twice within a victim; images that would repeat one are kept for later victims.

    Returns:
        Inputs (V, B, C, H, W) in [0, 1], labels (V, B), and which are sensitive (V, B) if the split says so.

    Example:
        >>> split = Split(torch.zeros(6, 1, 8, 8, dtype=torch.uint8), torch.tensor([0, 0, 1, 1, 2, 2]))
        >>> batch = draw_victims(split, victims=2, batch_size=2, distinct_labels=True)
        >>> batch.inputs.shape, batch.labels.tolist()
        (torch.Size([2, 2, 1, 8, 8]), [[0, 1], [0, 1]])
    """
    if victims < 1 or batch_size < 1:
        raise DataError(f"victims and batch_size must be at least 1, got {victims} and {batch_size}")
    order = _order(split, seed=seed, start=start)
    if len(order) < victims * batch_size:
        needed = f"{victims} victims of {batch_size} images need {victims * batch_size} images"
        raise DataError(f"{needed}, but only {len(order)} of {len(split)} can be drawn; take fewer or an earlier start")
    if distinct_labels:
        order = _distinct(order, split.labels.tolist(), victims=victims, batch_size=batch_size)

    chosen = split.select(order[: victims * batch_size])
    shape = (victims, batch_size)
    sensitive = None if chosen.sensitive is None else chosen.sensitive.unflatten(0, shape)
    return Batch(chosen.inputs().unflatten(0, shape), chosen.labels.unflatten(0, shape), sensitive)


def mean_image(split: Split) -> Tensor:
    """Return the average (C, H, W) of all images in [0, 1]: what a guess is worth that knows only the data set.

    Example:
        >>> mean_image(Split(torch.full((2, 1, 1, 1), 255, dtype=torch.uint8), torch.tensor([0, 1]))).item()
        1.0
    """
    if not len(split):
        raise DataError("an empty split has no mean image")
    total = torch.stack([block.sum(0, dtype=torch.float64) for block in split.images.split(1024)]).sum(0)
    return (total / (255 * len(split))).float()


def class_counts(split: Split, num_classes: int) -> Tensor:
    """Return how many images (K,) each class has.

    Example:
        >>> split = Split(torch.zeros(3, 1, 1, 1, dtype=torch.uint8), torch.tensor([0, 2, 2]))
        >>> class_counts(split, 4).tolist()
        [1, 0, 2, 0]
    """
    return torch.bincount(split.labels, minlength=num_classes)


def _order(split: Split, *, seed: int, start: int | None) -> list[int]:
    """List the images in the order they are handed out."""
    if start is None:
        return [int(i) for i in np.random.default_rng(seed).permutation(len(split))]
    if not 0 <= start < max(len(split), 1):
        raise DataError(f"start must be an index of the {len(split)} images, got {start}")
    return list(range(start, len(split)))


def _distinct(order: list[int], labels: list[int], *, victims: int, batch_size: int) -> list[int]:
    """Hand out images so that no victim has a label twice."""
    chosen: list[int] = []
    for victim in range(victims):
        batch: dict[int, int] = {}
        seen = 0
        while len(batch) < batch_size and seen < len(order):
            batch.setdefault(labels[order[seen]], order[seen])
            seen += 1
        if len(batch) < batch_size:
            advice = "take fewer or smaller batches"
            raise DataError(f"victim {victim} needs {batch_size} distinct labels, but {len(batch)} are left; {advice}")
        chosen.extend(batch.values())
        taken = set(batch.values())
        order = [index for index in order[:seen] if index not in taken] + order[seen:]
    return chosen
