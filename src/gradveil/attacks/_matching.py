"""Gradient matching: the loop behind every attack that optimizes images until their gradient is the shared one."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from torch import Tensor

from gradveil.attacks._filtered import Filtered
from gradveil.attacks._layers import Weighting, layer_weights
from gradveil.attacks._objectives import Objective, distance_to
from gradveil.attacks._priors import ImageSpace, Start, total_variation
from gradveil.attacks._restarts import Choice, join_pixels, keep_best, pixel_mean, pixel_median
from gradveil.engine import LBFGS, SGD, Adam, Optimizer, Runtime, Variable, matching, minimize
from gradveil.streams import Streams
from gradveil.types import Observation, Reconstruction

OptimizerName: TypeAlias = Literal["adam", "sgd", "lbfgs"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How images are searched for; an attack is a choice of these.

    Args:
        objective: distance between gradients.
        optimizer: `adam`, `sgd` with Nesterov momentum 0.9, or `lbfgs`.
        lr: its step size, in standardized pixels.
        steps: of the optimizer.
        inner: iterations of one step of L-BFGS.
        history: pairs that L-BFGS keeps.
        decay: multiply the step size by 0.1 at 3/8, 5/8 and 7/8 of the steps.
        stop_below: objective at which a victim is done.
        signed: use the sign of the image's gradient alone.
        boxed: keep pixels between black and white.
        tv: weight of total variation.
        median: iterations between two 3×3 median filterings; 0 for none.
        start: `normal`, `uniform`, `zeros`, or `pattern`, a uniform tile repeated over the image.
        tile: side of the pattern's tile in pixels.
        restarts: starts tried side by side.
        choice: what makes the guess of several restarts: the one of the smallest `objective`, of the smallest `loss`
            (objective without total variation) or of the smallest `tv`, or all of them by `pixel-mean` or
            `pixel-median`.
        layers: which parameters count, such as `first-4`, `conv1` or `not-fc`; none means all.
        weights: how much they count: `equal`, `linear` or `exponential`.
    """

    objective: Objective = "cosine"
    optimizer: OptimizerName = "adam"
    lr: float = 0.1
    steps: int = 4800
    inner: int = 20
    history: int = 100
    decay: bool = False
    stop_below: float | None = None
    signed: bool = False
    boxed: bool = False
    tv: float = 0.0
    median: int = 0
    start: Start = "normal"
    tile: int = 16
    restarts: int = 1
    choice: Choice = "objective"
    layers: tuple[str, ...] = ()
    weights: Weighting = "equal"

    def __post_init__(self) -> None:
        for name in ("steps", "inner", "history", "tile", "restarts"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.lr <= 0:
            raise ValueError(f"lr must be above 0, got {self.lr}")
        for name in ("tv", "median"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be at least 0, got {getattr(self, name)}")


def match(observation: Observation, plan: Plan, *, streams: Streams, runtime: Runtime) -> Reconstruction:
    """Search for images whose gradient matches the observed update.

    Labels in the observation are taken as they are; without any, soft labels are optimized together with the images.
    """
    seen, streams = observation.repeat(plan.restarts), streams.repeat(plan.restarts)
    space, match = ImageSpace.of(seen), matching(seen, precision=runtime.precision)
    weights = layer_weights(seen, plan.layers, plan.weights)
    distance = distance_to(match.target, plan.objective, weights=weights)

    def labels_of(values: tuple[Tensor, ...]) -> Tensor:
        return values[1].softmax(-1) if seen.labels is None else seen.labels

    def loss(values: tuple[Tensor, ...]) -> Tensor:
        return distance(match.gradients(space.pixels(values[0]), labels_of(values)))

    def objective(values: tuple[Tensor, ...]) -> Tensor:
        return loss(values) + plan.tv * total_variation(values[0]) if plan.tv else loss(values)

    found = minimize(
        objective,
        _variables(seen, plan, space, streams),
        optimizer=_optimizer(plan),
        steps=plan.steps,
        decay=plan.decay,
        stop_below=plan.stop_below,
        runtime=runtime,
    )
    guess = Reconstruction(
        inputs=space.pixels(found.values[0]).clamp(0, 1),
        labels=labels_of(found.values),
        objective=found.objective,
        diverged=found.diverged,
        steps=found.steps,
        trace=found.trace,
        captured=found.captured,
    )
    return _choose(guess, plan, loss=lambda: loss(found.values), tv=lambda: total_variation(found.values[0]))


def _choose(
    guess: Reconstruction, plan: Plan, *, loss: Callable[[], Tensor], tv: Callable[[], Tensor]
) -> Reconstruction:
    """Make one guess of several restarts; scores that the rule does not need are not computed."""
    if plan.choice == "pixel-mean":
        return join_pixels(guess, plan.restarts, pixel_mean)
    if plan.choice == "pixel-median":
        return join_pixels(guess, plan.restarts, pixel_median)
    if plan.restarts == 1 or plan.choice == "objective":
        return keep_best(guess, plan.restarts)
    score = loss() if plan.choice == "loss" else tv()
    return keep_best(guess, plan.restarts, score=score.detach())


def _variables(seen: Observation, plan: Plan, space: ImageSpace, streams: Streams) -> list[Variable]:
    """Start the images and, where nobody knows them, the logits of the labels."""
    low, high = space.box() if plan.boxed else (None, None)
    start = space.start(plan.start, streams, tile=plan.tile)
    images = Variable(start=start, signed=plan.signed, low=low, high=high)
    if seen.labels is not None:
        return [images]
    logits = streams.normal("labels", (seen.input_shape[0], seen.num_classes), like=seen.update[0])
    return [images, Variable(start=logits)]


def _optimizer(plan: Plan) -> Optimizer:
    optimizer: Optimizer = Adam(lr=plan.lr)
    if plan.optimizer == "sgd":
        optimizer = SGD(lr=plan.lr)
    elif plan.optimizer == "lbfgs":
        optimizer = LBFGS(lr=plan.lr, inner=plan.inner, history=plan.history)
    return Filtered(optimizer, plan.median) if plan.median else optimizer
