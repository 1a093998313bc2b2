"""Inverting Gradients."""

from dataclasses import dataclass
from typing import ClassVar, Literal, final

from typing_extensions import override

from gradveil.attacks._base import Attack
from gradveil.attacks._labels import LabelRule, with_labels
from gradveil.attacks._layers import Weighting
from gradveil.attacks._matching import Plan, match
from gradveil.attacks._priors import Start, Variation
from gradveil.attacks._restarts import Choice
from gradveil.engine import Runtime
from gradveil.engine.matching import Trajectory
from gradveil.streams import Streams
from gradveil.types import Card, LocalTraining, Observation, Paper, Reconstruction


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class InvertingGradients(Attack):
    """Turn images until their gradient points where the shared one does, and keep them smooth.

    Unknown labels are read off the last layer for a batch of one (iDLG's rule) and found as `labels` says for more.
    The fields from `objective` on are no part of the paper; their defaults leave the attack as published.

    Args:
        steps: iterations of signed Adam.
        lr: its step size, in standardized pixels; multiplied by 0.1 at 3/8, 5/8 and 7/8 of the steps.
        tv: weight of total variation.
        signed: use the sign of the gradient alone.
        boxed: keep pixels between black and white.
        start: `normal`, `uniform`, `zeros`, `pattern` or `smooth`.
        restarts: starts tried side by side.
        labels: how unknown labels of a batch are found: `optimized` with the images, or read by a method of label
            recovery.
        objective: distance between gradients: `cosine` as published, `layer-cosine`, or `row-cosine`, which lets every
            output channel of every layer count alike.
        choice: between restarts, by `objective`, `loss` or `tv`; or all joined by `pixel-mean`, `pixel-median`,
            `registered-mean` or `registered-median`, which shift and mirror them to agree first.
        polish: steps of a last search from the guess, at a tenth of the step size.
        variation: `anisotropic`, `isotropic`, `squared` or `huber`.
        opponents: let total variation count the differences between colours too.
        mean: weight of the squared distance of each channel's mean from the data set's.
        coarse: search images smaller by this factor in the first third of the steps.
        weights: of the parameters, `equal`, `linear`, `exponential` (early ones most) or `balanced` (all alike).
        trajectory: what is made of several local steps: `unrolled` takes them again, `mean-gradient` takes their mean
            for the gradient at the start, `midpoint` for the one half way.
        guess: of the clients' local training, for who does not know it.
    """

    paper: ClassVar[Paper] = Paper(
        title="Inverting Gradients - How easy is it to break privacy in federated learning?",
        authors="Geiping, Bauermeister, Dröge, Moeller",
        year=2020,
        url="https://arxiv.org/abs/2003.14053",
    )
    card: ClassVar[Card] = Card(
        fails="On well-trained networks with the published `tv` of 1e-4, which leaves checkerboard noise; on large "
        "batches and repeated labels, where many images share one gradient.",
        costs="Two backward passes per step and restart.",
        suggested="Untrained networks: as published. Trained ones: `objective=row-cosine` with `tv` of 3e-2, or "
        "let `tune` choose on victims that the adversary simulates; joined `restarts` come nearer on average.",
        interacts="Noise and unknown pruning weaken it; scaling and clipping the update do not, since only its "
        "direction counts.",
    )

    steps: int = 4800
    lr: float = 0.1
    tv: float = 1e-4
    signed: bool = True
    boxed: bool = True
    start: Start = "normal"
    restarts: int = 1
    labels: LabelRule = "optimized"
    objective: Literal["cosine", "layer-cosine", "row-cosine"] = "cosine"
    choice: Choice = "objective"
    polish: int = 0
    variation: Variation = "anisotropic"
    opponents: bool = False
    mean: float = 0.0
    coarse: int = 1
    weights: Weighting = "equal"
    trajectory: Trajectory = "unrolled"
    guess: LocalTraining | None = None

    def __post_init__(self) -> None:
        self.plan()

    @override
    def run(self, observation: Observation, *, streams: Streams, runtime: Runtime) -> Reconstruction:
        seen = with_labels(observation, self.label_rule(observation))
        return match(seen, self.plan(), streams=streams, runtime=runtime)

    def label_rule(self, observation: Observation) -> LabelRule:
        """Return how unknown labels are found."""
        return "idlg" if observation.input_shape[0] == 1 else self.labels

    def plan(self) -> Plan:
        """Return the settings in full."""
        return Plan(
            objective=self.objective,
            lr=self.lr,
            steps=self.steps,
            decay=True,
            signed=self.signed,
            boxed=self.boxed,
            tv=self.tv,
            variation=self.variation,
            opponents=self.opponents,
            mean=self.mean,
            start=self.start,
            coarse=self.coarse,
            restarts=self.restarts,
            choice=self.choice,
            polish=self.polish,
            weights=self.weights,
            trajectory=self.trajectory,
            guess=self.guess,
        )
