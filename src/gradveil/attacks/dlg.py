"""Deep Leakage from Gradients."""

from dataclasses import dataclass
from typing import ClassVar, final

from torch import Tensor
from typing_extensions import override

from gradveil.attacks._base import Attack
from gradveil.attacks._objectives import squared_distance
from gradveil.attacks._priors import ImageSpace, Start
from gradveil.attacks._restarts import keep_best
from gradveil.engine import LBFGS, Runtime, Variable, matching, minimize
from gradveil.streams import Streams
from gradveil.types import Observation, Paper, Reconstruction


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class DLG(Attack):
    """Optimize dummy images and soft labels until their gradient matches the shared one.

    Labels that the adversary knows are taken as they are. Convergence depends on the start: use several.

    Args:
        steps: outer L-BFGS steps.
        inner: iterations of one step.
        lr: L-BFGS step size.
        history: pairs that L-BFGS keeps.
        start: `normal`, `uniform`, `zeros`, or `pattern`, a uniform tile repeated over the image.
        tile: side of the pattern's tile in pixels.
        restarts: starts tried side by side; the one of the smallest gradient distance is kept.
    """

    paper: ClassVar[Paper] = Paper(
        title="Deep Leakage from Gradients",
        authors="Zhu, Liu, Han",
        year=2019,
        url="https://arxiv.org/abs/1906.08935",
    )

    steps: int = 300
    inner: int = 20
    lr: float = 1.0
    history: int = 100
    start: Start = "normal"
    tile: int = 16
    restarts: int = 1

    def __post_init__(self) -> None:
        for name in ("steps", "inner", "history", "tile", "restarts"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.lr <= 0:
            raise ValueError(f"lr must be above 0, got {self.lr}")

    @override
    def run(self, observation: Observation, *, streams: Streams, runtime: Runtime) -> Reconstruction:
        seen, streams = observation.repeat(self.restarts), streams.repeat(self.restarts)
        space, match = ImageSpace.of(seen), matching(seen, precision=runtime.precision)
        variables = [Variable(start=space.start(self.start, streams, tile=self.tile))]
        if seen.labels is None:
            logits = streams.normal("labels", (seen.input_shape[0], seen.num_classes), like=seen.update[0])
            variables.append(Variable(start=logits))

        def labels_of(values: tuple[Tensor, ...]) -> Tensor:
            return values[1].softmax(-1) if seen.labels is None else seen.labels

        def objective(values: tuple[Tensor, ...]) -> Tensor:
            trial = match.gradients(space.pixels(values[0]), labels_of(values))
            return squared_distance(trial, match.target)

        optimizer = LBFGS(lr=self.lr, inner=self.inner, history=self.history)
        found = minimize(objective, variables, optimizer=optimizer, steps=self.steps, runtime=runtime)
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
