"""Peak signal-to-noise ratio."""

from dataclasses import dataclass
from typing import ClassVar, final

from torch import Tensor
from typing_extensions import override

from gradveil.metrics._base import Metric
from gradveil.metrics.mse import mse

MSE_FLOOR = 1e-14
"""Errors below it count as this much, so that an exact copy scores 140 dB and not infinity."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class PSNR(Metric):
    """Peak signal-to-noise ratio in decibels: 10·log10(1 / MSE) on [0, 1], per image, 140 dB for an exact copy.

    The mean is taken over all pixels and channels of one image, never over images. Codes of the field differ: some
    measure standardized pixels with one peak per channel, some do not clamp; their numbers are not comparable.

    Example:
        >>> import torch
        >>> round(PSNR()(torch.zeros(1, 1, 3, 8, 8), torch.full((1, 1, 3, 8, 8), 0.1)).item(), 3)
        20.0
    """

    title: ClassVar[str] = "PSNR"
    unit: ClassVar[str] = "dB"
    higher_is_better: ClassVar[bool] = True

    @override
    def score(self, guess: Tensor, truth: Tensor) -> Tensor:
        return psnr(guess, truth)


def psnr(guess: Tensor, truth: Tensor) -> Tensor:
    """Return (N,) decibels for (N, C, H, W) images in [0, 1].

    Example:
        >>> import torch
        >>> psnr(torch.ones(1, 1, 2, 2), torch.ones(1, 1, 2, 2)).tolist()
        [140.0]
    """
    return -10 * mse(guess, truth).clamp(min=MSE_FLOOR).log10()
