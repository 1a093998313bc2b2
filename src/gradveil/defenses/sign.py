"""Signs of the update."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, final

import torch
from torch import Tensor
from typing_extensions import override

from gradveil.defenses._base import Adversary, UpdateDefense
from gradveil.defenses._likelihoods import sign_log_likelihood
from gradveil.engine import spread
from gradveil.streams import Streams
from gradveil.types import Card, Gradients, Paper


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Sign(UpdateDefense):
    """Share one bit per entry: whether it grows or shrinks.

    Nothing is kept back and there is no noise; unlike `quantization` the result is biased. There is no setting at
    which it changes nothing.

    Protects the magnitudes. Weakened by the number of entries: the signs of a large network tell the direction of its
    gradient nearly as well as the gradient does.

    Args:
        scale: `one` shares -1, 0 and 1; `mean` multiplies the signs of a tensor by its mean magnitude.
    """

    paper: ClassVar[Paper | None] = Paper(
        title="signSGD: Compressed Optimisation for Non-Convex Problems",
        authors="Bernstein, Wang, Azizzadenesheli, Anandkumar",
        year=2018,
        url="https://arxiv.org/abs/1802.04434",
    )
    adversary: ClassVar[Adversary] = Adversary(
        attack="bayes-optimal",
        reason="who knows that signs were shared matches signs, and not the magnitudes that they have lost",
    )
    off: ClassVar[Mapping[str, object] | None] = None
    card: ClassVar[Card] = Card(
        fails="on large networks, whose signs tell the direction of the gradient",
        costs="none; it saves bandwidth, and needs a small learning rate at scale=one",
        suggested="scale=mean for FedAvg, scale=one for majority votes",
        interacts="clipping, quantization and the scale of noise before it vanish; after local-dp it is harmless",
    )

    scale: Literal["one", "mean"] = "mean"

    @override
    def apply(self, update: Gradients, *, streams: Streams) -> Gradients:
        if self.scale == "one":
            return tuple(tensor.sign() for tensor in update)
        return tuple(tensor.sign() * _mean_magnitude(tensor) for tensor in update)

    @override
    def log_likelihood(self, observed: Gradients, clean: Gradients) -> Tensor:
        return torch.stack([sign_log_likelihood(o, c) for o, c in zip(observed, clean, strict=True)]).sum(0)


def _mean_magnitude(tensor: Tensor) -> Tensor:
    return spread(tensor.abs().flatten(1).mean(1), tensor)
