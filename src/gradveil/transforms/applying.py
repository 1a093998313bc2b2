"""Applying operations to many images at once, each with its own operations and signs."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from gradveil.errors import DataError
from gradveil.streams import Streams
from gradveil.transforms._table import KINDS, OPERATIONS, Kind
from gradveil.transforms.policy import Hybrid

PADDING = 4
"""Black pixels around an image before it is cropped."""


class Variants(NamedTuple):
    """What each image goes through.

    Args:
        codes: (..., L) operations in order, -1 for none.
        signs: (..., L) of +1 and -1.
    """

    codes: Tensor
    signs: Tensor


class Views(NamedTuple):
    """Where each image is cropped, and whether it is mirrored.

    Args:
        corners: (..., 2) top and left, from 0 to 8.
        mirrored: (...,).
    """

    corners: Tensor
    mirrored: Tensor


def transform_bytes(images: Tensor, variants: Variants) -> Tensor:
    """Apply operations exactly as Pillow does.

    Args:
        images: (N, C, H, W) bytes of 1 or 3 channels.
        variants: codes and signs (N, L).

    Example:
        >>> image = torch.arange(16, dtype=torch.uint8).view(1, 1, 4, 4)
        >>> transform_bytes(image, Variants(torch.tensor([[3]]), torch.tensor([[1]])))[0, 0, 0].tolist()
        [2, 3, 0, 0]
    """
    if images.dtype != torch.uint8:
        raise DataError(f"exact transformations take bytes, got {images.dtype}; use to_bytes or transform_smoothly")
    _check(images)
    places = _places(variants, images.device)
    return _by_place(images, places, lambda some, code, signs: _kind(code).exact(some, _value(code), signs))


def transform_smoothly(images: Tensor, variants: Variants) -> Tensor:
    """Apply operations to numbers in [0, 1] without rounding, differentiably.

    Posterizing and equalizing give whole levels and pass derivatives on as the identity does; solarizing takes the
    derivative of the branch that a pixel is on.

    Args:
        images: (N, C, H, W) of 1 or 3 channels.
        variants: codes and signs (N, L).
    """
    return smooth_transformation(variants, device=images.device)(images)


def smooth_transformation(variants: Variants, *, device: torch.device) -> Callable[[Tensor], Tensor]:
    """Prepare `transform_smoothly` for many calls, none of which waits for the device, so that it can be captured.

    Example:
        >>> to_the_left = Variants(torch.tensor([[3]]), torch.tensor([[1]]))
        >>> move = smooth_transformation(to_the_left, device=torch.device("cpu"))
        >>> move(torch.ones(1, 1, 4, 4))[0, 0, 3].tolist()
        [1.0, 1.0, 0.0, 0.0]
    """
    places = _places(variants, device)

    def transform(images: Tensor) -> Tensor:
        _check(images)
        return _by_place(images, places, lambda some, code, signs: _kind(code).smooth(some, _value(code), signs))

    return transform


def all_variants(hybrid: Hybrid) -> Variants:
    """List everything that a hybrid may do to an image, (n, L): each policy with each combination of signs.

    Example:
        >>> from gradveil.transforms.policy import parse_policy
        >>> all_variants(parse_policy("3-1-7")).signs.shape
        torch.Size([8, 3])
    """
    codes, signs = [], []
    for policy in hybrid.codes(torch.arange(len(hybrid.policies))).tolist():
        options = [(1, -1) if code >= 0 and OPERATIONS[code].signed else (1,) for code in policy]
        for chosen in product(*options):
            codes.append(policy)
            signs.append(chosen)
    return Variants(torch.tensor(codes), torch.tensor(signs))


def draw_variants(hybrid: Hybrid, *, size: int, streams: Streams) -> Variants:
    """Draw a policy and signs for each of `size` images of every stream, (V, size, L)."""
    choices = streams.integers("policy/choice", len(hybrid.policies), (size,))
    return Variants(hybrid.codes(choices), draw_signs(hybrid.length, size=size, streams=streams))


def draw_signs(length: int, *, size: int, streams: Streams) -> Tensor:
    """Draw (V, size, length) fair signs; the first ones do not depend on the length."""
    places = [streams.integers(f"policy/sign/{place}", 2, (size,)) for place in range(length)]
    return 1 - 2 * torch.stack(places, -1)


def draw_views(*, size: int, streams: Streams) -> Views:
    """Draw a crop and a mirror for each of `size` images of every stream, (V, size, ...)."""
    corners = streams.integers("policy/crop", 2 * PADDING + 1, (size, 2))
    return Views(corners, streams.integers("policy/mirror", 2, (size,)).bool())


def crop_flip(images: Tensor, views: Views) -> Tensor:
    """Surround images by four black pixels, crop each at its own place to the old size, and mirror some.

    Args:
        images: (N, C, H, W) bytes or numbers.
        views: corners (N, 2), 4 and 4 gives the image back; mirrored (N,).

    Example:
        >>> image = torch.arange(4).view(1, 1, 2, 2)
        >>> crop_flip(image, Views(torch.tensor([[4, 5]]), torch.tensor([False]))).tolist()
        [[[[1, 0], [3, 0]]]]
    """
    size, _, height, width = images.shape
    corners, mirrored = views.corners.to(images.device), views.mirrored.to(images.device)
    padded = F.pad(images, [PADDING] * 4)
    across = torch.arange(width, device=images.device).expand(size, width)
    across = torch.where(mirrored[:, None], width - 1 - across, across) + corners[:, 1:]
    down = torch.arange(height, device=images.device) + corners[:, :1]

    each = torch.arange(size, device=images.device)[:, None, None]
    return padded[each, :, down[:, :, None], across[:, None, :]].movedim(-1, 1)


_Apply = Callable[[Tensor, int, Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class _Place:
    """One operation of every image, sorted by operation once.

    Args:
        codes: the operations, -1 for none.
        counts: images of each.
        signs: (N,) in sorted order.
        order: (N,) which image comes where; None if all have the same operation.
        back: (N,) where each image went.
    """

    codes: tuple[int, ...]
    counts: tuple[int, ...]
    signs: Tensor
    order: Tensor | None = None
    back: Tensor | None = None

    @classmethod
    def of(cls, codes: Tensor, signs: Tensor, device: torch.device) -> "_Place":
        """Sort (N,) codes and signs of the host."""
        present, counts = codes.unique(return_counts=True)
        if len(present) == 1:
            return cls((int(present),), (len(codes),), signs.to(device))
        order = codes.argsort(stable=True)
        found, numbers = tuple(present.tolist()), tuple(counts.tolist())
        return cls(found, numbers, signs[order].to(device), order.to(device), order.argsort().to(device))

    def change(self, images: Tensor, apply: _Apply) -> Tensor:
        """Apply each operation to its own images, and put them back in order."""
        if self.order is None or self.back is None:
            return images if self.codes[0] < 0 else apply(images, self.codes[0], self.signs)
        parts = zip(self.codes, images[self.order].split(self.counts), self.signs.split(self.counts), strict=True)
        return torch.cat([some if code < 0 else apply(some, code, own) for code, some, own in parts])[self.back]


def _places(variants: Variants, device: torch.device) -> list[_Place]:
    codes, signs = variants.codes.cpu(), variants.signs.cpu()
    return [_Place.of(codes[:, place], signs[:, place], device) for place in range(codes.shape[1])]


def _by_place(images: Tensor, places: list[_Place], apply: _Apply) -> Tensor:
    """Apply the first operation of every image, then the second, and so on."""
    for place in places:
        images = place.change(images, apply)
    return images


def _kind(code: int) -> Kind:
    return KINDS[OPERATIONS[code].kind]


def _value(code: int) -> float:
    return OPERATIONS[code].value


def _check(images: Tensor) -> None:
    if images.ndim != 4 or images.shape[1] not in {1, 3} or min(images.shape[2:]) < 3:
        wanted = "(N, C, H, W) of 1 or 3 channels and at least 3 x 3 pixels"
        raise DataError(f"transformations take images {wanted}, got shape {tuple(images.shape)}")
