"""The search for images by signed Adam, for attacks that bring an objective of their own."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from torch import Tensor

from gradveil.attacks._priors import ImageSpace, Start
from gradveil.engine import Adam, Optimizer, Runtime, Variable, minimize
from gradveil.streams import Streams
from gradveil.types import Observation, Reconstruction

ImageObjective: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""Standardized images (V, B, C, H, W) and labels to the (V,) objective."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """How images are searched for.

    Args:
        steps: of Adam.
        lr: its step size, in standardized pixels; multiplied by 0.1 at 3/8, 5/8 and 7/8 of the steps.
        signed: use the sign of the image's gradient alone.
        start: `normal`, `uniform`, `zeros` or `pattern`.
        restarts: starts tried side by side.
    """

    steps: int
    lr: float = 0.1
    signed: bool = True
    start: Start = "normal"
    restarts: int = 1

    def __post_init__(self) -> None:
        for name in ("steps", "restarts"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.lr <= 0:
            raise ValueError(f"lr must be above 0, got {self.lr}")


def descend(
    seen: Observation,
    objective: ImageObjective,
    search: Search,
    *,
    streams: Streams,
    runtime: Runtime,
    optimizer: Optimizer | None = None,
) -> Reconstruction:
    """Search for the images of least objective, between black and white; restarts are victims of their own.

    Args:
        seen: the observation, every victim repeated for its restarts; labels that it lacks are optimized.
        objective: of images and labels.
        search: how.
        streams: of all restarts.
        runtime: of the engine.
        optimizer: other than Adam.
    """
    space = ImageSpace.of(seen)
    low, high = space.box()
    start = space.start(search.start, streams)
    variables = [Variable(start=start, signed=search.signed, low=low, high=high)]
    if seen.labels is None:
        logits = streams.normal("labels", (seen.input_shape[0], seen.num_classes), like=seen.update[0])
        variables.append(Variable(start=logits))

    def labels_of(values: tuple[Tensor, ...]) -> Tensor:
        return values[1].softmax(-1) if seen.labels is None else seen.labels

    found = minimize(
        lambda values: objective(values[0], labels_of(values)),
        variables,
        optimizer=optimizer or Adam(lr=search.lr),
        steps=search.steps,
        decay=True,
        runtime=runtime,
    )
    return Reconstruction(
        inputs=space.pixels(found.values[0]).clamp(0, 1),
        labels=labels_of(found.values),
        objective=found.objective,
        diverged=found.diverged,
        steps=found.steps,
        trace=found.trace,
        captured=found.captured,
    )
