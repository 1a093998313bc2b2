"""InstaHide."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, final

import torch
from torch import Tensor
from typing_extensions import override

from gradveil.defenses._base import Adversary, DataDefense
from gradveil.defenses._mixing import Randomness, Recipe, Rule, mix, secret_signs, secret_streams
from gradveil.errors import DataError
from gradveil.streams import Streams
from gradveil.types import Card, Paper, Protected


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class InstaHide(DataDefense):
    """Mix k images and their labels, then flip the sign of every pixel and channel at random.

    Signs are those of standardized pixels, which is why the mean of the network's normalization belongs to the
    defense; what comes out is in plain pixels again, beyond [0, 1], and its deviation would cancel. Every step mixes
    and flips anew. The magnitudes of a mixture stay visible, so that many mixtures give the images away by regression.

    Args:
        k: images of a mixture, 2 to 8; 1 flips signs alone.
        classes: number of classes, for labels that are mixed without a client, who makes them soft before.
        rule: of the coefficients, `power` or `dirichlet`.
        cap: no coefficient is above it.
        from_pool: how many of the k images come from the client's pool; `k - 2` is the published mixture with a
            public set, whose labels do not count.
        floor: what the first two images of the batch hold together at least, where a pool is used.
        mean: of each channel, as in the network's normalization; empty for a network of plain pixels.
        randomness: `seeded` for audits, `secret` for real use.
    """

    paper: ClassVar[Paper | None] = Paper(
        title="InstaHide: Instance-hiding Schemes for Private Distributed Learning",
        authors="Huang, Song, Li, Arora",
        year=2020,
        url="https://arxiv.org/abs/2010.02772",
    )
    adversary: ClassVar[Adversary] = Adversary(
        reason="encodings of several steps are recovered and decoded together, by decode-mixing in gradveil.decoding; "
        "no attack on a single update undoes them",
    )
    soft_labels: ClassVar[bool] = True
    card: ClassVar[Card] = Card(
        fails="an adversary who sees many encodings of an image: magnitudes stay, and regression on them gives images "
        "up to the sign of each pixel, which neighbours tell",
        costs="k images are read for each one trained on, and more accuracy than Mixup costs with the same k",
        suggested="k from 4 to 6, cap 0.65, mean as in the network's normalization, randomness=secret in use",
        interacts="signs flipped around 0 in plain pixels hide nothing: give the mean; encodings leave [0, 1], where "
        "attacks that keep pixels inside do not look",
    )
    off: ClassVar[Mapping[str, object] | None] = None

    k: int = 4
    classes: int | None = None
    rule: Rule = "power"
    cap: float = 0.65
    from_pool: int = 0
    floor: float = 0.3
    mean: tuple[float, ...] = ()
    randomness: Randomness = "seeded"

    def __post_init__(self) -> None:
        _ = self.recipe
        if not all(0 <= value <= 1 for value in self.mean):
            raise ValueError(f"mean must lie in [0, 1] as pixels do, got {self.mean}; divide that of bytes by 255")

    @property
    def recipe(self) -> Recipe:
        """What the mixtures are made by."""
        return Recipe(
            k=self.k,
            rule=self.rule,
            cap=self.cap,
            from_pool=self.from_pool,
            floor=self.floor,
            classes=self.classes,
            randomness=self.randomness,
        )

    @override
    def protect(self, data: Protected, *, pool: Tensor | None, streams: Streams) -> Protected:
        drawn = secret_streams(streams) if self.randomness == "secret" else streams.fork("instahide")
        mixed = mix(data, self.recipe, pool=pool, streams=drawn)
        mean = self._mean(mixed.inputs)
        # Standardizing, flipping and going back: the deviation cancels.
        return replace(mixed, inputs=mean + self._signs(mixed.inputs, drawn) * (mixed.inputs - mean))

    def bounds(self, channels: int) -> tuple[Tensor, Tensor]:
        """Return the least and the largest pixel of each channel, (C,) each, that can come out.

        Example:
            >>> [bound.tolist() for bound in InstaHide(mean=(0.25,)).bounds(1)]
            [[-0.5], [1.0]]
        """
        mean = self._mean(torch.zeros(1, 1, channels, 1, 1)).flatten().expand(channels)
        return (2 * mean - 1).clamp(max=0), (2 * mean).clamp(min=1)

    def _signs(self, inputs: Tensor, streams: Streams) -> Tensor:
        if self.randomness == "secret":
            return secret_signs(tuple(inputs.shape)).to(inputs)
        return torch.where(streams.uniform("signs", inputs.shape[1:], like=inputs) < 0.5, -1.0, 1.0).to(inputs)

    def _mean(self, inputs: Tensor) -> Tensor:
        channels = inputs.shape[2]
        if len(self.mean) not in {0, channels}:
            raise DataError(f"mean must hold one number per channel, {channels} of them, got {len(self.mean)}")
        return torch.tensor(self.mean or (0.0,), dtype=inputs.dtype, device=inputs.device).view(-1, 1, 1)
