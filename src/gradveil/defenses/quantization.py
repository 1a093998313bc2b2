"""QSGD: stochastic quantization of the update."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor
from typing_extensions import override

from gradveil.defenses._base import Adversary, UpdateDefense
from gradveil.defenses._likelihoods import rounding_log_likelihood
from gradveil.engine import spread
from gradveil.streams import Streams
from gradveil.types import Card, Gradients, Paper


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Quantization(UpdateDefense):
    """Round every entry at random to one of a few levels of its tensor's norm, right on average.

    Nothing is kept back: the error of a round is not made good in the next one, and need not be, since it has mean
    zero. There is no number of levels at which it changes nothing.

    Protects little: entries far below norm / levels mostly become zero, the others keep their sign and their order.
    Weakened by averaging: over entries, rounds or repeated queries the rounding cancels.

    Args:
        levels: above zero, of each sign; 1 shares -norm, 0 and norm alone.
    """

    paper: ClassVar[Paper | None] = Paper(
        title="QSGD: Communication-Efficient SGD via Gradient Quantization and Encoding",
        authors="Alistarh, Grubic, Li, Tomioka, Vojnovic",
        year=2017,
        url="https://arxiv.org/abs/1610.02132",
    )
    adversary: ClassVar[Adversary] = Adversary(
        attack="bayes-optimal",
        reason="who knows the levels matches by the probability of the rounding, which is known exactly",
    )
    off: ClassVar[Mapping[str, object] | None] = None
    card: ClassVar[Card] = Card(
        fails="with more than a few levels, and over repeated rounds, where the rounding averages out",
        costs="one uniform number per entry; it saves bandwidth",
        suggested="levels=1 to 4 where protection is wanted",
        interacts="noise before it is rounded too; after local-dp it is harmless; sign makes it pointless",
    )

    levels: int = 16

    def __post_init__(self) -> None:
        if self.levels < 1:
            raise ValueError(f"levels must be at least 1, got {self.levels}")

    @override
    def apply(self, update: Gradients, *, streams: Streams) -> Gradients:
        return tuple(
            self._round(tensor, streams.uniform(f"quantization/{i}", tensor.shape[1:], like=tensor))
            for i, tensor in enumerate(update)
        )

    @override
    def log_likelihood(self, observed: Gradients, clean: Gradients) -> Tensor:
        pairs = zip(observed, clean, strict=True)
        return torch.stack([rounding_log_likelihood(o, c, self.levels) for o, c in pairs]).sum(0)

    def _round(self, tensor: Tensor, chance: Tensor) -> Tensor:
        norm = spread(torch.linalg.vector_norm(tensor.flatten(1), dim=1), tensor)
        exact = tensor.abs() / norm.clamp_min(torch.finfo(tensor.dtype).tiny) * self.levels
        level = exact.floor() + (chance < exact - exact.floor())
        return norm * tensor.sign() * level / self.levels
