"""Transformation policy of the automatic transformation search (ATS)."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, final

from torch import Tensor
from typing_extensions import override

from gradveil.defenses._base import Adversary, DataDefense
from gradveil.streams import Streams
from gradveil.transforms import (
    LONGEST,
    Hybrid,
    Variants,
    all_variants,
    crop_flip,
    draw_variants,
    draw_views,
    parse_policy,
    to_bytes,
    transform_bytes,
    transform_smoothly,
)
from gradveil.types import Card, Paper, Protected


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class TransformPolicy(DataDefense):
    """Train on transformed images in place of the private ones, and never on those themselves.

    Every image of every step draws anew: which policy of a hybrid, the sign of each operation, crop and mirror. Images
    are rounded to whole levels, as the operations are defined on those. A network trained under this defense should
    not be cropped and mirrored a second time by its training settings.

    Args:
        policy: such as `3-1-7`, or a hybrid such as `3-1-7+43-18-18`, the published one for ResNet20 on CIFAR-100.
        crop_and_flip: pad by four black pixels, crop at random and mirror every other image first, as published.
        longest: operations of a policy at most.
    """

    paper: ClassVar[Paper | None] = Paper(
        title="Privacy-preserving Collaborative Learning with Automatic Transformation Search",
        authors="Gao, Guo, Zhang, Qiu, Wen, Liu",
        year=2021,
        url="https://arxiv.org/abs/2011.12505",
    )
    adversary: ClassVar[Adversary] = Adversary(
        attack="policy-aware",
        reason="who knows the policy learns its translation with the image, or optimizes through all its variants",
    )
    card: ClassVar[Card] = Card(
        fails="An adversary who knows the policy undoes translations and tones; much of the gain in PSNR is black area "
        "that a grey square gains as well, so read it beside the null lines.",
        costs="A few passes over the pixels of each image, no gradients; accuracy, since the network never sees a "
        "private image as it is.",
        suggested="Search on your own data and architecture with `gradveil search --adversary aware`.",
        interacts="Training must not crop and mirror a second time; a network trained without the policy predicts "
        "transformed images badly.",
    )
    off: ClassVar[Mapping[str, object] | None] = {"policy": "28", "crop_and_flip": False}

    policy: str = "3-1-7+43-18-18"
    crop_and_flip: bool = True
    longest: int = LONGEST

    def __post_init__(self) -> None:
        parse_policy(self.policy, longest=self.longest)

    @property
    def hybrid(self) -> Hybrid:
        """The policies, parsed."""
        return parse_policy(self.policy, longest=self.longest)

    @override
    def protect(self, data: Protected, *, pool: Tensor | None, streams: Streams) -> Protected:
        hybrid, (victims, size) = self.hybrid, data.inputs.shape[:2]
        if hybrid.identity and not self.crop_and_flip:
            return data
        images = to_bytes(data.inputs).flatten(0, 1)
        if self.crop_and_flip:
            views = draw_views(size=size, streams=streams)
            images = crop_flip(images, type(views)(*(drawn.flatten(0, 1) for drawn in views)))
        drawn = draw_variants(hybrid, size=size, streams=streams)
        images = transform_bytes(images, Variants(*(each.flatten(0, 1) for each in drawn)))
        return replace(data, inputs=(images.to(data.inputs.dtype) / 255).unflatten(0, (victims, size)))

    def variants(self) -> Variants:
        """List what an image may go through, (n, L) operations and signs; crops and mirrors are left out."""
        return all_variants(self.hybrid)

    def forward_variant(self, inputs: Tensor, number: int) -> Tensor:
        """Apply one of the variants to images (..., C, H, W) in [0, 1], differentiably."""
        images = inputs.flatten(0, -4)
        chosen = (each[number].expand(len(images), -1) for each in self.variants())
        return transform_smoothly(images, Variants(*chosen)).view(inputs.shape)

    @override
    def forward(self, inputs: Tensor) -> Tensor:
        """Apply the first policy with positive signs and without a crop, differentiably.

        What a client drew is its secret; an adversary that wants every possibility goes through `variants`.
        """
        return self.forward_variant(inputs, 0)
