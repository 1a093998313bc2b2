"""Random transformation policy, the baseline of the automatic transformation search (ATS)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, final

from torch import Tensor
from typing_extensions import override

from gradveil.defenses._base import Adversary, DataDefense
from gradveil.defenses.transform_policy import TransformPolicy
from gradveil.streams import Streams
from gradveil.transforms import LONGEST, Variants, draw_policies
from gradveil.types import Card, Paper, Protected


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class RandomPolicy(DataDefense):
    """Transform images by a policy that nobody searched for.

    The paper averages over ten random policies: audit `random-policy:seed=0` to `random-policy:seed=9`, and let
    `gradveil search baseline RUN` average them.

    Args:
        seed: of the policy alone; all clients and steps use the same one.
        length: operations at most; all policies up to this length are equally likely.
        crop_and_flip: crop and mirror first, as in `transform-policy`.
    """

    paper: ClassVar[Paper | None] = TransformPolicy.paper
    adversary: ClassVar[Adversary] = TransformPolicy.adversary
    card: ClassVar[Card] = Card(
        fails="Most random policies hide less than a searched one, some hide nothing; one seed says little about them.",
        costs="A few passes over the pixels of each image, no gradients; a network of its own for every policy.",
        suggested="Ten seeds, averaged: `random-policy:seed=0` to `random-policy:seed=9`.",
        interacts="As transform-policy: training must not crop and mirror a second time.",
    )
    off: ClassVar[Mapping[str, object] | None] = None

    seed: int = 0
    length: int = LONGEST
    crop_and_flip: bool = True

    def __post_init__(self) -> None:
        if self.length < 1:
            raise ValueError(f"length must be at least 1, got {self.length}")

    @property
    def drawn(self) -> TransformPolicy:
        """The defense by the policy that the seed gives.

        Example:
            >>> RandomPolicy(seed=1).drawn.policy
            '8-5-37'
        """
        (policy,) = draw_policies(Streams(seed=self.seed, purpose="random-policy").bind(1), length=self.length)
        return TransformPolicy(policy=str(policy), crop_and_flip=self.crop_and_flip, longest=self.length)

    @override
    def protect(self, data: Protected, *, pool: Tensor | None, streams: Streams) -> Protected:
        return self.drawn.protect(data, pool=pool, streams=streams)

    def variants(self) -> Variants:
        """List what an image may go through; see `TransformPolicy.variants`."""
        return self.drawn.variants()

    def forward_variant(self, inputs: Tensor, number: int) -> Tensor:
        """Apply one of the variants to images (..., C, H, W) in [0, 1], differentiably."""
        return self.drawn.forward_variant(inputs, number)

    @override
    def forward(self, inputs: Tensor) -> Tensor:
        return self.drawn.forward(inputs)
