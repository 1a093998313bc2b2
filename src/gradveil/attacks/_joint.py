"""Searching for images together with what else made the update and the adversary does not know."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import TypeAlias

import torch
from torch import Tensor

from gradveil.attacks._descent import Search
from gradveil.attacks._informed import Judge
from gradveil.attacks._labels import update_scale
from gradveil.attacks._objectives import inner, squared_distance
from gradveil.attacks._priors import ImageSpace, total_variation
from gradveil.engine import Adam, Minimum, Runtime, Variable, minimize
from gradveil.streams import Streams
from gradveil.types import Gradients, Observation, Reconstruction

Explain: TypeAlias = Callable[[Tensor, Tensor, tuple[Tensor, ...]], Gradients]
"""Pixels (V, B, C, H, W), labels, and further unknowns (V, ...), to the mean gradient that they would give."""


@dataclass(frozen=True, slots=True)
class Prior:
    """Weights of total variation.

    Args:
        plain: against a relative squared distance.
        noisy: against the likelihood of known noise, per pixel.
    """

    plain: float
    noisy: float

    def __post_init__(self) -> None:
        if self.plain < 0:
            raise ValueError(f"tv must be at least 0, got {self.plain}")
        if self.noisy < 0:
            raise ValueError(f"prior must be at least 0, got {self.noisy}")


def search_jointly(
    seen: Observation,
    explain: Explain,
    unknowns: Sequence[Variable],
    *,
    search: Search,
    prior: Prior,
    streams: Streams,
    runtime: Runtime,
) -> tuple[Reconstruction, tuple[Tensor, ...]]:
    """Search for images and unknowns whose update is nearest to the observed one.

    Nearest by relative squared distance, or by their likelihood where known defenses are random; those that scale are
    applied to the trial, and what others hide is left out. Images move by the signs of their gradients; the unknowns
    move by Adam at the same rate, so that they should be given in units of their own size.

    Args:
        seen: the observation, every victim repeated for its restarts; labels that it lacks are optimized.
        explain: what the adversary believes to have happened at the client.
        unknowns: to find beside the images.
        search: how.
        prior: how smooth images are.
        streams: of all restarts.
        runtime: of the engine.

    Returns:
        The guess of every restart, and the unknowns that go with it.
    """
    space, count = ImageSpace.of(seen), len(unknowns)
    distance = _distance(seen, prior, streams)

    def labels_of(values: tuple[Tensor, ...]) -> Tensor:
        return values[-1].softmax(-1) if seen.labels is None else seen.labels

    def objective(values: tuple[Tensor, ...]) -> Tensor:
        trial = explain(space.pixels(values[0]), labels_of(values), values[1 : 1 + count])
        return distance(values[0], trial)

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


def _distance(seen: Observation, prior: Prior, streams: Streams) -> Callable[[Tensor, Gradients], Tensor]:
    """Return what standardized images and their mean gradient are away from what was observed, (V,)."""
    scale, pixels = update_scale(seen), prod(seen.input_shape)
    judge = Judge.of(seen, tuple(t.detach() / scale for t in seen.update), scale=scale, streams=streams)
    size = inner(judge.target, judge.target).clamp_min(torch.finfo(seen.dtype).tiny)

    def surprising(images: Tensor, trial: Gradients) -> Tensor:
        return judge.surprise(trial) / pixels + prior.noisy * total_variation(images)

    def apart(images: Tensor, trial: Gradients) -> Tensor:
        relative = squared_distance(judge.shown(trial), judge.target) / size
        return relative + prior.plain * total_variation(images) if prior.plain else relative

    return surprising if judge.random else apart
