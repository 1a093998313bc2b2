"""Local differential privacy of the update."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, final

from torch import Tensor
from typing_extensions import override

from gradveil.defenses._base import Adversary, UpdateDefense
from gradveil.defenses._likelihoods import normal_log_likelihood
from gradveil.defenses._norms import check_noise, clip
from gradveil.streams import Streams
from gradveil.types import Card, Gradients, Paper


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class LocalDP(UpdateDefense):
    """Clip the whole update and add Gaussian noise before it leaves the client.

    Protects a client's whole update, whatever batch it came from, also from the server; `gradveil.privacy.account`
    tells how well. Clipping is that of Flower's `LocalDpMod`, over all tensors together; its noise of a sensitivity s,
    epsilon and delta is a `noise_multiplier` of s * sqrt(2 ln(1.25 / delta)) / epsilon / norm.

    Weakened by repetition (every round adds to epsilon), and at a noise multiplier far below 1 by any attack that
    works on noisy gradients: there is no epsilon worth printing then.

    Args:
        norm: bound C on the L2 norm of the update.
        noise_multiplier: standard deviation of the noise on every entry, in units of `norm`.
    """

    paper: ClassVar[Paper | None] = Paper(
        title="Differentially Private Federated Learning: A Client Level Perspective",
        authors="Geyer, Klein, Nabi",
        year=2017,
        url="https://arxiv.org/abs/1712.07557",
    )
    adversary: ClassVar[Adversary] = Adversary(
        attack="bayes-optimal",
        reason="the bound holds against everybody; who knows the noise gets nearest, by its likelihood after clipping",
    )
    off: ClassVar[Mapping[str, object] | None] = {"norm": math.inf, "noise_multiplier": 0.0}
    card: ClassVar[Card] = Card(
        fails="to leave a useful model with few clients: the noise of each must hide a whole update; at a noise "
        "multiplier far below 1 there is no epsilon worth printing",
        costs="one normal number per entry; accuracy, which only many clients bring back",
        suggested="norm at the median length of honest updates; fewer rounds rather than less noise",
        interacts="what comes after it costs no epsilon, since it sees the noisy update alone; noise before it costs "
        "accuracy and counts for nothing; a client that shares weights in place of a difference is refused",
    )

    norm: float = 1.0
    noise_multiplier: float = 1.0

    def __post_init__(self) -> None:
        check_noise(self.norm, self.noise_multiplier)

    @override
    def apply(self, update: Gradients, *, streams: Streams) -> Gradients:
        clipped = clip(update, self.norm)
        if self.noise_multiplier == 0:
            return clipped
        std = self.noise_multiplier * self.norm
        return tuple(
            tensor + std * streams.normal(f"local-dp/{i}", tensor.shape[1:], like=tensor)
            for i, tensor in enumerate(clipped)
        )

    @override
    def log_likelihood(self, observed: Gradients, clean: Gradients) -> Tensor:
        if self.noise_multiplier == 0:
            raise NotImplementedError("clipping alone has no density")
        return normal_log_likelihood(observed, clip(clean, self.norm), self.noise_multiplier * self.norm)
