"""Local differential privacy of the update."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor
from typing_extensions import override

from gradveil.defenses._base import Adversary, UpdateDefense
from gradveil.defenses._norms import clip
from gradveil.streams import Streams
from gradveil.types import Gradients, Paper


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class LocalDP(UpdateDefense):
    """Clip the whole update and add Gaussian noise before it leaves the client.

    Protects a client's whole update, whatever batch it came from; `gradveil.privacy.account` tells how well. It must
    be the last of the update defenses, or one after it must not look at the data.

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
        reason="the bound holds against everybody; an attack that matches by the noise's likelihood is not built yet",
    )
    off: ClassVar[Mapping[str, object] | None] = {"norm": math.inf, "noise_multiplier": 0.0}

    norm: float = 1.0
    noise_multiplier: float = 1.0

    def __post_init__(self) -> None:
        if not self.norm > 0:
            raise ValueError(f"norm must be above 0, got {self.norm}")
        if not 0 <= self.noise_multiplier < math.inf:
            raise ValueError(f"noise_multiplier must be at least 0, got {self.noise_multiplier}")
        if self.noise_multiplier > 0 and self.norm == math.inf:
            raise ValueError(
                "noise needs a finite norm to be measured by, got inf; set norm or a noise_multiplier of 0"
            )

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
        std = self.noise_multiplier * self.norm
        pairs = zip(observed, clip(clean, self.norm), strict=True)
        squares = torch.stack([(o - c).square().flatten(1).sum(1) for o, c in pairs]).sum(0)
        entries = sum(tensor[0].numel() for tensor in observed)
        return -squares / (2 * std**2) - entries * math.log(std * math.sqrt(2 * math.pi))
