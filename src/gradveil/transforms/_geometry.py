"""Operations that move pixels: translation, shear and rotation.

Coordinates are worked out in float64 or whole numbers as Pillow does, so the same pixels are picked on every device.
"""

import math

import torch
from torch import Tensor

_GREY = 128
_FIXED = 1 << 16  # Pillow rotates in 16.16 fixed point


def translate_x(images: Tensor, fraction: float, signs: Tensor) -> Tensor:
    """Shift by a share of the width to the nearest whole pixel; sign +1 moves the content to the left.

    Args:
        images: (N, C, H, W) bytes or numbers; black moves in.
        fraction: of the width.
        signs: (N,) of +1 and -1.
    """
    width = images.shape[-1]
    # An output pixel x takes the input pixel below its centre x + 0.5, moved by the offset.
    there = torch.where(signs < 0, math.floor(0.5 - fraction * width), math.floor(fraction * width + 0.5))
    source = torch.arange(width, device=images.device) + there[:, None]
    inside = (source >= 0) & (source < width)
    moved = images.gather(3, source.clamp(0, width - 1)[:, None, None].expand(images.shape))
    return moved.where(inside[:, None, None], 0)


def translate_y(images: Tensor, fraction: float, signs: Tensor) -> Tensor:
    """Shift by a share of the height; sign +1 moves the content up."""
    return translate_x(images.mT, fraction, signs).mT


def shear_x_bytes(images: Tensor, coefficient: float, signs: Tensor) -> Tensor:
    """Shear bytes along the rows; bicubic, cut off to whole levels as Pillow does."""
    return _sheared(images.double(), coefficient, signs).clamp(0, 255).to(torch.uint8)


def shear_y_bytes(images: Tensor, coefficient: float, signs: Tensor) -> Tensor:
    """Shear bytes along the columns."""
    return shear_x_bytes(images.mT, coefficient, signs).mT


def shear_x_smooth(images: Tensor, coefficient: float, signs: Tensor) -> Tensor:
    """Shear numbers in [0, 1] along the rows, differentiably."""
    return _sheared(images, coefficient, signs).clamp(0, 1)


def shear_y_smooth(images: Tensor, coefficient: float, signs: Tensor) -> Tensor:
    """Shear numbers in [0, 1] along the columns, differentiably."""
    return shear_x_smooth(images.mT, coefficient, signs).mT


def rotate_bytes(images: Tensor, degrees: float, signs: Tensor) -> Tensor:  # noqa: ARG001
    """Rotate counter-clockwise to the nearest pixel, over mid-grey; the sign is always +."""
    return _rotated(images, degrees, fill=_GREY)


def rotate_smooth(images: Tensor, degrees: float, signs: Tensor) -> Tensor:  # noqa: ARG001
    """Rotate numbers in [0, 1], over mid-grey."""
    return _rotated(images, degrees, fill=_GREY / 255)


def _sheared(images: Tensor, coefficient: float, signs: Tensor) -> Tensor:
    """Sample each row at x + coefficient * y by a cubic through four neighbours; black from outside."""
    height, width = images.shape[-2:]
    slope = coefficient * signs.to(torch.float64)[:, None, None]
    down = torch.arange(height, dtype=torch.float64, device=images.device)[:, None] + 0.5
    position = torch.arange(width, dtype=torch.float64, device=images.device) + 0.5 + slope * down
    inside = (position >= 0) & (position < width)

    left = (position - 0.5).floor()
    offset = (position - 0.5 - left)[:, None].to(images.dtype)
    taps = [
        images.gather(3, (left.long() + shift).clamp(0, width - 1)[:, None].expand(images.shape))
        for shift in (-1, 0, 1, 2)
    ]
    return _cubic(taps, offset).where(inside[:, None], 0)


def _cubic(taps: list[Tensor], d: Tensor) -> Tensor:
    """Interpolate between the second and third of four values with the kernel a = -1, in Pillow's order of sums."""
    before, here, after, beyond = taps
    cubic = -before + here - after + beyond
    square = 2 * (before - here) + after - beyond
    return here + d * (after - before + d * (square + d * cubic))


def _rotated(images: Tensor, degrees: float, *, fill: float) -> Tensor:
    height, width = images.shape[-2:]
    columns, rows = _rotation_sources(height, width, degrees, images.device)
    inside = (columns >= 0) & (columns < width) & (rows >= 0) & (rows < height)
    turned = images[..., rows.clamp(0, height - 1), columns.clamp(0, width - 1)]
    return turned.where(inside, fill)


def _rotation_sources(height: int, width: int, degrees: float, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return (H, W) column and row of the input pixel that each output pixel takes."""
    cosine, sine = round(math.cos(math.radians(-degrees)), 15), round(math.sin(math.radians(-degrees)), 15)
    middle, centre = width / 2, height / 2
    column0 = cosine * -middle + sine * -centre + middle
    row0 = -sine * -middle + cosine * -centre + centre

    x, y = torch.arange(width, device=device), torch.arange(height, device=device)[:, None]
    columns = _fixed(column0 + cosine * 0.5 + sine * 0.5) + x * _fixed(cosine) + y * _fixed(sine)
    rows = _fixed(row0 - sine * 0.5 + cosine * 0.5) + x * _fixed(-sine) + y * _fixed(cosine)
    return columns >> 16, rows >> 16


def _fixed(value: float) -> int:
    return math.floor(value * _FIXED + 0.5)
