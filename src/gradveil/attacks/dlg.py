"""Deep Leakage from Gradients."""

from dataclasses import dataclass
from typing import ClassVar, final

from typing_extensions import override

from gradveil.attacks._base import Attack
from gradveil.attacks._labels import LabelRule
from gradveil.attacks._matching import Plan, match
from gradveil.attacks._priors import Start
from gradveil.engine import Runtime
from gradveil.streams import Streams
from gradveil.types import Card, Observation, Paper, Reconstruction


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class DLG(Attack):
    """Optimize dummy images and soft labels until their gradient matches the shared one.

    Labels that the adversary knows are taken as they are.

    Args:
        steps: outer L-BFGS steps.
        inner: iterations of one step.
        lr: L-BFGS step size.
        history: pairs that L-BFGS keeps.
        start: `normal`, `uniform`, `zeros`, `smooth`, or `pattern`, a uniform tile repeated over the image.
        tile: side of the pattern's tile in pixels.
        restarts: starts tried side by side; the one of the smallest gradient distance is kept.
    """

    paper: ClassVar[Paper] = Paper(
        title="Deep Leakage from Gradients",
        authors="Zhu, Liu, Han",
        year=2019,
        url="https://arxiv.org/abs/1906.08935",
    )
    card: ClassVar[Card] = Card(
        fails="On trained or ReLU networks, whose gradients are tiny or not smooth, on larger batches, and from an "
        "unlucky start.",
        costs="`inner` double backward passes per step and restart, and `history` images of memory per victim, twice.",
        suggested="Several `restarts`; a smooth network (sigmoid, no strides), as in the paper. `tune` searches step "
        "size, start and restarts on simulated victims.",
        interacts="Noise and unknown pruning weaken it; clipping too, since the length of the update counts.",
    )

    steps: int = 300
    inner: int = 20
    lr: float = 1.0
    history: int = 100
    start: Start = "normal"
    tile: int = 16
    restarts: int = 1

    def __post_init__(self) -> None:
        self.plan()

    @override
    def run(self, observation: Observation, *, streams: Streams, runtime: Runtime) -> Reconstruction:
        return match(observation, self.plan(), streams=streams, runtime=runtime)

    def label_rule(self, _observation: Observation) -> LabelRule:
        """Return how unknown labels are found: with the images."""
        return "optimized"

    def plan(self) -> Plan:
        """Return the settings in full."""
        return Plan(
            objective="l2",
            optimizer="lbfgs",
            lr=self.lr,
            steps=self.steps,
            inner=self.inner,
            history=self.history,
            start=self.start,
            tile=self.tile,
            restarts=self.restarts,
        )
