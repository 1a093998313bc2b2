"""The images that policies are scored on, with everything random about them drawn once."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from gradveil.errors import DataError
from gradveil.streams import Streams
from gradveil.transforms import (
    Hybrid,
    Variants,
    Views,
    crop_flip,
    draw_signs,
    draw_views,
    to_bytes,
    transform_bytes,
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Material:
    """Images ready for any policy.

    Crop, mirror, signs and starting noise of an image are the same for all policies, so that what differs between two
    scores is the policy.

    Args:
        images: (N, C, H, W) bytes, cropped and mirrored.
        labels: (N,) class indices.
        signs: (N, L) of each place of a policy.
        dtype: of the pixels that a network sees.
        streams: of the images, one each.
    """

    images: Tensor
    labels: Tensor
    signs: Tensor
    dtype: torch.dtype
    streams: Streams

    @classmethod
    def of(cls, inputs: Tensor, labels: Tensor, *, length: int, crop_and_flip: bool, streams: Streams) -> Self:
        """Draw what is random about images (N, C, H, W) in [0, 1], for policies of at most `length` operations."""
        _check(inputs, labels)
        bound = streams.bind(len(inputs))
        images = to_bytes(inputs)
        if crop_and_flip:
            images = crop_flip(images, Views(*(drawn[:, 0] for drawn in draw_views(size=1, streams=bound))))
        signs = draw_signs(length, size=1, streams=bound)[:, 0].to(inputs.device)
        return cls(images=images, labels=labels, signs=signs, dtype=inputs.dtype, streams=bound)

    def seen(self, policies: Sequence[Hybrid]) -> Tensor:
        """Return what a network sees under each policy, (P, N, C, H, W) in [0, 1]."""
        count = len(policies)
        made = transform_bytes(self.images.repeat(count, 1, 1, 1), self.variants(policies))
        return (made.to(self.dtype) / 255).view(count, *self.images.shape)

    def private(self) -> Tensor:
        """Return the images that policies are applied to, (N, C, H, W) in [0, 1]."""
        return self.images.to(self.dtype) / 255

    def variants(self, policies: Sequence[Hybrid]) -> Variants:
        """Return what each image goes through under each policy, (P * N, L)."""
        length = self.signs.shape[1]
        codes = torch.stack([self._codes(policy, length) for policy in policies]).flatten(0, 1)
        return Variants(codes, self.signs.repeat(len(policies), 1))

    def select(self, rows: Sequence[int]) -> Self:
        """Keep some images, with everything that was drawn for them."""
        kept = torch.as_tensor(rows, device=self.images.device)
        return type(self)(
            images=self.images[kept],
            labels=self.labels[kept],
            signs=self.signs[kept],
            dtype=self.dtype,
            streams=self.streams.select(list(rows)),
        )

    def starts(self) -> Tensor:
        """Return where an attack begins, (N, C, H, W) uniform in [0, 1]; one draw per image."""
        return self.streams.uniform("start", self.images.shape[1:]).to(self.images.device, self.dtype)

    def _codes(self, policy: Hybrid, length: int) -> Tensor:
        """Draw one policy of a hybrid for every image, (N, length)."""
        if policy.length > length:
            raise DataError(f"policies of {length} operations were announced, got {policy}; announce longer ones")
        several = len(policy.policies) > 1
        number = len(self.images)
        choices = torch.zeros(number, dtype=torch.long)
        if several:
            choices = self.streams.integers("policy/choice", len(policy.policies), (1,))[:, 0]
        codes = policy.codes(choices)
        return torch.nn.functional.pad(codes, (0, length - codes.shape[1]), value=-1)


def _check(inputs: Tensor, labels: Tensor) -> None:
    if inputs.ndim != 4 or not inputs.dtype.is_floating_point or not len(inputs):
        form = f"{tuple(inputs.shape)} of {inputs.dtype}"
        raise DataError(f"scores take images (N, C, H, W) of numbers in [0, 1], got {form}")
    if labels.shape != inputs.shape[:1]:
        raise DataError(f"labels must be ({len(inputs)},), one per image, got shape {tuple(labels.shape)}")
    if float(inputs.min()) < 0 or float(inputs.max()) > 1:
        low, high = float(inputs.min()), float(inputs.max())
        raise DataError(f"pixels must lie in [0, 1], got {low:.4g} to {high:.4g}; give plain pixels")
