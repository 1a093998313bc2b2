"""Central differential privacy of the update."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, final

from typing_extensions import override

from gradveil.defenses._base import Adversary, UpdateDefense
from gradveil.defenses._norms import check_noise, clip
from gradveil.streams import Streams
from gradveil.types import Card, Gradients, Paper


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class CentralDP(UpdateDefense):
    """Clip the whole update at the client; the server adds Gaussian noise to the mean over all clients.

    Protects whether and how a client took part from everybody who sees the model, but not from the server, which
    receives the clipped update as it is; `gradveil.privacy.account` tells how well. Clipping is that of Flower's
    `fixedclipping_mod`, and the noise that of its wrapper for client-side fixed clipping: both can do their half.

    Args:
        norm: bound C on the L2 norm of the update.
        noise_multiplier: standard deviation of the noise on the sum over clients, in units of `norm`.
    """

    paper: ClassVar[Paper | None] = Paper(
        title="Learning Differentially Private Recurrent Language Models",
        authors="McMahan, Ramage, Talwar, Zhang",
        year=2018,
        url="https://arxiv.org/abs/1710.06963",
    )
    adversary: ClassVar[Adversary] = Adversary(
        attack="bayes-optimal",
        reason="the server sees the clipped update without noise: the cosine does not feel the scale",
    )
    off: ClassVar[Mapping[str, object] | None] = {"norm": math.inf, "noise_multiplier": 0.0}
    card: ClassVar[Card] = Card(
        fails="against the server itself, and with few clients, whose mean needs as much noise as one of them",
        costs="one pass over the update at the client, one normal number per entry at the server; accuracy",
        suggested="norm at the median length of honest updates, noise_multiplier=1, many clients drawn at random",
        interacts="clients must count equally in the mean; local-dp in the same federation makes it superfluous; a "
        "client that shares weights in place of a difference is refused",
    )

    norm: float = 1.0
    noise_multiplier: float = 1.0

    def __post_init__(self) -> None:
        check_noise(self.norm, self.noise_multiplier)

    @override
    def apply(self, update: Gradients, *, streams: Streams) -> Gradients:
        return clip(update, self.norm)

    def finish(self, mean: Gradients, *, clients: int, streams: Streams) -> Gradients:
        """Add the server's noise to the mean of clipped updates, in which every client counts equally.

        Args:
            mean: (1, *shape) tensors.
            clients: that were averaged.
            streams: of the server, for this round.

        Example:
            >>> import torch
            >>> mean = (torch.zeros(1, 1000),)
            >>> noisy = CentralDP(norm=2.0).finish(mean, clients=4, streams=Streams(purpose="server").bind(1))
            >>> round(float(noisy[0].std()), 1)
            0.5
        """
        if clients < 1:
            raise ValueError(f"clients must be at least 1, got {clients}")
        if self.noise_multiplier == 0:
            return mean
        std = self.noise_multiplier * self.norm / clients
        return tuple(
            tensor + std * streams.normal(f"central-dp/{i}", tensor.shape[1:], like=tensor)
            for i, tensor in enumerate(mean)
        )
