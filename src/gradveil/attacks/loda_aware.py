"""Gradient matching through the objective of Learning to Obscure Data."""

from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor
from typing_extensions import override

from gradveil.attacks._base import Attack
from gradveil.attacks._decode_stationarity import condition, known_extractor, known_weight
from gradveil.attacks._labels import LabelRule, with_labels
from gradveil.attacks._matching import Plan, match
from gradveil.attacks._objectives import distance_to
from gradveil.attacks._priors import ImageSpace, total_variation
from gradveil.engine import Adam, Minimum, Runtime, Variable, matching, minimize
from gradveil.streams import Streams
from gradveil.types import Card, Knowledge, Observation, Paper, Reconstruction


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class LodaAware(Attack):
    """Search for the obscured and the private image together: one must explain the update, the other the first.

    The obscured image is recovered by gradient matching first. From that one both move: the gradient of the obscured
    image is to point where the update does, and it is to be stationary for the private one under the defense's
    objective. The private image starts grey, since the obscured one meets its own condition and would not be left.
    LODA's own adaptive attack takes the recovered image for exact; here a private image that no obscured one near it
    explains moves the recovered image too.

    Args:
        first: steps of signed Adam for the obscured image alone.
        steps: of Adam for both images.
        lr: step size of both, in standardized pixels and pixels.
        tv: weight of total variation of the obscured image.
        weight: of the stationary condition, whose square counts 1 at the start.
        anchor: of the distance of the obscured image from the recovered one, whose square counts 1 at grey.
        c: of the defense's objective; None for that of the known defense, or 20 where it does not tell.
        smooth: weight of total variation of the private image.
        labels: how unknown labels are found.
    """

    paper: ClassVar[Paper] = Paper(
        title="Defense Against Gradient Leakage Attacks via Learning to Obscure Data",
        authors="Wan, Xu, Liu, Ren, Fan, Tang",
        year=2022,
        url="https://arxiv.org/abs/2206.00769",
    )
    requires: ClassVar[Knowledge] = Knowledge.DEFENSES
    threat: ClassVar[str] = "D"
    card: ClassVar[Card] = Card(
        fails="an obscured image that is recovered badly, or that descent left far from a stationary point or on the "
        "border of [0, 1]; the obscured image meets its own condition too, and is found where grey is nearer to it",
        costs="two backward passes of the network per step, and three of the extractor in the second part",
        suggested="first as for inverting-gradients on the same network; c as the defense has it",
        interacts="it needs the extractor and layers of the defense; whatever weakens inverting-gradients weakens it",
    )

    first: int = 4800
    steps: int = 500
    lr: float = 0.02
    tv: float = 1e-4
    weight: float = 1.0
    anchor: float = 10.0
    c: float | None = None
    smooth: float = 0.0
    labels: LabelRule = "idlg"

    def __post_init__(self) -> None:
        if self.first < 1 or self.steps < 1 or self.lr <= 0:
            raise ValueError(
                f"first and steps must be at least 1, lr above 0, got {self.first}, {self.steps}, {self.lr}"
            )
        for name in ("tv", "weight", "anchor", "c", "smooth"):
            if (getattr(self, name) or 0) < 0:
                raise ValueError(f"{name} must be at least 0, got {getattr(self, name)}")

    @override
    def run(self, observation: Observation, *, streams: Streams, runtime: Runtime) -> Reconstruction:
        seen = with_labels(observation, self.labels)
        plan = Plan(steps=self.first, decay=True, signed=True, boxed=True, tv=self.tv)
        recovered = match(seen, plan, streams=streams, runtime=runtime.named("obscured"))
        labels = recovered.labels
        assert labels is not None
        found = self._both(seen, recovered.inputs, labels, runtime.named("both"))
        return Reconstruction(
            inputs=found.values[1],
            labels=labels,
            protected=ImageSpace.of(seen).pixels(found.values[0]).clamp(0, 1),
            objective=found.objective,
            diverged=found.diverged | recovered.diverged,
            steps=found.steps + recovered.steps,
            trace=found.trace,
            captured=found.captured,
        )

    def _both(self, seen: Observation, obscured: Tensor, labels: Tensor, runtime: Runtime) -> Minimum:
        """Move the obscured image, in standardized pixels, and the private one, in pixels, which starts grey."""
        space, trial = ImageSpace.of(seen), matching(seen, precision=runtime.precision)
        distance, grey = distance_to(trial.target, "cosine"), torch.full_like(obscured, 0.5)
        extractor, c = known_extractor(seen, obscured), known_weight(seen) if self.c is None else self.c

        def misfit(private: Tensor, image: Tensor) -> Tensor:
            pulled = condition(private.flatten(0, 1), image.flatten(0, 1), extractor, weight=c)
            return pulled.square().view(len(image), -1).sum(1)

        def away(image: Tensor) -> Tensor:
            return (image - obscured).square().flatten(1).sum(1)

        scale, room = misfit(grey, obscured).detach().clamp_min(1e-12), away(grey).clamp_min(1e-12)

        def objective(values: tuple[Tensor, ...]) -> Tensor:
            pixels = space.pixels(values[0])
            matched = distance(trial.factors(pixels, labels)) + self.tv * total_variation(values[0])
            explained = self.weight * misfit(values[1], pixels) / scale + self.anchor * away(pixels) / room
            return matched + explained + self.smooth * total_variation(values[1])

        low, high = space.box()
        black, white = torch.zeros_like(low), torch.ones_like(high)
        variables = [
            Variable(start=space.normalization.standardize(obscured), low=low, high=high),
            Variable(start=grey, low=black, high=white),
        ]
        return minimize(objective, variables, optimizer=Adam(lr=self.lr), steps=self.steps, decay=True, runtime=runtime)
