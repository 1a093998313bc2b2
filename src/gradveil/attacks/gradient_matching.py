"""Gradient matching, with the six settings that the ATS paper compares."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from types import MappingProxyType
from typing import ClassVar, Final, Literal, TypeAlias, final

from typing_extensions import override

from gradveil.attacks._base import Attack
from gradveil.attacks._labels import LabelRule, with_labels
from gradveil.attacks._layers import Weighting
from gradveil.attacks._matching import OptimizerName, Plan, match
from gradveil.attacks._objectives import Objective
from gradveil.attacks._priors import Start, Variation
from gradveil.attacks._restarts import Choice
from gradveil.engine import Runtime
from gradveil.engine.matching import Trajectory
from gradveil.streams import Streams
from gradveil.types import Card, LocalTraining, Observation, Paper, Reconstruction

Preset: TypeAlias = Literal["adam-cosine", "lbfgs-l2", "lbfgs-cosine", "adam-l1", "adam-l2", "sgd-cosine"]

_ADAM = Plan(objective="cosine", lr=0.1, steps=4800, decay=True, signed=True, boxed=True, tv=1e-4, choice="loss")
_LBFGS = replace(_ADAM, optimizer="lbfgs", lr=1e-4, decay=False)
PRESETS: Final[Mapping[Preset, Plan]] = MappingProxyType(
    {
        "adam-cosine": _ADAM,
        "adam-l1": replace(_ADAM, objective="l1"),
        "adam-l2": replace(_ADAM, objective="l2"),
        "sgd-cosine": replace(_ADAM, optimizer="sgd", lr=0.01),
        "lbfgs-cosine": replace(_LBFGS, steps=300, restarts=16),
        "lbfgs-l2": replace(_LBFGS, objective="l2", steps=50, restarts=2, signed=False, boxed=False, tv=1e-3),
    }
)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class GradientMatching(Attack):
    """Optimize images until their gradient is near the shared one, by any objective, optimizer and start.

    The presets are the attacks of Gao et al. as their program runs them; every other field overrides the preset, and
    None keeps its value. `lbfgs-l2` is Zhu et al. without label search, `adam-cosine` is Geiping et al.

    Args:
        preset: `adam-cosine`, `lbfgs-l2`, `lbfgs-cosine`, `adam-l1`, `adam-l2` or `sgd-cosine`.
        objective: `cosine`, `l2`, `l1`, `layer-cosine`, `row-cosine`, or `masked-cosine`, which ignores the entries
            that are exactly zero in the update, for who only guesses that it is sparse.
        optimizer: `adam`, `sgd` or `lbfgs`.
        lr: step size, in standardized pixels.
        steps: of the optimizer.
        restarts: starts tried side by side.
        choice: between them, by `loss`, `objective` (with priors) or `tv`; or all joined by `pixel-mean`,
            `pixel-median`, `registered-mean` or `registered-median`, which needs images in one order: a batch of one,
            or known distinct labels.
        polish: steps of a last search from the guess, at a tenth of the step size.
        tv: weight of total variation.
        variation: `anisotropic`, `isotropic`, `squared` or `huber`.
        opponents: let total variation count the differences between colours too.
        mean: weight of the squared distance of each channel's mean from the data set's.
        signed: use the sign of the gradient alone.
        boxed: keep pixels between black and white.
        decay: multiply the step size by 0.1 at 3/8, 5/8 and 7/8 of the steps.
        median: iterations between two 3×3 median filterings; 0 for none.
        start: `normal`, `uniform`, `zeros`, `pattern` or `smooth`.
        tile: side of the pattern's tile in pixels.
        coarse: search images smaller by this factor in the first third of the steps; 1 for none.
        layers: parameters to match: `first-N`, `last-N`, `top-N`, a path such as `conv1`, or `not-fc` to leave one out.
        weights: of the parameters, `equal`, `linear` or `exponential`, early ones most, or `balanced`, all alike.
        trajectory: what is made of several local steps: `unrolled` takes them again, `mean-gradient` takes their mean
            for the gradient at the start, `midpoint` for the one half way.
        guess: of the clients' local training, for who does not know it.
        labels: how unknown labels are found: `optimized` with the images, or read by a method of label recovery.
    """

    paper: ClassVar[Paper] = Paper(
        title="Privacy-preserving Collaborative Learning with Automatic Transformation Search",
        authors="Gao, Guo, Zhang, Qiu, Wen, Liu",
        year=2021,
        url="https://arxiv.org/abs/2011.12505",
    )
    card: ClassVar[Card] = Card(
        fails="On trained networks, large batches and repeated labels, where many images share one gradient, and where "
        "the client took several local steps by settings that the adversary neither knows nor guesses.",
        costs="Two backward passes per step and restart, times the local steps that are unrolled; L-BFGS makes 20 "
        "iterations per step.",
        suggested="On trained networks `tv=1e-2`, or what `tune` finds; the published L-BFGS step of 1e-4 hardly "
        "moves: `lr=1`.",
        interacts="Noise, pruning that the adversary does not know of, and clipping (for `l1` and `l2`) weaken it.",
    )

    preset: Preset = "adam-cosine"
    objective: Objective | None = None
    optimizer: OptimizerName | None = None
    lr: float | None = None
    steps: int | None = None
    restarts: int | None = None
    choice: Choice | None = None
    polish: int | None = None
    tv: float | None = None
    variation: Variation | None = None
    opponents: bool | None = None
    mean: float | None = None
    signed: bool | None = None
    boxed: bool | None = None
    decay: bool | None = None
    median: int | None = None
    start: Start | None = None
    tile: int | None = None
    coarse: int | None = None
    layers: tuple[str, ...] = ()
    weights: Weighting = "equal"
    trajectory: Trajectory | None = None
    guess: LocalTraining | None = None
    labels: LabelRule = "optimized"

    def __post_init__(self) -> None:
        if self.preset not in PRESETS:
            raise ValueError(f"preset must be one of {', '.join(PRESETS)}, got {self.preset!r}")
        self.plan()

    def plan(self) -> Plan:
        """Return the settings in full: the preset with the fields that override it."""
        known = {field.name for field in fields(Plan)}
        given = {field.name: getattr(self, field.name) for field in fields(self) if field.name in known}
        return replace(PRESETS[self.preset], **{name: value for name, value in given.items() if value is not None})

    @override
    def run(self, observation: Observation, *, streams: Streams, runtime: Runtime) -> Reconstruction:
        seen = with_labels(observation, self.label_rule(observation))
        return match(seen, self.plan(), streams=streams, runtime=runtime)

    def label_rule(self, _observation: Observation) -> LabelRule:
        """Return how unknown labels are found."""
        return self.labels
