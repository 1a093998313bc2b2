"""Relative error of a reconstruction (rMSE of the privacy-preserving characteristic curves)."""

from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor
from typing_extensions import override

from gradveil.metrics._base import Metric


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class RMSE(Metric):
    """Length of the error over length of the image, ‖guess − truth‖ / ‖truth‖, over the whole image.

    An all-black guess scores 1. The score has no upper bound: dark images give large ones, so prefer the median.

    Example:
        >>> round(RMSE()(torch.zeros(1, 1, 3, 8, 8), torch.ones(1, 1, 3, 8, 8)).item(), 4)
        1.0
    """

    title: ClassVar[str] = "rMSE"
    unit: ClassVar[str] = ""
    higher_is_better: ClassVar[bool] = False

    @override
    def score(self, guess: Tensor, truth: Tensor) -> Tensor:
        return relative_error(guess, truth)


def relative_error(guess: Tensor, truth: Tensor) -> Tensor:
    """Return (N,) relative errors of (N, C, H, W) images; a black truth is taken to have length 1e-8.

    Example:
        >>> relative_error(torch.full((1, 1, 2, 2), 0.5), torch.ones(1, 1, 2, 2)).tolist()
        [0.5]
    """
    error: Tensor = torch.linalg.vector_norm((guess - truth).flatten(1), dim=1)
    length: Tensor = torch.linalg.vector_norm(truth.flatten(1), dim=1)
    return error / length.clamp(min=1e-8)
