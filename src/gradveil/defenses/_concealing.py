"""Concealed samples: other images that have nearly the gradient of a sensitive one."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from gradveil.defenses._network import StackedNetwork
from gradveil.defenses._norms import inner, lengths
from gradveil.engine import Adam, Variable, find_normalization, minimize, spread
from gradveil.errors import DataError
from gradveil.streams import Streams
from gradveil.types import Gradients, Protected

Start: TypeAlias = Literal["batch", "pool", "noise"]
"""Another sample of the batch with another label, an image of the pool, or noise."""

Objective: TypeAlias = Literal["paper", "scaled", "release"]
"""The paper's; that with logit distances in units of the one at the start; or its release's."""

Preset: TypeAlias = Literal["matching", "imprint", "generative"]
"""The attack that the weights were chosen against."""

_LOGIT_OFFSET = 0.01  # a constant of the release, without influence on the minimum
_LR = 0.1
_LIGHT = 1.0  # weight of the logit term up to which its rounding does not matter
_AGREEMENT = 100  # smallest cosine of plain and projected gradients, in units of the rounding of a number


@dataclass(frozen=True, slots=True)
class Recipe:
    """How concealed samples are made.

    Args:
        objective: what they minimize.
        alpha: weight of looking different.
        beta: weight of similar outputs.
        steps: of Adam.
    """

    objective: Objective
    alpha: float
    beta: float
    steps: int


RECIPES: Final[Mapping[Preset, Recipe]] = {
    "matching": Recipe("paper", 0.1, 1e-3, 1000),
    "imprint": Recipe("scaled", 30.0, 100.0, 100),
    "generative": Recipe("paper", 1.0, 10.0, 1000),
}
RELEASE: Final = Recipe("release", 0.01, 0.01, 1000)


def recipe_of(
    preset: Preset, objective: Objective | None, *, alpha: float | None, beta: float | None, steps: int | None
) -> Recipe:
    """Take a preset's own recipe, or the release's, wherever nothing else is asked for."""
    own = RELEASE if objective == "release" else RECIPES[preset]
    return Recipe(
        objective=objective or own.objective,
        alpha=own.alpha if alpha is None else alpha,
        beta=own.beta if beta is None else beta,
        steps=steps or own.steps,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairs:
    """M sensitive samples, each with a place where its concealed one begins.

    Args:
        network: of M clients, one per sample, in eval mode, differentiated by the parameters that are shared.
        owners: (M,) the victim of each.
        inputs: (M, 1, C, H, W) the sensitive pixels.
        labels: (M, 1) or (M, 1, K) their labels.
        start_inputs: where the concealed samples begin.
        start_labels: the labels that they keep.
    """

    network: StackedNetwork
    owners: Tensor
    inputs: Tensor
    labels: Tensor
    start_inputs: Tensor
    start_labels: Tensor

    def gradients(self, concealed: Tensor, *, share: float, divisors: Tensor) -> Gradients:
        """Sum the gradients of each victim's concealed pixels, by `share` under their own labels, and divide.

        Args:
            concealed: (M, 1, C, H, W).
            share: of their own labels; the rest is of the sensitive ones.
            divisors: (V,) by which the sums of the victims are divided.
        """
        function = self.network.function(concealed)
        own, other = (function(concealed, labels).gradients for labels in (self.start_labels, self.labels))
        return tuple(
            _sum_by(self.owners, share * a + (1 - share) * b, len(divisors)) / spread(divisors, a)
            for a, b in zip(own, other, strict=True)
        )


def pair(
    network: StackedNetwork, data: Protected, marked: Tensor, *, start: Start, copies: int, streams: Streams
) -> Pairs:
    """Choose where the concealed samples of marked ones (V, B) begin; their label is never that of the sample.

    A sample without a partner of another label in its batch begins at noise.

    Args:
        network: of V victims.
        data: what they train on.
        marked: (V, B) the sensitive samples.
        start: where concealed samples begin.
        copies: concealed samples per sensitive one.
        streams: of the victims.
    """
    start_inputs, start_labels = _starts(network, data, start=start, copies=copies, streams=streams)
    owners, numbers = (index.repeat_interleave(copies) for index in marked.nonzero(as_tuple=True))
    copy = torch.arange(copies, device=owners.device).repeat(len(owners) // copies)
    keys = (numbers * copies + copy).tolist()
    return Pairs(
        network=replace(network.samples(owners.tolist(), keys), names=network.shared, mode="eval"),
        owners=owners,
        inputs=data.inputs[owners, numbers][:, None],
        labels=data.labels[owners, numbers][:, None],
        start_inputs=start_inputs[owners, numbers, copy][:, None],
        start_labels=start_labels[owners, numbers, copy][:, None],
    )


def choose_sensitive(
    data: Protected, sensitive: Tensor | None, *, fraction: float, classes: Sequence[int], streams: Streams
) -> Tensor:
    """Return (V, B), the samples to conceal: those that mask, classes and fraction all name."""
    size, device = data.inputs.shape[1], data.inputs.device
    marked = streams.permutation("dcs2/sensitive", size, device=device) < rounded_up(fraction, size)
    if classes:
        hard = data.labels if data.labels.ndim == 2 else data.labels.argmax(-1)
        marked = marked & torch.isin(hard, torch.tensor(classes, device=device))
    return marked if sensitive is None else marked & sensitive


def rounded_up(fraction: float, size: int) -> int:
    """Return how many samples of a batch a share of it is, rounded up but for rounding errors.

    Example:
        >>> rounded_up(0.1, 30), rounded_up(0.004, 200), rounded_up(0.0, 200)
        (3, 1, 0)
    """
    return math.ceil(fraction * size - 1e-9)


def conceal(pairs: Pairs, recipe: Recipe) -> Tensor:
    """Move images until they have the gradient of sensitive ones, look different, and come out alike.

    All of them are optimized side by side, each matched to its own sensitive sample.

    Args:
        pairs: what to conceal, and where to start.
        recipe: what they minimize, and for how long.

    Returns:
        (M, 1, C, H, W) pixels of any range.
    """
    network, space = pairs.network, find_normalization(pairs.network.model)
    function = network.function(pairs.inputs)
    truth = function(pairs.inputs, pairs.labels)
    target = _unit(tuple(gradient.detach() for gradient in truth.gradients))
    logits = truth.outputs.detach()[..., : network.num_classes]
    image = space.standardize(pairs.inputs)
    alpha, beta, scaled = recipe.alpha, recipe.beta, recipe.objective == "scaled"
    terms = _release_terms if recipe.objective == "release" else _paper_terms
    weight = beta / _unit_distance(pairs, logits) if scaled else beta

    def score(values: tuple[Tensor, ...]) -> Tensor:
        trial = function(space.pixels(values[0]), pairs.start_labels)
        cosine = inner(trial.gradients, target) / lengths(trial.gradients).clamp_min(1e-12)
        outputs = trial.outputs[..., : network.num_classes]
        return terms(_distance(values[0], image), outputs, logits, alpha, weight) - cosine

    begun = Variable(start=space.standardize(pairs.start_inputs))
    # The search bears the rounding of tf32; what leaves is computed afterwards, in the client's own precision.
    # Logits that weigh much do not, and the unit of `scaled` may be smaller than that rounding.
    precision = network.runtime.precision if scaled or beta > _LIGHT else "tf32"
    runtime = replace(network.runtime.named("conceal"), precision=precision)
    with runtime.numerics():
        found = minimize(score, [begun], optimizer=Adam(lr=_LR), steps=recipe.steps, decay=True, runtime=runtime)
    return space.pixels(found.values[0])


def project(changed: Gradients, plain: Gradients, *, margin: float) -> Gradients:
    """Turn changed gradients that point against the plain ones, as little as possible, until they do not any more.

    Args:
        changed: of V victims.
        plain: what they must agree with.
        margin: at least so much of the plain gradient is added where there is something to turn.
    """
    wide, other = (tuple(tensor.double() for tensor in update) for update in (changed, plain))
    product, square = inner(wide, other), inner(other, other)
    # Who computes the plain gradient again, in another stack or by another kernel, gets one that differs in the last
    # digits, by about ten roundings of its length; the product with that one must not be negative either.
    least = _AGREEMENT * torch.finfo(changed[0].dtype).eps * lengths(wide) * square.sqrt()
    needed = ((least - product) / torch.where(square > 0, square, 1.0)).clamp_min(margin)
    added = torch.where(product < least, needed, 0).to(changed[0].dtype)
    return tuple(c + spread(added, p) * p for c, p in zip(changed, plain, strict=True))


def _unit_distance(pairs: Pairs, logits: Tensor) -> Tensor:
    """Return (M,) how far the outputs of the starts are from `logits`, those of the sensitive samples.

    A start that comes out as the sensitive sample does, to rounding, tells no unit; the paper's own, 1, is left to it.
    """
    network = pairs.network
    begun = network.function(pairs.start_inputs)(pairs.start_inputs, pairs.start_labels).outputs.detach()
    distance = _lengths_of(begun[..., : network.num_classes] - logits)
    rounding = 10 * torch.finfo(logits.dtype).eps * _lengths_of(logits)
    return torch.where(distance > rounding, distance, 1.0)


def _paper_terms(apart: Tensor, outputs: Tensor, logits: Tensor, alpha: float, beta: float | Tensor) -> Tensor:
    """Return alpha / ||x - x_s|| + beta ||f(x) - f(x_s)||, Eq. 5 and 6."""
    return alpha / apart.clamp_min(1e-12) + beta * _distance(outputs, logits)


def _release_terms(apart: Tensor, outputs: Tensor, logits: Tensor, alpha: float, beta: float | Tensor) -> Tensor:
    """Return what the release minimizes: a distance that saturates, and a relative one of the outputs."""
    relative = _distance(outputs, logits) / _lengths_of(logits).clamp_min(1e-12)
    return 1 + (-alpha * apart).exp() + beta * (relative - _LOGIT_OFFSET)


def _distance(first: Tensor, second: Tensor) -> Tensor:
    # The root has no derivative at zero, where a sample that starts at its own place would be.
    squares: Tensor = (first - second).square().flatten(1).sum(1)
    return (squares + 1e-24).sqrt()


def _lengths_of(outputs: Tensor) -> Tensor:
    found: Tensor = torch.linalg.vector_norm(outputs.flatten(1), dim=1)
    return found


def _unit(update: Gradients) -> Gradients:
    norm = lengths(update).clamp_min(1e-12)
    return tuple(tensor / spread(norm, tensor) for tensor in update)


def _sum_by(owners: Tensor, tensor: Tensor, victims: int) -> Tensor:
    return tensor.new_zeros(victims, *tensor.shape[1:]).index_add(0, owners, tensor.detach())


def _starts(
    network: StackedNetwork, data: Protected, *, start: Start, copies: int, streams: Streams
) -> tuple[Tensor, Tensor]:
    """Return inputs (V, B, copies, C, H, W) and labels (V, B, copies) or (V, B, copies, K), like those of `data`."""
    classes = data.labels if data.labels.ndim == 2 else data.labels.argmax(-1)
    shape = (classes.shape[1], copies)
    shift = 1 + streams.integers("dcs2/label", max(network.num_classes - 1, 1), shape, device=classes.device)
    labels = (classes[..., None] + shift) % network.num_classes
    if data.labels.ndim == 3:
        labels = F.one_hot(labels, network.num_classes).to(data.labels.dtype)
    noise = streams.normal("dcs2/noise", (*shape, *data.inputs.shape[2:]), like=data.inputs)
    inputs = find_normalization(network.model).pixels(noise)
    if start == "pool":
        inputs = _from_pool(network.pool, data, copies, streams)
    elif start == "batch":
        inputs, labels = _from_batch(data, classes, inputs, labels, streams)
    return inputs, labels


def _from_pool(pool: Tensor | None, data: Protected, copies: int, streams: Streams) -> Tensor:
    if pool is None or not len(pool):
        raise DataError("concealed samples are to start from a pool of images, but the client has none; give it one")
    chosen = streams.integers("dcs2/pool", len(pool), (data.inputs.shape[1], copies))
    return pool[chosen.to(pool.device)].to(data.inputs)


def _from_batch(
    data: Protected, classes: Tensor, inputs: Tensor, labels: Tensor, streams: Streams
) -> tuple[Tensor, Tensor]:
    """Take samples of another class where there are any, and the given ones elsewhere."""
    victims, size, copies = inputs.shape[:3]
    other = (classes[:, :, None] != classes[:, None, :])[:, :, None]
    chance = streams.uniform("dcs2/partner", (size, copies, size)).to(classes.device)
    partner = torch.where(other, chance, -1.0).argmax(-1)
    rows = torch.arange(victims, device=classes.device)[:, None, None]
    found = other.any(-1).expand(victims, size, copies)
    return (
        torch.where(found[..., None, None, None], data.inputs[rows, partner], inputs),
        torch.where(found if labels.ndim == 3 else found[..., None], data.labels[rows, partner], labels),
    )
