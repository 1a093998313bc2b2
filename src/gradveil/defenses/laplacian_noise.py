"""Laplacian noise on the update."""

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
class LaplacianNoise(UpdateDefense):
    """Add independent Laplace noise to every entry of the update.

    This is a heuristic: without clipping and an accountant it is not differential privacy.

    Args:
        scale: b of the Laplace distribution, whose standard deviation is b times the root of 2; the papers use 1e-3,
            1e-2 and 1e-1.
    """

    adversary: ClassVar[Adversary] = Adversary(
        reason="the informed adversary matches by the likelihood of the noise; that attack is not built yet",
    )
    off: ClassVar[Mapping[str, object] | None] = {"scale": 0.0}

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
        sums = torch.stack([(o - c).abs().flatten(1).sum(1) for o, c in zip(observed, clean, strict=True)]).sum(0)
        entries = sum(tensor[0].numel() for tensor in observed)
        return -sums / self.scale - entries * math.log(2 * self.scale)
