"""What every metric is: a direction, a unit, and one number per sample."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from gradveil.errors import DataError
from gradveil.registry import Registry


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric(ABC):
    """Compare guesses with the truth, one number per sample.

    A leaf is a thin frozen dataclass around a pure function of the same file; its fields are its settings.

    Attributes:
        title: how tables and figures write it.
        unit: `dB`, or empty for a plain number.
        higher_is_better: whether a larger number means a closer reconstruction, which is worse for the victim.
    """

    title: ClassVar[str]
    unit: ClassVar[str]
    higher_is_better: ClassVar[bool]

    @final
    @torch.no_grad()
    def __call__(self, guess: Tensor, truth: Tensor) -> Tensor:
        """Score every sample of every victim.

        Args:
            guess: (V, B, C, H, W), matched to the truth by `align`; see `clean` for what is not in [0, 1].
            truth: (V, B, C, H, W) on the same device.

        Returns:
            (V, B), in float64 if an argument is and in float32 otherwise.
        """
        if guess.shape != truth.shape or truth.ndim != 5:
            came = f"{tuple(guess.shape)} and {tuple(truth.shape)}"
            raise DataError(f"{self.title} compares two (V, B, C, H, W) tensors of one shape, got {came}; align first")

        dtype = torch.promote_types(torch.promote_types(guess.dtype, truth.dtype), torch.float32)
        samples = [clean(images.to(dtype)).flatten(0, 1) for images in (guess, truth)]
        return self.score(*samples).reshape(truth.shape[:2])

    @abstractmethod
    def score(self, guess: Tensor, truth: Tensor) -> Tensor:
        """Score (N, C, H, W) against (N, C, H, W), both clean and in [0, 1]; returns (N,)."""


def clean(images: Tensor) -> Tensor:
    """Bring images into [0, 1]: what is not a number becomes grey (0.5), the rest is clamped.

    Example:
        >>> clean(torch.tensor([float("nan"), -0.5, 0.25, float("inf")])).tolist()
        [0.5, 0.0, 0.25, 1.0]
    """
    return images.nan_to_num(nan=0.5).clamp(0, 1)


metrics = Registry("metric", "gradveil.metrics", Metric)  # type: ignore[type-abstract]
"""The metrics by file name, such as `registered-psnr`."""
