"""Privacy-Preserving Deep Learning: selective sharing of the update."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, final

from torch import Tensor
from typing_extensions import override

from gradveil.defenses._base import Adversary, Shared, UpdateDefense
from gradveil.defenses._likelihoods import laplace_log_likelihood
from gradveil.defenses._selection import Scope, check_share, keep, largest, share_largest, with_residual
from gradveil.streams import Streams
from gradveil.types import Card, Gradients, Paper, State


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class PPDL(UpdateDefense):
    """Share the top theta of the gradients, with noise if asked for, and keep the others for later rounds.

    Differs from `top-k` by its noise, and by the residual, which the client always keeps.

    Protects what lives in small entries; the noise is a heuristic, since nothing is clipped and nobody accounts.
    Weakened by the zeros, which tell what was dropped, and by the residual, which sends late what was held back. At a
    theta of 0.3 the papers' reconstructions are hardly worse than without a defense.

    Args:
        theta: share of the entries that leaves, rounded up; the papers use 0.05 and 0.3.
        scale: b of Laplace noise on the entries that leave.
        scope: whether entries compete inside their tensor or over the whole update.
    """

    paper: ClassVar[Paper | None] = Paper(
        title="Privacy-Preserving Deep Learning",
        authors="Shokri, Shmatikov",
        year=2015,
        url="https://doi.org/10.1145/2810103.2813687",
    )
    adversary: ClassVar[Adversary] = Adversary(
        attack="bayes-optimal",
        reason="the zeros show what was dropped, and who knows of the defense matches the surviving entries alone",
    )
    off: ClassVar[Mapping[str, object] | None] = {"theta": 1.0, "scale": 0.0}
    card: ClassVar[Card] = Card(
        fails="at a theta of 0.3, where reconstructions are hardly worse; over many rounds, since the residual "
        "leaves late; its noise is no differential privacy",
        costs="one sort per tensor, and a residual of the size of the model kept by every client",
        suggested="theta=0.05",
        interacts="clipping or noise before it decides what is shared; a second residual (top-k) holds back what "
        "this one lets go",
    )

    theta: float = 0.05
    scale: float = 0.0
    scope: Scope = "tensor"

    def __post_init__(self) -> None:
        check_share("theta", self.theta)
        if not 0 <= self.scale < math.inf:
            raise ValueError(f"scale must be at least 0, got {self.scale}")

    @override
    def apply(self, update: Gradients, *, streams: Streams) -> Gradients:
        return self.share(update, kept={}, streams=streams).update

    @override
    def share(self, update: Gradients, *, kept: State, streams: Streams) -> Shared:
        total = with_residual(update, kept)
        shared = share_largest(total, self.theta, scope=self.scope)
        if self.scale == 0:
            return shared
        noisy = tuple(
            tensor + self.scale * streams.laplace(f"ppdl/{i}", tensor.shape[1:], like=tensor)
            for i, tensor in enumerate(shared.update)
        )
        return Shared(keep(noisy, largest(total, self.theta, scope=self.scope)), shared.kept)

    @override
    def log_likelihood(self, observed: Gradients, clean: Gradients) -> Tensor:
        return laplace_log_likelihood(observed, keep(clean, self.visible(observed)), self.scale)

    @override
    def visible(self, update: Gradients) -> Gradients:
        return tuple(tensor != 0 for tensor in update)
