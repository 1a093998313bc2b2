"""Gaussian noise on the update."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor
from typing_extensions import override

from gradveil.defenses._base import Adversary, UpdateDefense
from gradveil.streams import Streams
from gradveil.types import Gradients


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class GaussianNoise(UpdateDefense):
    """Add independent normal noise to every entry of the update.

    This is a heuristic: without clipping and an accountant it is not differential privacy.

    Args:
        std: standard deviation; the papers use 1e-3 and 1e-2.
    """

    adversary: ClassVar[Adversary] = Adversary(
        reason="the informed adversary matches by the likelihood of the noise; that attack is not built yet",
    )
    off: ClassVar[Mapping[str, object] | None] = {"std": 0.0}

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
        squares = torch.stack([(o - c).square().flatten(1).sum(1) for o, c in zip(observed, clean, strict=True)]).sum(0)
        entries = sum(tensor[0].numel() for tensor in observed)
        return -squares / (2 * self.std**2) - entries * math.log(self.std * math.sqrt(2 * math.pi))
