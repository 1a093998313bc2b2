"""The Bayes-optimal adversary."""

from dataclasses import dataclass, replace
from math import prod
from typing import ClassVar, final

from torch import Tensor
from typing_extensions import override

from gradveil.attacks._base import Attack
from gradveil.attacks._descent import Search, descend
from gradveil.attacks._informed import Judge, hidden_features, see_through
from gradveil.attacks._labels import LabelRule, with_labels
from gradveil.attacks._priors import ImageSpace, Start, total_variation
from gradveil.attacks._restarts import keep_best
from gradveil.engine import Runtime, matching
from gradveil.streams import Streams
from gradveil.types import Card, Knowledge, Observation, Paper, Reconstruction


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class BayesOptimal(Attack):
    """Find the most probable images: how likely the known defense made the observed update, times how images look.

    Random defenses (noise, rounding, signs) are matched by their own likelihood, those that scale are applied to the
    trial, and what others hide is left out; several compose. Without a random one the cosine decides. Images go through
    a known transformation before the model sees them. Of a layer that is hidden altogether, such as the random
    bottleneck of PRECODE, the features that entered it are read exactly and matched, for a batch of one.

    Args:
        steps: of Adam.
        lr: its step size, in standardized pixels; multiplied by 0.1 at 3/8, 5/8 and 7/8 of the steps.
        prior: weight of total variation against the likelihood, per pixel; 1 / prior is how far neighbours differ.
        tv: weight of total variation against the cosine, where no defense is random.
        features: weight of the features of a hidden layer.
        signed: use the sign of the gradient alone.
        start: `normal`, `uniform`, `zeros` or `pattern`.
        restarts: starts tried side by side; the most probable guess is kept.
        labels: how unknown labels of a batch are found.
    """

    paper: ClassVar[Paper] = Paper(
        title="Bayesian Framework for Gradient Leakage",
        authors="Balunović, Dimitrov, Staab, Vechev",
        year=2022,
        url="https://arxiv.org/abs/2111.04706",
    )
    requires: ClassVar[Knowledge] = Knowledge.DEFENSES
    card: ClassVar[Card] = Card(
        fails="on large batches and on networks trained for long, as all matching does; where the size of the update "
        "is not that of a mean gradient and the adversary does not know the local training; several random defenses "
        "are matched as if each had acted alone, which is right up to a weight for Gaussian noise only",
        costs="two backward passes per step and restart",
        suggested="the defaults; prior=5 for smooth pictures, and the first rounds of a training as its target",
        interacts="noise well above the gradient's own size leaves the prior alone; a transformation policy is undone "
        "with positive signs and without crops, `policy-aware` tries the others",
    )

    steps: int = 4800
    lr: float = 0.1
    prior: float = 2.0
    tv: float = 1e-4
    features: float = 10.0
    signed: bool = True
    start: Start = "normal"
    restarts: int = 1
    labels: LabelRule = "optimized"

    def __post_init__(self) -> None:
        self._search()
        for name in ("prior", "tv", "features"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be at least 0, got {getattr(self, name)}")

    @override
    def run(self, observation: Observation, *, streams: Streams, runtime: Runtime) -> Reconstruction:
        rule = "idlg" if observation.input_shape[0] == 1 else self.labels
        seen = with_labels(observation, rule).repeat(self.restarts)
        streams = streams.repeat(self.restarts)
        space = ImageSpace.of(seen)
        # Clipping needs the whole trial; what a defense hides is left out after it.
        trials = matching(replace(seen, defenses=None), precision=runtime.precision)
        judge = Judge.of(seen, trials.target, scale=trials.scale, streams=streams)
        direction, pixels = judge.direction(), prod(seen.input_shape)
        features = hidden_features(seen, judge) if self.features else None

        def objective(images: Tensor, labels: Tensor) -> Tensor:
            shown = see_through(seen, space.pixels(images))
            trial = trials.gradients(shown, labels)
            if judge.random:
                total = judge.surprise(trial) / pixels + self.prior * total_variation(images)
            else:
                total = direction(trial) + self.tv * total_variation(images)
            return total if features is None else total + self.features * features(shown)

        guess = keep_best(descend(seen, objective, self._search(), streams=streams, runtime=runtime), self.restarts)
        shown = see_through(observation, guess.inputs)
        return guess if shown is guess.inputs else replace(guess, protected=shown.detach().clamp(0, 1))

    def _search(self) -> Search:
        return Search(steps=self.steps, lr=self.lr, signed=self.signed, start=self.start, restarts=self.restarts)
