"""Peak signal-to-noise ratio after registration."""

from dataclasses import dataclass
from typing import ClassVar, final

from torch import Tensor
from typing_extensions import override

from gradveil.engine.registration import register
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
        >>> import torch
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
