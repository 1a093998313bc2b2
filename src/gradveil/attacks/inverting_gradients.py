"""Inverting Gradients."""

from dataclasses import dataclass
from typing import ClassVar, final

from torch import Tensor
from typing_extensions import override

from gradveil.attacks._base import Attack
from gradveil.attacks._labels import idlg
from gradveil.attacks._objectives import cosine_distance, unit
from gradveil.attacks._priors import ImageSpace, Start, total_variation
from gradveil.attacks._restarts import keep_best
from gradveil.engine import Adam, Runtime, Variable, matching, minimize
from gradveil.streams import Streams
from gradveil.types import Observation, Paper, Reconstruction


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class InvertingGradients(Attack):
    """Turn images until their gradient points where the shared one does, and keep them smooth.

    Unknown labels are read off the last layer for a batch of one (iDLG's rule) and optimized with the images for more.

    Args:
        steps: iterations of signed Adam.
        lr: its step size, in standardized pixels; multiplied by 0.1 at 3/8, 5/8 and 7/8 of the steps.
        tv: weight of total variation.
        signed: use the sign of the gradient alone.
        boxed: keep pixels between black and white.
        start: `normal`, `uniform`, `zeros` or `pattern`.
        restarts: starts tried side by side; the one of the smallest objective is kept.
    """

    paper: ClassVar[Paper] = Paper(
        title="Inverting Gradients - How easy is it to break privacy in federated learning?",
        authors="Geiping, Bauermeister, Dröge, Moeller",
        year=2020,
        url="https://arxiv.org/abs/2003.14053",
    )

    steps: int = 4800
    lr: float = 0.1
    tv: float = 1e-4
    signed: bool = True
    boxed: bool = True
    start: Start = "normal"
    restarts: int = 1

    def __post_init__(self) -> None:
        for name in ("steps", "restarts"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.lr <= 0 or self.tv < 0:
            raise ValueError(f"lr must be above 0 and tv at least 0, got {self.lr} and {self.tv}")

    @override
    def run(self, observation: Observation, *, streams: Streams, runtime: Runtime) -> Reconstruction:
        seen, streams = observation.repeat(self.restarts), streams.repeat(self.restarts)
        space, match = ImageSpace.of(seen), matching(seen, precision=runtime.precision)
        target = unit(match.target)
        low, high = space.box() if self.boxed else (None, None)
        variables = [Variable(start=space.start(self.start, streams), signed=self.signed, low=low, high=high)]
        known = seen.labels
        if known is None and seen.input_shape[0] == 1:
            known = idlg(seen)
        if known is None:
            logits = streams.normal("labels", (seen.input_shape[0], seen.num_classes), like=seen.update[0])
            variables.append(Variable(start=logits))

        def labels_of(values: tuple[Tensor, ...]) -> Tensor:
            return values[1].softmax(-1) if known is None else known

        def objective(values: tuple[Tensor, ...]) -> Tensor:
            trial = match.gradients(space.pixels(values[0]), labels_of(values))
            return cosine_distance(trial, target) + self.tv * total_variation(values[0])

        found = minimize(
            objective, variables, optimizer=Adam(lr=self.lr), steps=self.steps, decay=True, runtime=runtime
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
        return keep_best(guess, self.restarts)
