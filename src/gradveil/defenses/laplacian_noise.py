"""Laplacian noise on the update."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, final

from torch import Tensor
from typing_extensions import override

from gradveil.defenses._base import Adversary, UpdateDefense
from gradveil.defenses._likelihoods import laplace_log_likelihood
from gradveil.streams import Streams
from gradveil.types import Card, Gradients


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class LaplacianNoise(UpdateDefense):
    """Add independent Laplace noise to every entry of the update.

    This is a heuristic: without clipping and an accountant it is not differential privacy.

    Args:
        scale: b of the Laplace distribution, whose standard deviation is b times the root of 2; the papers use 1e-3,
            1e-2 and 1e-1.
    """

    adversary: ClassVar[Adversary] = Adversary(
        attack="bayes-optimal",
        reason="who knows the noise matches by its likelihood: absolute differences in units of the scale",
    )
    off: ClassVar[Mapping[str, object] | None] = {"scale": 0.0}
    card: ClassVar[Card] = Card(
        fails="where the update is large against the noise: small batches and early rounds; it never is "
        "differential privacy",
        costs="one Laplace number per entry; accuracy",
        suggested="scale=1e-3 to 1e-1, beside the update's own size, which the ratio of the report shows",
        interacts="before pruning or top-k it decides which entries survive; after local-dp it adds nothing to epsilon",
    )

    scale: float = 1e-3

    def __post_init__(self) -> None:
        if not 0 <= self.scale < math.inf:
            raise ValueError(f"scale must be at least 0, got {self.scale}")

    @override
    def apply(self, update: Gradients, *, streams: Streams) -> Gradients:
        if self.scale == 0:
            return update
        return tuple(
            tensor + self.scale * streams.laplace(f"laplacian-noise/{i}", tensor.shape[1:], like=tensor)
            for i, tensor in enumerate(update)
        )

    @override
    def log_likelihood(self, observed: Gradients, clean: Gradients) -> Tensor:
        return laplace_log_likelihood(observed, clean, self.scale)
