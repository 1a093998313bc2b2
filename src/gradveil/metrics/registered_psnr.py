"""Peak signal-to-noise ratio after registration."""

from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor
from typing_extensions import override

from gradveil.metrics._base import Metric
from gradveil.metrics.psnr import psnr


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteredPSNR(Metric):
    """Best PSNR over whole-pixel shifts of the guess and its mirror image, in decibels.

    Convolutional networks hardly fix where an object stands, so reconstructions come out shifted, mirrored, or as
    copies that wrap around the border; plain PSNR calls those failures. Shifts here are circular, so that every
    shift compares the same number of pixels: on the overlap alone the best shift would be the one that leaves the
    least to compare. The score is never below plain PSNR, also for guesses that know nothing: judge it against its
    own nulls only.

    Args:
        max_shift: largest shift along each axis, as a fraction of that side; 0.5 is every shift there is.

    Example:
        >>> image = torch.linspace(0, 1, 64).reshape(1, 1, 1, 8, 8)
        >>> round(RegisteredPSNR()(image.roll((2, -1), (-2, -1)), image).item())
        140
    """

    title: ClassVar[str] = "registered PSNR"
    unit: ClassVar[str] = "dB"
    higher_is_better: ClassVar[bool] = True

    max_shift: float = 0.25

    def __post_init__(self) -> None:
        if not 0 <= self.max_shift <= 0.5:
            raise ValueError(f"max_shift must be a fraction of the side in 0 .. 0.5, got {self.max_shift}")

    @override
    def score(self, guess: Tensor, truth: Tensor) -> Tensor:
        return psnr(register(guess, truth, max_shift=self.max_shift), truth)


def register(guess: Tensor, truth: Tensor, *, max_shift: float) -> Tensor:
    """Shift and mirror each guess to where its squared error is least.

    Args:
        guess: (N, C, H, W).
        truth: (N, C, H, W).
        max_shift: as a fraction of the side.

    Returns:
        (N, C, H, W), the guess with its pixels in other places.

    Example:
        >>> image = torch.linspace(0, 1, 64).reshape(1, 1, 8, 8)
        >>> torch.equal(register(image.flip(-1), image, max_shift=0.25), image)
        True
    """
    variants = torch.stack([guess, guess.flip(-1)], dim=1)
    height, width = truth.shape[-2:]

    # A shift keeps the length of the guess, so the least error is where the correlation is largest.
    correlation = _correlations(variants, truth)
    near = _near(height, max_shift, truth.device)[:, None] & _near(width, max_shift, truth.device)
    best = correlation.masked_fill(~near, -torch.inf).flatten(1).argmax(1)

    variant, down, right = best // (height * width), best // width % height, best % width
    return _roll(variants[torch.arange(len(best), device=best.device), variant], down, right)


def _correlations(variants: Tensor, truth: Tensor) -> Tensor:
    """Return (N, 2, H, W): the inner product of the truth with each variant shifted down and right by (h, w)."""
    spectrum = torch.fft.rfft2(truth.double())[:, None] * torch.fft.rfft2(variants.double()).conj()
    correlations: Tensor = torch.fft.irfft2(spectrum.sum(2), s=truth.shape[-2:])
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
