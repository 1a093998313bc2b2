"""Searching for images together with what else made the update and the adversary does not know."""

from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from gradveil.attacks._descent import Search
from gradveil.attacks._labels import update_scale
from gradveil.attacks._objectives import inner, squared_distance
from gradveil.attacks._priors import ImageSpace, total_variation
from gradveil.engine import Adam, Minimum, Runtime, Variable, minimize
from gradveil.streams import Streams
from gradveil.types import Gradients, Observation, Reconstruction

Explain: TypeAlias = Callable[[Tensor, Tensor, tuple[Tensor, ...]], Gradients]
"""Pixels (V, B, C, H, W), labels, and further unknowns (V, ...), to the mean gradient that they would give."""


def search_jointly(
    seen: Observation,
    explain: Explain,
    unknowns: Sequence[Variable],
    *,
    search: Search,
    tv: float,
    streams: Streams,
    runtime: Runtime,
) -> tuple[Reconstruction, tuple[Tensor, ...]]:
    """Search for images and unknowns whose update is nearest to the observed one, by relative squared distance.

    Images move by the signs of their gradients; the unknowns move by Adam at the same rate, so that they should be
    given in units of their own size.

    Args:
        seen: the observation, every victim repeated for its restarts; labels that it lacks are optimized.
        explain: what the adversary believes to have happened at the client.
        unknowns: to find beside the images.
        search: how.
        tv: weight of total variation.
        streams: of all restarts.
        runtime: of the engine.

    Returns:
        The guess of every restart, and the unknowns that go with it.
    """
    space, count = ImageSpace.of(seen), len(unknowns)
    masks, scale = _visible(seen), update_scale(seen)
    target = _masked(tuple(tensor.detach() for tensor in seen.update), masks)
    size = inner(target, target).clamp_min(torch.finfo(seen.dtype).tiny)

    def labels_of(values: tuple[Tensor, ...]) -> Tensor:
        return values[-1].softmax(-1) if seen.labels is None else seen.labels

    def objective(values: tuple[Tensor, ...]) -> Tensor:
        found = explain(space.pixels(values[0]), labels_of(values), values[1 : 1 + count])
        trial = _masked(tuple(scale * tensor for tensor in found), masks)
        apart = squared_distance(trial, target) / size
        return apart + tv * total_variation(values[0]) if tv else apart

    variables = [_images(space, search, streams), *unknowns, *_label_logits(seen, streams)]
    found = minimize(
        objective, variables, optimizer=Adam(lr=search.lr), steps=search.steps, decay=True, runtime=runtime
    )
    return _guess(found, space, labels_of(found.values)), found.values[1 : 1 + count]


def _images(space: ImageSpace, search: Search, streams: Streams) -> Variable:
    low, high = space.box()
    return Variable(start=space.start(search.start, streams), signed=search.signed, low=low, high=high)


def _label_logits(seen: Observation, streams: Streams) -> list[Variable]:
    if seen.labels is not None:
        return []
    return [Variable(start=streams.normal("labels", (seen.input_shape[0], seen.num_classes), like=seen.update[0]))]


def _guess(found: Minimum, space: ImageSpace, labels: Tensor) -> Reconstruction:
    return Reconstruction(
        inputs=space.pixels(found.values[0]).clamp(0, 1),
        labels=labels,
        objective=found.objective,
        diverged=found.diverged,
        steps=found.steps,
        trace=found.trace,
        captured=found.captured,
    )


def _visible(seen: Observation) -> Gradients:
    """Return masks of the entries that all known defenses let through; nothing if that is all of them."""
    masks = tuple(torch.ones_like(tensor, dtype=torch.bool) for tensor in seen.update)
    for defense in seen.defenses or ():
        shown = defense.visible(seen.update)
        masks = tuple(mask & own for mask, own in zip(masks, shown, strict=True))
    return () if all(bool(mask.all()) for mask in masks) else masks


def _masked(update: Gradients, masks: Gradients) -> Gradients:
    return tuple(tensor * mask for tensor, mask in zip(update, masks, strict=True)) if masks else update
