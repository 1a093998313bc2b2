"""Batches cut from a split that lies on the device as bytes."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal, Self, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from gradveil.data import Split
from gradveil.errors import DataError
from gradveil.streams import Streams
from gradveil.types import Batch

Augment: TypeAlias = Literal["none", "crop-flip"]

PADDING: Final = 4
"""Black pixels around an image before it is cropped."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Loader:
    """The training set of one client.

    Args:
        images: (N, C, H, W) bytes.
        labels: (N,).
        sensitive: (N,) mask, None for all.
        batch_size: B, at most N.
        augment: `crop-flip` pads by 4, crops at random and mirrors every other image.
        dtype: of the pixels.
    """

    images: Tensor
    labels: Tensor
    sensitive: Tensor | None
    batch_size: int
    augment: Augment
    dtype: torch.dtype

    @classmethod
    def of(cls, split: Split, *, batch_size: int, augment: Augment, like: Tensor) -> Self:
        """Move a split to the device of a tensor, and give pixels in its format."""
        if not len(split):
            raise DataError("a training set must hold at least one image, got none; give another split")
        return cls(
            images=split.images.to(like.device),
            labels=split.labels.to(like.device),
            sensitive=None if split.sensitive is None else split.sensitive.to(like.device),
            batch_size=min(batch_size, len(split)),
            augment=augment,
            dtype=like.dtype,
        )

    @property
    def steps(self) -> int:
        """Number of batches in an epoch; images that do not fill a last batch wait for the next epoch's order."""
        return len(self.images) // self.batch_size

    def epoch(self, number: int, *, streams: Streams) -> Iterator[Batch]:
        """Cut an epoch into batches (1, B, C, H, W), in an order that depends on the streams and the number alone."""
        device = self.images.device
        order = streams.permutation(f"order/{number}", len(self.images), device=device)[0]
        views = self._views(number, streams)

        for rows in order.split(self.batch_size)[: self.steps]:
            images = self.images[rows]
            if views is not None:
                images = crop_flip(images, corners=views[rows, :2], mirrored=views[rows, 2].bool())
            sensitive = None if self.sensitive is None else self.sensitive[rows][None]
            yield Batch(images.to(self.dtype).div_(255)[None], self.labels[rows][None], sensitive)

    def _views(self, number: int, streams: Streams) -> Tensor | None:
        """Draw top, left and mirror of every image, (N, 3), for the whole epoch at once."""
        if self.augment == "none":
            return None
        corners = streams.integers(f"crop/{number}", 2 * PADDING + 1, (len(self.images), 2))
        mirrors = streams.integers(f"mirror/{number}", 2, (len(self.images), 1))
        return torch.cat([corners, mirrors], 2)[0].to(self.images.device)


def crop_flip(images: Tensor, *, corners: Tensor, mirrored: Tensor) -> Tensor:
    """Surround images by four black pixels, crop each at its own place to the old size, and mirror some.

    Args:
        images: (B, C, H, W).
        corners: (B, 2) top and left of each crop, from 0 to 8; 4 and 4 give the image back.
        mirrored: (B,) whether left and right change places.

    Example:
        >>> image = torch.arange(4).view(1, 1, 2, 2)
        >>> crop_flip(image, corners=torch.tensor([[4, 5]]), mirrored=torch.tensor([False])).tolist()
        [[[[1, 0], [3, 0]]]]
    """
    size, _, height, width = images.shape
    padded = F.pad(images, [PADDING] * 4)
    across = torch.arange(width, device=images.device).expand(size, width)
    across = torch.where(mirrored[:, None], width - 1 - across, across) + corners[:, 1:]
    down = torch.arange(height, device=images.device) + corners[:, :1]

    each = torch.arange(size, device=images.device)[:, None, None]
    return padded[each, :, down[:, :, None], across[:, None, :]].movedim(-1, 1)
