"""Surrogate head: the adversary of private parts of a network."""

from dataclasses import dataclass
from typing import ClassVar, final

from typing_extensions import override

from gradveil.attacks._base import Attack
from gradveil.attacks._descent import Search
from gradveil.attacks._joint import Prior, search_jointly
from gradveil.attacks._labels import LabelRule, with_labels
from gradveil.attacks._priors import Start
from gradveil.attacks._restarts import keep_best
from gradveil.attacks._secret import Secret
from gradveil.engine import Runtime
from gradveil.streams import Streams
from gradveil.types import Card, Knowledge, Observation, Paper, Reconstruction


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class SurrogateHead(Attack):
    """Optimize a head and codes of the adversary's own together with the images.

    It knows how the defense is built, not what the client drew: it adds a private part of the same form to the
    network, starts it from its own randomness, and turns images and private part together until the gradient of the
    whole loss is the shared one. Parts that the client does not train, such as codes, stay in the range they are
    drawn from. Without a defense that has a private part it is plain matching.

    Args:
        steps: iterations of Adam, signed for images.
        lr: its step size, in standardized pixels and in units of the private tensors' own size; multiplied by 0.1 at
            3/8, 5/8 and 7/8 of the steps.
        tv: weight of total variation, against a relative squared distance.
        prior: the same against the likelihood of known noise, per pixel.
        start: `normal`, `uniform`, `zeros` or `pattern`.
        restarts: starts tried side by side, of images and private parts; the one of the smallest objective is kept.
        labels: how unknown labels of a batch are found; the public head of SPN gives them away undisturbed.
    """

    paper: ClassVar[Paper] = Paper(
        title="Rethinking Privacy Preserving Deep Learning: How to Evaluate and Thwart Privacy Attacks",
        authors="Fan, Ng, Ju, Zhang, Liu, Chan, Yang",
        year=2020,
        url="https://arxiv.org/abs/2006.11601",
    )
    requires: ClassVar[Knowledge] = Knowledge.DEFENSES
    card: ClassVar[Card] = Card(
        fails="on larger batches, where the images alone are hard to find, and where the client's private part has "
        "been trained for so long that its loss is zero for most samples",
        costs="two backward passes per step and restart, through the wrapped network of every victim by the engine's "
        "general path",
        suggested="the defaults; restarts=4 for batches",
        interacts="noise and rounding beside the private part are matched by their likelihood, clipping is applied to "
        "the trial, hidden entries are left out; the private part can explain some of the noise, which weakens it",
    )

    steps: int = 4800
    lr: float = 0.1
    tv: float = 0.0
    prior: float = 0.5
    start: Start = "normal"
    restarts: int = 1
    labels: LabelRule = "least-squares"

    def __post_init__(self) -> None:
        self._search()
        Prior(self.tv, self.prior)

    @override
    def run(self, observation: Observation, *, streams: Streams, runtime: Runtime) -> Reconstruction:
        rule = "idlg" if observation.input_shape[0] == 1 else self.labels
        seen, streams = with_labels(observation, rule).repeat(self.restarts), streams.repeat(self.restarts)
        secret = Secret.of(seen, streams)
        guess, _ = search_jointly(
            seen,
            secret.explain(runtime),
            secret.unknowns(),
            search=self._search(),
            prior=Prior(self.tv, self.prior),
            streams=streams,
            runtime=runtime,
        )
        return keep_best(guess, self.restarts)

    def _search(self) -> Search:
        return Search(steps=self.steps, lr=self.lr, start=self.start, restarts=self.restarts)
