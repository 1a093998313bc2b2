"""Gaussian noise on the update."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, final

from torch import Tensor
from typing_extensions import override

from gradveil.defenses._base import Adversary, UpdateDefense
from gradveil.defenses._likelihoods import normal_log_likelihood
from gradveil.streams import Streams
from gradveil.types import Card, Gradients


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class GaussianNoise(UpdateDefense):
    """Add independent normal noise to every entry of the update.

    This is a heuristic: without clipping and an accountant it is not differential privacy.

    Args:
        std: standard deviation; the papers use 1e-3 and 1e-2.
    """

    adversary: ClassVar[Adversary] = Adversary(
        attack="bayes-optimal",
        reason="who knows the noise matches by its likelihood: squared differences in units of the deviation",
    )
    off: ClassVar[Mapping[str, object] | None] = {"std": 0.0}
    card: ClassVar[Card] = Card(
        fails="where the update is large against the noise: small batches and early rounds; it never is "
        "differential privacy",
        costs="one normal number per entry; accuracy",
        suggested="std=1e-3 to 1e-2, beside the update's own size, which the ratio of the report shows",
        interacts="before pruning or top-k it decides which entries survive; after local-dp it adds nothing to epsilon",
    )

    std: float = 1e-3

    def __post_init__(self) -> None:
        if not 0 <= self.std < math.inf:
            raise ValueError(f"std must be at least 0, got {self.std}")

    @override
    def apply(self, update: Gradients, *, streams: Streams) -> Gradients:
        if self.std == 0:
            return update
        return tuple(
            tensor + self.std * streams.normal(f"gaussian-noise/{i}", tensor.shape[1:], like=tensor)
            for i, tensor in enumerate(update)
        )

    @override
    def log_likelihood(self, observed: Gradients, clean: Gradients) -> Tensor:
        return normal_log_likelihood(observed, clean, self.std)
