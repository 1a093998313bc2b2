"""Defence by concealing sensitive samples."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, final

import torch
from torch import Tensor
from typing_extensions import override

from gradveil.defenses._base import Adversary, StepDefense, StepResult
from gradveil.defenses._concealing import (
    Objective,
    Preset,
    Start,
    choose_sensitive,
    conceal,
    pair,
    project,
    recipe_of,
    rounded_up,
)
from gradveil.defenses._network import StackedNetwork
from gradveil.engine import spread
from gradveil.errors import DataError
from gradveil.streams import Streams
from gradveil.types import Card, Gradients, Paper, Protected


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class DCS2(StepDefense):
    """Hide sensitive samples behind images that look different and have nearly their gradient.

    For each sensitive sample concealed ones are optimized against the current network; their gradient, under their own
    label and under the sensitive one, is added to that of the batch (DCS²), and the sum is turned where it points
    against the batch (DCS²+). The server is told of the original samples alone.

    Protects the marked samples, not the others. Weakened by an adversary who knows of it and optimizes further images
    with free labels beside the announced ones; by the choice of a preset for another attack than the one that comes;
    and by a batch without another label, whose concealed samples must start at noise.

    Args:
        preset: the paper's weights against gradient `matching`, `imprint` modules and `generative` priors.
        objective: `paper`; `scaled`, the same with each pair's logit distance in units of that at its start; `release`
            with its bounded distance and relative logit term, whose own weights it uses. None for `paper`, but `scaled`
            for the preset `imprint`, whose logit term weighs nothing where logits hardly depend on the image.
        start: another sample of the `batch` with another label, an image of the client's `pool`, or `noise`.
        mixing: lambda, the share of a concealed sample's own label; None for 0.3 of the paper, 0.7 of the release.
        weight: each concealed sample weighs as much as one `sample` of the batch, or all together as the whole `batch`
            does, as the release has it; None for the objective's own.
        projection: `closest` gradient that agrees with the batch's (Eq. 8), `margin` adds half of that at least, as
            the release does, `none` is plain DCS².
        concealed: samples per sensitive one.
        fraction: of the batch that may be sensitive, rounded up and drawn at random; 0 switches the defense off.
        classes: that may be sensitive; empty for all. A sample is sensitive if a mask that comes with the batch,
            classes and fraction all say so.
        alpha: weight of looking different; None for the preset's.
        beta: weight of similar logits; None for the preset's.
        steps: of Adam; None for the preset's.
    """

    paper: ClassVar[Paper | None] = Paper(
        title="Concealing Sensitive Samples against Gradient Leakage in Federated Learning",
        authors="Wu, Hayat, Zhou, Harandi",
        year=2024,
        url="https://arxiv.org/abs/2209.05724",
    )
    adversary: ClassVar[Adversary] = Adversary(
        attack="extra-image",
        reason="who knows of concealed samples explains the update by further images with free labels",
    )
    off: ClassVar[Mapping[str, object] | None] = {"fraction": 0.0}
    card: ClassVar[Card] = Card(
        fails="against who knows of it and explains the update by further images; against a generator of such images, "
        "whatever the preset (digits, results/dcs2); for samples that are not marked; "
        "in batches of one label, where concealed samples start at noise; imprint blocks with many bins sort "
        "concealed and sensitive samples apart; few bins too, with objective=paper, where logits hardly depend on the "
        "image; weight=batch rules the training where few samples of a large batch are sensitive",
        costs="1,000 gradients and their derivatives per step and sensitive sample at the default preset, all "
        "samples of a stack side by side; a client of several local steps pays for each of them",
        suggested="preset=matching; preset=imprint where the server may change the architecture",
        interacts="soteria and dp-sgd compute the gradient in their own way and cannot be combined with it; noise "
        "after it protects the samples that are not marked, and breaks the promise that the update "
        "agrees with the plain one; mixup and InstaHide leave few labels that differ",
    )

    preset: Preset = "matching"
    objective: Objective | None = None
    start: Start = "batch"
    mixing: float | None = None
    weight: Literal["sample", "batch"] | None = None
    projection: Literal["closest", "margin", "none"] = "closest"
    concealed: int = 1
    fraction: float = 1.0
    classes: tuple[int, ...] = ()
    alpha: float | None = None
    beta: float | None = None
    steps: int | None = None

    def __post_init__(self) -> None:
        for name, most in (("mixing", 1), ("fraction", 1), ("alpha", 1e9), ("beta", 1e9)):
            if not 0 <= (getattr(self, name) or 0.0) <= most:
                raise ValueError(f"{name} must lie in [0, {most:g}], got {getattr(self, name)}")
        for name in ("concealed", "steps"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")

    @override
    def gradient(
        self, network: StackedNetwork, /, data: Protected, *, sensitive: Tensor | None, streams: Streams
    ) -> StepResult:
        found = network(data.inputs, data.labels)
        plain = tuple(gradient.detach() for gradient in found.gradients)
        result = StepResult(plain, data, {name: tensor.detach() for name, tensor in found.buffers.items()})
        if any(not 0 <= label < network.num_classes for label in self.classes):
            raise DataError(f"classes lie in 0 .. {network.num_classes - 1}, got {', '.join(map(str, self.classes))}")
        marked = choose_sensitive(data, sensitive, fraction=self.fraction, classes=self.classes, streams=streams)
        if not bool(marked.any()):
            return result
        # Private parameters do not leave, so that they are neither matched nor changed.
        public = tuple(plain[network.names.index(name)] for name in network.shared)
        changed = self._obfuscate(public, network, data, marked, streams)
        if self.projection != "none":
            changed = project(changed, public, margin=0.5 if self.projection == "margin" else 0.0)
        by_name = dict(zip(network.shared, changed, strict=True))
        protected = tuple(by_name.get(name, g) for name, g in zip(network.names, plain, strict=True))
        return replace(result, gradients=protected)

    def concealed_in(self, size: int) -> int:
        """Return how many samples may be concealed in a batch; who knows the defense knows that."""
        return rounded_up(self.fraction, size) * self.concealed

    def _obfuscate(
        self, plain: Gradients, network: StackedNetwork, data: Protected, marked: Tensor, streams: Streams
    ) -> Gradients:
        """Add the gradients of concealed samples, under their own label and under the sensitive one (Eq. 7)."""
        pairs = pair(network, data, marked, start=self.start, copies=self.concealed, streams=streams)
        recipe = recipe_of(self.preset, self.objective, alpha=self.alpha, beta=self.beta, steps=self.steps)
        hidden = conceal(pairs, recipe)
        released = self.objective == "release"
        share = self.mixing if self.mixing is not None else 0.7 if released else 0.3
        together = released if self.weight is None else self.weight == "batch"
        size, counts = marked.shape[1], (marked.sum(1) * self.concealed).clamp_min(1)
        divisors = (counts if together else torch.full_like(counts, size)).to(plain[0])
        added = pairs.gradients(hidden, share=share, divisors=divisors / (size if network.reduction == "sum" else 1))
        # The release divides by the number of its loss terms, which changes the length of the step alone.
        divisor = torch.where(marked.any(1), 1 if not released else 3 if 0 < share < 1 else 2, 1)
        return tuple((g + a) / spread(divisor, g) for g, a in zip(plain, added, strict=True))
