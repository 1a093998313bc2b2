"""Extra image: the adversary of concealed samples."""

from dataclasses import dataclass, replace
from typing import ClassVar, Protocol, final, runtime_checkable

from torch import Tensor
from typing_extensions import override

from gradveil.attacks._base import Attack
from gradveil.attacks._descent import Search
from gradveil.attacks._joint import Explain, Prior, search_jointly
from gradveil.attacks._labels import LabelRule, with_labels
from gradveil.attacks._priors import ImageSpace, Start
from gradveil.attacks._restarts import keep_best
from gradveil.engine import Runtime, Variable, matching, spread
from gradveil.streams import Streams
from gradveil.types import Card, Gradients, Knowledge, Observation, Paper, Reconstruction


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ExtraImage(Attack):
    """Optimize further images with free labels and a free weight beside the announced ones.

    It knows that the shared gradient is that of the announced batch plus that of concealed samples under mixed labels,
    and explains the update by both. Further images may leave the range of pixels, as concealed samples do. They come
    back as `extra`, with `extra-labels` and `extra-weight`, among the details of the guess.

    Args:
        steps: iterations of Adam, signed for images.
        lr: its step size, in standardized pixels; multiplied by 0.1 at 3/8, 5/8 and 7/8 of the steps.
        extra: images beside the announced ones; None for as many as the defense may conceal.
        tv: weight of total variation of the announced images, against a relative squared distance.
        prior: the same against the likelihood of known noise, per pixel.
        start: of the announced images: `normal`, `uniform`, `zeros` or `pattern`.
        restarts: starts tried side by side; the one of the smallest objective is kept.
        labels: how unknown labels of the announced images are found; what is concealed disturbs label recovery.
    """

    paper: ClassVar[Paper] = Paper(
        title="Concealing Sensitive Samples against Gradient Leakage in Federated Learning",
        authors="Wu, Hayat, Zhou, Harandi",
        year=2024,
        url="https://arxiv.org/abs/2209.05724",
    )
    requires: ClassVar[Knowledge] = Knowledge.DEFENSES
    card: ClassVar[Card] = Card(
        fails="where an announced image and a further one change places, which labels and the weight only make "
        "unlikely; on trained networks and larger batches, as all matching does",
        costs="four backward passes per step and restart: two gradients and their derivatives",
        suggested="the defaults; fewer extra images where it is known that few samples are sensitive",
        interacts="noise beside concealed samples is matched by its likelihood and clipping applied to the trial; both "
        "weaken it, since further images can explain a part of either",
    )

    steps: int = 4800
    lr: float = 0.1
    extra: int | None = None
    tv: float = 0.0
    prior: float = 0.5
    start: Start = "normal"
    restarts: int = 1
    labels: LabelRule = "optimized"

    def __post_init__(self) -> None:
        self._search()
        if self.extra is not None and self.extra < 1:
            raise ValueError(f"extra must be at least 1, got {self.extra}")
        Prior(self.tv, self.prior)

    @override
    def run(self, observation: Observation, *, streams: Streams, runtime: Runtime) -> Reconstruction:
        seen = with_labels(observation, self.labels).repeat(self.restarts)
        streams = streams.repeat(self.restarts)
        space = ImageSpace.of(seen)
        guess, (images, logits, weight) = search_jointly(
            seen,
            _explain(seen, space, runtime),
            _unknowns(seen, self.extra or _concealed(seen), streams),
            search=self._search(),
            prior=Prior(self.tv, self.prior),
            streams=streams,
            runtime=runtime,
        )
        details = {"extra": space.pixels(images), "extra-labels": logits.softmax(-1), "extra-weight": weight.exp()}
        return keep_best(replace(guess, details=details), self.restarts)

    def _search(self) -> Search:
        return Search(steps=self.steps, lr=self.lr, start=self.start, restarts=self.restarts)


def _explain(seen: Observation, space: ImageSpace, runtime: Runtime) -> Explain:
    """Add the gradient of the announced images and the weighted one of the others."""
    announced = matching(replace(seen, defenses=None), precision=runtime.precision)
    # The client builds concealed samples in eval mode, whatever the mode of its training.
    concealed = matching(replace(seen, defenses=None, mode="eval"), precision=runtime.precision)

    def of(images: Tensor, labels: Tensor, found: tuple[Tensor, ...]) -> Gradients:
        extra, logits, weight = found
        plain = announced.gradients(images, labels)
        added = concealed.gradients(space.pixels(extra), logits.softmax(-1))
        return tuple(p + spread(weight[:, 0].exp(), a) * a for p, a in zip(plain, added, strict=True))

    return of


@runtime_checkable
class Concealing(Protocol):
    """A defense that adds samples which nobody announces."""

    def concealed_in(self, size: int) -> int:
        """Return how many there may be in a batch."""


def _concealed(seen: Observation) -> int:
    """Return how many samples the defenses may have concealed; which ones are sensitive nobody tells."""
    known = [defense for defense in seen.defenses or () if isinstance(defense, Concealing)]
    return max(sum(defense.concealed_in(seen.input_shape[0]) for defense in known), 1)


def _unknowns(seen: Observation, extra: int, streams: Streams) -> tuple[Variable, Variable, Variable]:
    """Start further images at noise, their labels near uniform, and the logarithm of their weight at 0."""
    like = seen.update[0]
    images = streams.normal("extra", (extra, *seen.input_shape[1:]), like=like)
    logits = 0.1 * streams.normal("extra-labels", (extra, seen.num_classes), like=like)
    return Variable(start=images, signed=True), Variable(start=logits), Variable(start=like.new_zeros(len(like), 1))
