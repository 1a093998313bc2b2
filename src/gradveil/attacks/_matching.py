"""Gradient matching: the loop behind every attack that optimizes images until their gradient is the shared one."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from gradveil.attacks._filtered import Filtered
from gradveil.attacks._layers import Weighting, layer_weights
from gradveil.attacks._objectives import Objective, distance_to
from gradveil.attacks._priors import (
    ImageSpace,
    Start,
    Variation,
    distance_from_mean,
    enlarging,
    opponents,
    total_variation,
)
from gradveil.attacks._restarts import Choice, choose
from gradveil.attacks._stacks import assemble, each, restarted
from gradveil.engine import LBFGS, SGD, Adam, Matching, Minimum, Optimizer, Runtime, Variable, matching, minimize
from gradveil.engine.matching import Trajectory
from gradveil.streams import Streams
from gradveil.types import LocalTraining, Observation, Reconstruction

OptimizerName: TypeAlias = Literal["adam", "sgd", "lbfgs"]
Function: TypeAlias = Callable[[tuple[Tensor, ...]], Tensor]
"""Variables to (V,) numbers."""

_SHARED = (
    "objective",
    "optimizer",
    "inner",
    "history",
    "median",
    "variation",
    "opponents",
    "coarse",
    "polish",
    "trajectory",
    "guess",
)
_COARSE_PART = 1 / 3  # of the steps are taken on smaller images
_RARE = 1e-6  # share of a class that is not there
_POLISH_RATE = 0.1  # of the step size is left for polishing


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
        variation: which one: `anisotropic` as published, `isotropic`, `squared` or `huber`.
        opponents: let total variation count the differences between colours too.
        mean: weight of the squared distance of each channel's mean from the data set's.
        median: iterations between two 3×3 median filterings; 0 for none.
        start: `normal`, `uniform`, `zeros`, `pattern`, a uniform tile repeated over the image, `smooth`, normal
            noise on a coarse grid, or `image`, a public image of the class.
        tile: side of the pattern's tile in pixels.
        coarse: search images smaller by this factor in the first third of the steps; 1 for none.
        restarts: starts tried side by side.
        choice: what makes the guess of several restarts: the one of the smallest `objective`, of the smallest `loss`
            (objective without priors) or of the smallest `tv`, or all of them by `pixel-mean` or `pixel-median`, or
            by `registered-mean` or `registered-median` after they were shifted and mirrored to agree.
        polish: steps of a last search from that guess, at a tenth of the step size; 0 for none.
        layers: which parameters count, such as `first-4`, `conv1` or `not-fc`; none means all.
        weights: how much they count: `equal`, `linear`, `exponential` or `balanced`.
        trajectory: what is made of several local steps: `unrolled`, `mean-gradient` or `midpoint`.
        guess: of the clients' local training, for who does not know it; None for one plain gradient.
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
    variation: Variation = "anisotropic"
    opponents: bool = False
    mean: float = 0.0
    median: int = 0
    start: Start = "normal"
    tile: int = 16
    coarse: int = 1
    restarts: int = 1
    choice: Choice = "objective"
    polish: int = 0
    layers: tuple[str, ...] = ()
    weights: Weighting = "equal"
    trajectory: Trajectory = "unrolled"
    guess: LocalTraining | None = None

    def __post_init__(self) -> None:
        for name in ("steps", "inner", "history", "tile", "coarse", "restarts"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.lr <= 0:
            raise ValueError(f"lr must be above 0, got {self.lr}")
        for name in ("tv", "mean", "median", "polish"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be at least 0, got {getattr(self, name)}")

    @property
    def shared(self) -> tuple[object, ...]:
        """What plans must have in common to run in one stack."""
        return tuple(getattr(self, name) for name in _SHARED)


def match(observation: Observation, plan: Plan, *, streams: Streams, runtime: Runtime) -> Reconstruction:
    """Search for images whose gradient matches the observed update.

    Labels in the observation are taken as they are; without any, soft labels are optimized together with the images.
    """
    return match_each(observation, [plan] * observation.victims, streams=streams, runtime=runtime)


def match_each(
    observation: Observation,
    plans: Sequence[Plan],
    *,
    streams: Streams,
    runtime: Runtime,
    choices: Sequence[Sequence[Choice]] | None = None,
) -> Reconstruction:
    """Search as `match` does, by each victim's own plan, all in one stack.

    Plans may differ in everything but `Plan.shared`: step size, steps, decay, sign, box, weights of priors, start,
    restarts, choice and layers. Each victim's guess is the one that its plan alone would find.

    Args:
        observation: of V victims.
        plans: one per victim.
        streams: of the victims.
        runtime: of the search.
        choices: where the restarts of one search are to become guesses by several rules: those of each victim, in
            place of its plan's; the guesses of one victim follow each other.
    """
    if len({plan.shared for plan in plans}) > 1:
        raise ValueError(f"plans of one stack must agree in {', '.join(_SHARED)}; run the others in another one")
    rows = [row for row, plan in enumerate(plans) for _ in range(plan.restarts)]
    seen = observation if len(rows) == len(plans) else observation.select(rows)
    stack = _Stack(seen, [plans[row] for row in rows], restarted(streams, [plan.restarts for plan in plans]))
    rules = choices or [(plan.choice,) for plan in plans]
    guess, scores = _guess(stack, None, runtime=runtime)
    chosen = choose(guess, [(p.restarts, rule) for p, rule in zip(plans, rules, strict=True)], scores=scores)
    if not plans[0].polish:
        return chosen
    owners = [row for row, rule in enumerate(rules) for _ in rule]
    finer = [replace(plans[row], steps=plans[row].polish, lr=_POLISH_RATE * plans[row].lr, coarse=1) for row in owners]
    stack = _Stack(observation.select(owners), finer, streams.select(owners))
    return _guess(stack, chosen, runtime=runtime.named("polish"))[0]


@dataclass(frozen=True, slots=True)
class _Stack:
    """The rows of a search: every victim as often as it has restarts, each row with its plan and stream."""

    seen: Observation
    plans: Sequence[Plan]
    streams: Streams

    def each(self, values: Sequence[float]) -> float | Tensor:
        return each(values, self.seen.update[0])


def _guess(
    stack: _Stack, start: Reconstruction | None, *, runtime: Runtime
) -> tuple[Reconstruction, dict[str, Callable[[], Tensor]]]:
    """Search once, from drawn images or from a guess; return what was found, and what else rates it."""
    seen = stack.seen
    space, match = ImageSpace.of(seen), _matching(stack, runtime)
    distance = distance_to(match.target, stack.plans[0].objective, weights=_weights(stack))

    def labels_of(values: tuple[Tensor, ...]) -> Tensor:
        return values[1].softmax(-1) if seen.labels is None else seen.labels

    def loss(values: tuple[Tensor, ...]) -> Tensor:
        return distance(match.factors(space.pixels(values[0]), labels_of(values)))

    variables = _variables(stack, space) if start is None else _continued(_variables(stack, space), start, space)
    found = _search(_with_priors(loss, stack), stack, space, variables, runtime=runtime)
    guess = Reconstruction(
        inputs=space.pixels(found.values[0]).clamp(0, 1),
        labels=labels_of(found.values),
        objective=found.objective,
        diverged=found.diverged,
        steps=found.steps,
        trace=found.trace,
        captured=found.captured,
    )
    return guess, {"loss": lambda: loss(found.values), "tv": lambda: total_variation(found.values[0])}


def _matching(stack: _Stack, runtime: Runtime) -> Matching:
    """Prepare the comparison; every row draws its own order of samples where clients shuffle."""
    plan = stack.plans[0]
    return matching(
        stack.seen,
        precision=runtime.precision,
        guess=plan.guess,
        trajectory=plan.trajectory,
        streams=stack.streams,
    )


def _with_priors(loss: Function, stack: _Stack) -> Function:
    """Add the priors that some row uses; where all rows weigh one alike, its weight is a plain number."""
    plan = stack.plans[0]
    tv, mean = (stack.each([getattr(p, name) for p in stack.plans]) for name in ("tv", "mean"))

    def objective(values: tuple[Tensor, ...]) -> Tensor:
        total = loss(values)
        if isinstance(tv, Tensor) or tv:
            seen = opponents(values[0]) if plan.opponents else values[0]
            total = total + tv * total_variation(seen, plan.variation)
        if isinstance(mean, Tensor) or mean:
            total = total + mean * distance_from_mean(values[0])
        return total

    return objective


def _search(
    objective: Function, stack: _Stack, space: ImageSpace, variables: list[Variable], *, runtime: Runtime
) -> Minimum:
    """Minimize an objective of the images, on smaller ones first if the plans say so."""
    steps = [plan.steps for plan in stack.plans]
    factor, size = stack.plans[0].coarse, space.shape[2:]
    if factor > 1:
        early = [max(1, int(count * _COARSE_PART)) for count in steps]
        smaller = (-(-size[0] // factor), -(-size[1] // factor))
        small = F.adaptive_avg_pool2d(variables[0].start.flatten(0, 1), smaller)
        images = replace(variables[0], start=small.unflatten(0, variables[0].start.shape[:2]))
        enlarge = enlarging(smaller, size, like=small)
        rough = _minimize(
            lambda values: objective((enlarge(values[0]), *values[1:])),
            [images, *variables[1:]],
            stack,
            steps=early,
            runtime=runtime.named("coarse"),
        )
        starts = (enlarge(rough.values[0]), *rough.values[1:])
        variables = [replace(v, start=start) for v, start in zip(variables, starts, strict=True)]
        steps = [max(1, count - taken) for count, taken in zip(steps, early, strict=True)]
    return _minimize(objective, variables, stack, steps=steps, runtime=runtime)


def _minimize(
    objective: Function, variables: Sequence[Variable], stack: _Stack, *, steps: Sequence[int], runtime: Runtime
) -> Minimum:
    """Minimize by the schedule of every row, or by the one that they share."""
    plans = stack.plans
    lr, stop = stack.each([p.lr for p in plans]), stack.each([_no_mark(p.stop_below) for p in plans])
    decays = [plan.decay for plan in plans]
    return minimize(
        objective,
        variables,
        optimizer=_optimizer(plans[0], 1.0 if isinstance(lr, Tensor) else lr),
        steps=steps[0] if len(set(steps)) == 1 else steps,
        decay=decays[0] if len(set(decays)) == 1 else decays,
        rates=lr if isinstance(lr, Tensor) else None,
        stop_below=None if isinstance(stop, float) and stop == -torch.inf else stop,
        runtime=runtime,
    )


def _no_mark(mark: float | None) -> float:
    return -torch.inf if mark is None else mark


def _weights(stack: _Stack) -> Tensor | None:
    """Return the (V, n) weights of the parameters; None if all count alike in every row."""
    keys = [(plan.layers, plan.weights) for plan in stack.plans]
    if set(keys) == {((), "equal")}:
        return None

    def make(key: tuple[tuple[str, ...], Weighting], rows: list[int]) -> Tensor:
        some = stack.seen if len(rows) == len(keys) else stack.seen.select(rows)
        found = layer_weights(some, *key)
        return some.update[0].new_ones(len(rows), len(some.names)) if found is None else found

    return assemble(keys, make)


def _variables(stack: _Stack, space: ImageSpace) -> list[Variable]:
    """Start the images and, where nobody knows them, the logits of the labels."""
    seen, plans = stack.seen, stack.plans
    start = assemble(
        [(plan.start, plan.tile) for plan in plans],
        lambda key, rows: space.select(rows).start(key[0], stack.streams.select(rows), tile=key[1]),
    )
    low, high = _box([plan.boxed for plan in plans], space)
    signed = [plan.signed for plan in plans]
    mixed = torch.tensor(signed, device=start.device) if len(set(signed)) > 1 else signed[0]
    images = Variable(start=start, signed=mixed, low=low, high=high)
    if seen.labels is not None:
        return [images]
    logits = stack.streams.normal("labels", (seen.input_shape[0], seen.num_classes), like=seen.update[0])
    return [images, Variable(start=logits)]


def _continued(variables: list[Variable], guess: Reconstruction, space: ImageSpace) -> list[Variable]:
    """Start from a guess instead."""
    images = space.normalization.standardize(guess.inputs.to(space.like))
    logits = [] if guess.labels is None else [guess.labels.clamp_min(_RARE).log()]
    starts = [images, *logits][: len(variables)]
    return [replace(variable, start=start) for variable, start in zip(variables, starts, strict=True)]


def _box(boxed: Sequence[bool], space: ImageSpace) -> tuple[Tensor | None, Tensor | None]:
    """Return black and white, infinitely far for rows without a box."""
    if not any(boxed):
        return None, None
    low, high = space.box()
    if all(boxed):
        return low, high
    inside = torch.tensor(boxed, device=low.device).view(-1, 1, 1, 1, 1)
    return torch.where(inside, low, -torch.inf), torch.where(inside, high, torch.inf)


def _optimizer(plan: Plan, lr: float) -> Optimizer:
    optimizer: Optimizer = Adam(lr=lr)
    if plan.optimizer == "sgd":
        optimizer = SGD(lr=lr)
    elif plan.optimizer == "lbfgs":
        optimizer = LBFGS(lr=lr, inner=plan.inner, history=plan.history)
    return Filtered(optimizer, plan.median) if plan.median else optimizer
