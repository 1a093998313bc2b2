"""Improved Deep Leakage from Gradients."""

from dataclasses import dataclass
from typing import ClassVar, final

from typing_extensions import override

from gradveil.attacks._base import Attack
from gradveil.attacks._labels import LabelRule, with_labels
from gradveil.attacks._matching import Plan, match
from gradveil.attacks._priors import Start
from gradveil.engine import Runtime
from gradveil.streams import Streams
from gradveil.types import Card, Observation, Paper, Reconstruction


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class IDLG(Attack):
    """Read the label off the last layer, then optimize dummy images alone until their gradient matches.

    The label is exact for a batch of one and features that are not negative. A larger batch gets the classes of the
    smallest row sums, which is right as long as no class repeats.

    Args:
        steps: outer L-BFGS steps.
        inner: iterations of one step.
        lr: L-BFGS step size.
        history: pairs that L-BFGS keeps.
        stop_below: squared distance at which a victim is done.
        start: `normal`, `uniform`, `zeros`, `smooth`, or `pattern`, a uniform tile repeated over the image.
        tile: side of the pattern's tile in pixels.
        restarts: starts tried side by side; the one of the smallest gradient distance is kept.
    """

    paper: ClassVar[Paper] = Paper(
        title="iDLG: Improved Deep Leakage from Gradients",
        authors="Zhao, Mopuri, Bilen",
        year=2020,
        url="https://arxiv.org/abs/2001.02610",
    )
    card: ClassVar[Card] = Card(
        fails="Where L-BFGS does: on trained or ReLU networks, whose gradients are tiny or not smooth, and from an "
        "unlucky start; and where a class repeats in the batch.",
        costs="`inner` double backward passes per step and restart, and `history` images of memory per victim, twice.",
        suggested="Several `restarts`; a smooth network, as in the paper. `tune` searches step size, start and "
        "restarts on simulated victims.",
        interacts="Noise on the last layer spoils the label, any noise the images; clipping and unknown pruning weaken "
        "it too.",
    )

    steps: int = 300
    inner: int = 20
    lr: float = 1.0
    history: int = 100
    stop_below: float = 1e-6
    start: Start = "normal"
    tile: int = 16
    restarts: int = 1

    def __post_init__(self) -> None:
        self.plan()

    @override
    def run(self, observation: Observation, *, streams: Streams, runtime: Runtime) -> Reconstruction:
        seen = with_labels(observation, self.label_rule(observation))
        return match(seen, self.plan(), streams=streams, runtime=runtime)

    def label_rule(self, _observation: Observation) -> LabelRule:
        """Return how unknown labels are found: by the signs of the last layer."""
        return "idlg"

    def plan(self) -> Plan:
        """Return the settings in full."""
        return Plan(
            objective="l2",
            optimizer="lbfgs",
            lr=self.lr,
            steps=self.steps,
            inner=self.inner,
            history=self.history,
            stop_below=self.stop_below,
            start=self.start,
            tile=self.tile,
            restarts=self.restarts,
        )
