"""Operations that map each level of a channel to another one."""

import torch
from torch import Tensor


def invert_bytes(images: Tensor, value: float, signs: Tensor) -> Tensor:  # noqa: ARG001
    """Turn black into white."""
    return 255 - images


def invert_smooth(images: Tensor, value: float, signs: Tensor) -> Tensor:  # noqa: ARG001
    """Turn black into white."""
    return 1 - images


def solarize_bytes(images: Tensor, threshold: float, signs: Tensor) -> Tensor:  # noqa: ARG001
    """Invert the levels from a threshold on; 256 changes nothing."""
    return torch.where(images < threshold, images, 255 - images)


def solarize_smooth(images: Tensor, threshold: float, signs: Tensor) -> Tensor:  # noqa: ARG001
    """Invert from a threshold on; which pixels are inverted counts as constant."""
    return torch.where(images * 255 < threshold, images, 1 - images)


def posterize_bytes(images: Tensor, bits: float, signs: Tensor) -> Tensor:  # noqa: ARG001
    """Keep the highest bits of each level."""
    return images & _mask(bits)


def posterize_smooth(images: Tensor, bits: float, signs: Tensor) -> Tensor:  # noqa: ARG001
    """Keep the highest bits; the derivative is that of the identity."""
    return straight_through(images, (to_bytes(images) & _mask(bits)).to(images.dtype) / 255)


def autocontrast_bytes(images: Tensor, value: float, signs: Tensor) -> Tensor:  # noqa: ARG001
    """Stretch each channel from its darkest and brightest level to black and white."""
    pixels = images.double()
    low, high = _extremes(pixels)
    # Not 255 / span, which torch works out as a reciprocal and a product: one rounding too many.
    scale = torch.full_like(low, 255) / (high - low).where(high > low, 1)
    stretched = (pixels * scale - low * scale).clamp(0, 255)
    return stretched.where(high > low, pixels).to(torch.uint8)


def autocontrast_smooth(images: Tensor, value: float, signs: Tensor) -> Tensor:  # noqa: ARG001
    """Stretch each channel, differentiably in the extremes too."""
    low, high = _extremes(images)
    return ((images - low) / (high - low).where(high > low, 1)).where(high > low, images)


def equalize_bytes(images: Tensor, value: float, signs: Tensor) -> Tensor:  # noqa: ARG001
    """Spread the levels of each channel so that all are used equally often."""
    levels = images.flatten(2).long()
    counts = torch.zeros((*levels.shape[:2], 256), dtype=torch.long, device=images.device)
    counts.scatter_add_(2, levels, torch.ones_like(levels))
    last = counts.gather(2, levels.amax(2, keepdim=True))
    step = (levels.shape[2] - last) // 255

    before = counts.cumsum(2) - counts + step // 2
    table = (before // step.clamp(min=1)).clamp(max=255)
    # A channel with too few pixels below its brightest level stays as it is.
    table = table.where(step > 0, torch.arange(256, device=images.device))
    return table.gather(2, levels).view(images.shape).to(torch.uint8)


def equalize_smooth(images: Tensor, value: float, signs: Tensor) -> Tensor:
    """Equalize to whole levels; the derivative is that of the identity."""
    return straight_through(images, equalize_bytes(to_bytes(images), value, signs).to(images.dtype) / 255)


def straight_through(images: Tensor, result: Tensor) -> Tensor:
    """Give a result that cannot be differentiated the derivative of the identity."""
    return images + (result - images).detach()


def to_bytes(images: Tensor) -> Tensor:
    """Round numbers in [0, 1] to levels 0 .. 255.

    Example:
        >>> to_bytes(torch.tensor([0.0, 0.5, 1.0])).tolist()
        [0, 128, 255]
    """
    return images.detach().mul(255).round().clamp(0, 255).to(torch.uint8)


def _mask(bits: float) -> int:
    return 256 - (1 << (8 - int(bits)))


def _extremes(images: Tensor) -> tuple[Tensor, Tensor]:
    return images.amin((2, 3), keepdim=True), images.amax((2, 3), keepdim=True)
