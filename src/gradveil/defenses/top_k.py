"""Top-k sparsification of the update."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, final

from typing_extensions import override

from gradveil.defenses._base import Adversary, Shared, UpdateDefense
from gradveil.defenses._selection import Scope, check_share, share_largest, with_residual
from gradveil.streams import Streams
from gradveil.types import Card, Gradients, Paper, State


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class TopK(UpdateDefense):
    """Share the entries of largest magnitude alone, as deep gradient compression does.

    Differs from `pruning` by its choice between entries of one tensor and of the whole update, by rounding up, and by
    the residual; from `ppdl` by having no noise. Momentum correction and warm-up of the paper are training matters.

    Protects what lives in small entries. Weakened by the zeros, which tell what was dropped, and by the residual,
    which sends late what was held back: it protects a round and not a training.

    Args:
        top: share of the entries that leaves, rounded up; the paper goes down to 0.001.
        scope: whether entries compete inside their tensor or over the whole update.
        residual: add what was held back to the update of the next round.
    """

    paper: ClassVar[Paper | None] = Paper(
        title="Deep Gradient Compression: Reducing the Communication Bandwidth for Distributed Training",
        authors="Lin, Han, Mao, Wang, Dally",
        year=2018,
        url="https://arxiv.org/abs/1712.01887",
    )
    adversary: ClassVar[Adversary] = Adversary(
        attack="bayes-optimal",
        reason="the zeros show what was dropped, and who knows of the defense matches the surviving entries alone",
    )
    off: ClassVar[Mapping[str, object] | None] = {"top": 1.0}
    card: ClassVar[Card] = Card(
        fails="against who knows of it and matches the surviving entries; with a residual it sends late what it "
        "held back",
        costs="one selection per tensor, and with a residual one model kept by every client; it saves bandwidth",
        suggested="top=0.01 without residual where protection is wanted, with it where bandwidth is",
        interacts="clipping or noise before it decides what is shared; a second residual (ppdl) holds back what "
        "this one lets go",
    )

    top: float = 0.1
    scope: Scope = "tensor"
    residual: bool = False

    def __post_init__(self) -> None:
        check_share("top", self.top)

    @override
    def apply(self, update: Gradients, *, streams: Streams) -> Gradients:
        return share_largest(update, self.top, scope=self.scope).update

    @override
    def share(self, update: Gradients, *, kept: State, streams: Streams) -> Shared:
        shared = share_largest(with_residual(update, kept), self.top, scope=self.scope)
        return shared if self.residual else Shared(shared.update)

    @override
    def visible(self, update: Gradients) -> Gradients:
        return tuple(tensor != 0 for tensor in update)
