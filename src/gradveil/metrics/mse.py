"""Mean squared error."""

from dataclasses import dataclass
from typing import ClassVar, final

from torch import Tensor
from typing_extensions import override

from gradveil.metrics._base import Metric


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class MSE(Metric):
    """Mean squared error over all pixels and channels of an image.

    Example:
        >>> import torch
        >>> round(MSE()(torch.zeros(1, 1, 3, 8, 8), torch.full((1, 1, 3, 8, 8), 0.5)).item(), 4)
        0.25
    """

    title: ClassVar[str] = "MSE"
    unit: ClassVar[str] = ""
    higher_is_better: ClassVar[bool] = False

    @override
    def score(self, guess: Tensor, truth: Tensor) -> Tensor:
        return mse(guess, truth)


def mse(guess: Tensor, truth: Tensor) -> Tensor:
    """Return (N,) mean squared errors of (N, C, H, W) images.

    Example:
        >>> import torch
        >>> mse(torch.zeros(2, 1, 2, 2), torch.ones(2, 1, 2, 2)).tolist()
        [1.0, 1.0]
    """
    return (guess - truth).square().flatten(1).mean(1)
