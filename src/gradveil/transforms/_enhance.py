"""Operations that blend an image with a poorer version of it: colour, contrast, brightness and sharpness.

The result is poorer + factor * (image - poorer) with factor 1 + sign * amount; Pillow blends bytes in float32 and cuts
the fraction off.
"""

import torch
from torch import Tensor

_LUMA = (19595, 38470, 7471)  # parts of 65536, for red, green and blue


def color_bytes(images: Tensor, amount: float, signs: Tensor) -> Tensor:
    """Blend with the grey image."""
    return _blend_bytes(_luma_bytes(images), images, amount, signs)


def color_smooth(images: Tensor, amount: float, signs: Tensor) -> Tensor:
    """Blend with the grey image."""
    return _blend_smooth(_luma_smooth(images), images, amount, signs)


def contrast_bytes(images: Tensor, amount: float, signs: Tensor) -> Tensor:
    """Blend with the mean grey, rounded."""
    total, pixels = _luma_bytes(images).sum((1, 2, 3), keepdim=True), images.shape[2] * images.shape[3]
    return _blend_bytes((2 * total + pixels) // (2 * pixels), images, amount, signs)


def contrast_smooth(images: Tensor, amount: float, signs: Tensor) -> Tensor:
    """Blend with the mean grey."""
    return _blend_smooth(_luma_smooth(images).mean((1, 2, 3), keepdim=True), images, amount, signs)


def brightness_bytes(images: Tensor, amount: float, signs: Tensor) -> Tensor:
    """Blend with black."""
    return _blend_bytes(torch.zeros_like(images), images, amount, signs)


def brightness_smooth(images: Tensor, amount: float, signs: Tensor) -> Tensor:
    """Blend with black."""
    return _blend_smooth(torch.zeros_like(images), images, amount, signs)


def sharpness_bytes(images: Tensor, amount: float, signs: Tensor) -> Tensor:
    """Blend with the image smoothed over 3 x 3 pixels and rounded; the outermost pixels are not smoothed."""
    pixels = images.long()
    smoothed = _inner(pixels, (2 * _weighted_sum(pixels) + 13) // 26)
    return _blend_bytes(smoothed, images, amount, signs)


def sharpness_smooth(images: Tensor, amount: float, signs: Tensor) -> Tensor:
    """Blend with the smoothed image."""
    return _blend_smooth(_inner(images, _weighted_sum(images) / 13), images, amount, signs)


def _blend_bytes(poorer: Tensor, images: Tensor, amount: float, signs: Tensor) -> Tensor:
    factor = (1 + amount * signs.double()).float()[:, None, None, None]
    low, high = poorer.float(), images.float()
    # Two roundings, as on a processor without fused multiply-add: one expression per operation keeps them apart.
    change = factor * (high - low)
    return (low + change).clamp(0, 255).to(torch.uint8)


def _blend_smooth(poorer: Tensor, images: Tensor, amount: float, signs: Tensor) -> Tensor:
    factor = (1 + amount * signs.to(images.dtype))[:, None, None, None]
    return (poorer + factor * (images - poorer)).clamp(0, 1)


def _luma_bytes(images: Tensor) -> Tensor:
    """Return (N, 1, H, W) grey levels as whole numbers."""
    pixels = images.long()
    if images.shape[1] == 1:
        return pixels
    weights = torch.tensor(_LUMA, device=images.device).view(3, 1, 1)
    return ((pixels * weights).sum(1, keepdim=True) + 0x8000) >> 16


def _luma_smooth(images: Tensor) -> Tensor:
    if images.shape[1] == 1:
        return images
    red, green, blue = (part / 65536 * images[:, i : i + 1] for i, part in enumerate(_LUMA))
    return red + green + blue


def _weighted_sum(images: Tensor) -> Tensor:
    """Add up 3 x 3 pixels, the middle one five times, for all pixels but the outermost."""
    rows = images[:, :, :-2] + images[:, :, 1:-1] + images[:, :, 2:]
    return rows[..., :-2] + rows[..., 1:-1] + rows[..., 2:] + 4 * images[:, :, 1:-1, 1:-1]


def _inner(images: Tensor, inner: Tensor) -> Tensor:
    """Put new values in place of all pixels but the outermost."""
    middle = torch.cat([images[:, :, 1:-1, :1], inner, images[:, :, 1:-1, -1:]], 3)
    return torch.cat([images[:, :, :1], middle, images[:, :, -1:]], 2)
