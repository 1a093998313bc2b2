"""Inverting Gradients."""

from dataclasses import dataclass
from typing import ClassVar, final

from typing_extensions import override

from gradveil.attacks._base import Attack
from gradveil.attacks._labels import LabelRule, with_labels
from gradveil.attacks._matching import Plan, match
from gradveil.attacks._priors import Start
from gradveil.engine import Runtime
from gradveil.streams import Streams
from gradveil.types import Observation, Paper, Reconstruction


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class InvertingGradients(Attack):
    """Turn images until their gradient points where the shared one does, and keep them smooth.

    Unknown labels are read off the last layer for a batch of one (iDLG's rule) and found as `labels` says for more. It
    fails on well-trained networks, large batches and repeated labels. It costs two backward passes per step. Noise and
    unknown pruning weaken it; scaling and clipping the update do not, since only its direction counts.

    Args:
        steps: iterations of signed Adam.
        lr: its step size, in standardized pixels; multiplied by 0.1 at 3/8, 5/8 and 7/8 of the steps.
        tv: weight of total variation.
        signed: use the sign of the gradient alone.
        boxed: keep pixels between black and white.
        start: `normal`, `uniform`, `zeros` or `pattern`.
        restarts: starts tried side by side; the one of the smallest objective is kept.
        labels: how unknown labels of a batch are found: `optimized` with the images, or read by a method of label
            recovery.
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

    labels: LabelRule = "optimized"

    def __post_init__(self) -> None:
        self._plan()

    @override
    def run(self, observation: Observation, *, streams: Streams, runtime: Runtime) -> Reconstruction:
        rule = "idlg" if observation.input_shape[0] == 1 else self.labels
        return match(with_labels(observation, rule), self._plan(), streams=streams, runtime=runtime)

    def _plan(self) -> Plan:
        return Plan(
            objective="cosine",
            lr=self.lr,
            steps=self.steps,
            decay=True,
            signed=self.signed,
            boxed=self.boxed,
            tv=self.tv,
            start=self.start,
            restarts=self.restarts,
        )
