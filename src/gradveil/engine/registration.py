"""Bringing images to where they agree: whole-pixel shifts and mirror images."""

import torch
from torch import Tensor


def register(images: Tensor, anchors: Tensor, *, max_shift: float) -> Tensor:
    """Shift and mirror each image to where its squared distance from its anchor is least; shifts are circular.

    Args:
        images: (N, C, H, W).
        anchors: (N, C, H, W).
        max_shift: largest shift along each axis, as a fraction of the side.

    Returns:
        (N, C, H, W), the images with their pixels in other places.

    Example:
        >>> image = torch.linspace(0, 1, 64).reshape(1, 1, 8, 8)
        >>> torch.equal(register(image.flip(-1), image, max_shift=0.25), image)
        True
    """
    variants = torch.stack([images, images.flip(-1)], dim=1)
    height, width = anchors.shape[-2:]

    # A circular shift keeps the length of the image, so the least distance is where the correlation is largest.
    correlation = _correlations(variants, anchors)
    near = _near(height, max_shift, anchors.device)[:, None] & _near(width, max_shift, anchors.device)
    best = correlation.masked_fill(~near, -torch.inf).flatten(1).argmax(1)

    variant, down, right = best // (height * width), best // width % height, best % width
    return _roll(variants[torch.arange(len(best), device=best.device), variant], down, right)


def _correlations(variants: Tensor, anchors: Tensor) -> Tensor:
    """Return (N, 2, H, W): the inner product of the anchor with each variant shifted down and right by (h, w)."""
    spectrum = torch.fft.rfft2(anchors.double())[:, None] * torch.fft.rfft2(variants.double()).conj()
    correlations: Tensor = torch.fft.irfft2(spectrum.sum(2), s=anchors.shape[-2:])
    return correlations


def _near(side: int, max_shift: float, device: torch.device) -> Tensor:
    """Mark the circular shifts 0 .. side - 1 that are small enough either way."""
    shift = torch.arange(side, device=device)
    return torch.minimum(shift, side - shift).le(max_shift * side)


def _roll(images: Tensor, down: Tensor, right: Tensor) -> Tensor:
    """Roll each of (N, C, H, W) by its own shift."""
    _, _, height, width = images.shape
    rows = (torch.arange(height, device=down.device) - down[:, None]) % height
    columns = (torch.arange(width, device=right.device) - right[:, None]) % width
    rolled = images.gather(2, rows[:, None, :, None].expand_as(images))
    return rolled.gather(3, columns[:, None, None, :].expand_as(images))
