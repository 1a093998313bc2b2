"""See through Gradients, also called GradInversion."""

from dataclasses import dataclass
from typing import ClassVar, Literal, final

from torch import Tensor
from typing_extensions import override

from gradveil.attacks._base import Attack
from gradveil.attacks._consensus import Langevin, consensus
from gradveil.attacks._descent import ImageObjective, Search, descend
from gradveil.attacks._labels import LabelRule, with_labels
from gradveil.attacks._objectives import distance_to
from gradveil.attacks._priors import ImageSpace, Start, total_variation
from gradveil.attacks._restarts import keep_best
from gradveil.attacks._statistics import BatchNorms, Statistics, statistics_distance, target_moments
from gradveil.engine import Adam, Runtime, matching
from gradveil.streams import Streams
from gradveil.types import Card, Observation, Paper, Reconstruction

_DRAWN = 32  # noise images per victim, used in turn


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class SeeThroughGradients(Attack):
    """Match the gradient with images that have the right batch-norm statistics and on which several starts agree.

    The published registration of restarts is a learned flow; here it is the best translation. The paper lets restarts
    agree after a part of the steps; here they do all the time, with the small weight that the paper gives it.

    Args:
        steps: of Adam.
        lr: its step size, in standardized pixels; multiplied by 0.1 at 3/8, 5/8 and 7/8 of the steps.
        objective: distance between gradients.
        match: its weight; 1e-4 is the release's for `l2`, for `cosine` take 1.
        tv: weight of total variation.
        l2: weight of the images' squared length, per pixel.
        bn: weight of the statistics.
        first: weight of the first batch norm against the others.
        statistics: `best`, `running`, `shared`, or `inferred` by undoing the momentum of what the client sent back.
        group: weight of the distance to what the restarts agree on.
        reach: pixels by which a restart may be moved to agree.
        langevin: noise on the image's gradient, in step sizes.
        signed: use the sign of the gradient alone.
        start: `normal`, `uniform`, `zeros` or `pattern`.
        restarts: starts that run side by side and agree; the one of the smallest objective is kept.
        labels: how unknown labels are found.
    """

    paper: ClassVar[Paper] = Paper(
        title="See through Gradients: Image Batch Recovery via GradInversion",
        authors="Yin, Mallya, Vahdat, Alvarez, Kautz, Molchanov",
        year=2021,
        url="https://arxiv.org/abs/2104.07586",
    )
    card: ClassVar[Card] = Card(
        fails="without batch norm; with running statistics of an untrained network, which describe no images; with "
        "several images of one class, whose order the restarts do not share",
        costs="two backward passes and one more forward and backward pass per step and restart",
        suggested="bn=0.1 with statistics that clients send back in train mode; objective=cosine with match=1 on small "
        "networks, unsigned, since the sign of the statistics' slope drowns that of the matching",
        interacts="noise and pruning weaken the matching, not the statistics; clients that keep their buffers take the "
        "exact statistics away; several local steps blur them",
    )

    steps: int = 20000
    lr: float = 0.1
    objective: Literal["l2", "cosine"] = "l2"
    match: float = 1e-4
    tv: float = 1e-4
    l2: float = 1e-6
    bn: float = 0.1
    first: float = 10.0
    statistics: Statistics = "best"
    group: float = 0.01
    reach: int = 2
    langevin: float = 0.01
    signed: bool = False
    start: Start = "normal"
    restarts: int = 1
    labels: LabelRule = "yin"

    def __post_init__(self) -> None:
        self._search()
        for name in ("match", "tv", "l2", "bn", "first", "group", "reach", "langevin"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be at least 0, got {getattr(self, name)}")

    @override
    def run(self, observation: Observation, *, streams: Streams, runtime: Runtime) -> Reconstruction:
        rule = "idlg" if observation.input_shape[0] == 1 and self.labels == "yin" else self.labels
        seen = with_labels(observation, rule).repeat(self.restarts)
        streams, adam = streams.repeat(self.restarts), Adam(lr=self.lr)
        noise = streams.normal("langevin", (_DRAWN, *seen.input_shape), like=seen.update[0]) if self.langevin else None
        optimizer = adam if noise is None else Langevin(adam, noise, self.langevin)
        guess = descend(
            seen,
            self._objective(seen, runtime),
            self._search(),
            streams=streams,
            runtime=runtime,
            optimizer=optimizer,
        )
        return keep_best(guess, self.restarts)

    def _objective(self, seen: Observation, runtime: Runtime) -> ImageObjective:
        space, trials = ImageSpace.of(seen), matching(seen, precision=runtime.precision)
        distance = distance_to(trials.target, self.objective)
        norms = BatchNorms.of(seen) if self.bn else None
        target = target_moments(seen, norms, self.statistics) if norms else ()

        def objective(images: Tensor, labels: Tensor) -> Tensor:
            pixels = space.pixels(images)
            total = self.match * distance(trials.factors(pixels, labels)) + self.tv * total_variation(images)
            total = total + self.l2 * images.square().mean((1, 2, 3, 4))
            if norms is not None:
                total = total + self.bn * statistics_distance(norms.measure(pixels), target, first=self.first)
            if self.group and self.restarts > 1:
                agreed = consensus(images.detach(), self.restarts, reach=self.reach)
                total = total + self.group * (images - agreed).square().mean((1, 2, 3, 4))
            return total

        return objective

    def _search(self) -> Search:
        return Search(steps=self.steps, lr=self.lr, signed=self.signed, start=self.start, restarts=self.restarts)
