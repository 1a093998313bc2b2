"""Structural similarity (Wang, Bovik, Sheikh and Simoncelli, 2004)."""

from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias, final

import torch
import torch.nn.functional as F
from torch import Tensor
from typing_extensions import override

from gradveil.metrics._base import Metric
from gradveil.metrics._filters import filter_inside, gaussian_window

Padding: TypeAlias = Literal["none", "zeros"]

C1, C2 = 0.01**2, 0.03**2


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class SSIM(Metric):
    """Structural similarity with a Gaussian window, averaged over the places where the whole window fits.

    This is the convention of the original paper and of scikit-image. Codes that pad the image instead (torchmetrics
    mirrors it, several attack codes, that of DCS² among them, fill with zeros) give the same numbers away from the
    border only; `padding=zeros` is their convention, for figures that are to be compared with theirs.

    Without padding, images smaller than the window get the largest odd window that fits, with sigma made smaller in
    proportion: an 8×8 digit is measured with 7×7 pixels and sigma 0.95.

    Args:
        window: side of the window in pixels, odd.
        sigma: of the Gaussian, in pixels.
        padding: `none`, or `zeros` around both images, which makes every pixel the middle of a window.

    Example:
        >>> image = torch.linspace(0, 1, 3 * 16 * 16).reshape(1, 1, 3, 16, 16)
        >>> round(SSIM()(image, image).item(), 4)
        1.0
    """

    title: ClassVar[str] = "SSIM"
    unit: ClassVar[str] = ""
    higher_is_better: ClassVar[bool] = True

    window: int = 11
    sigma: float = 1.5
    padding: Padding = "none"

    def __post_init__(self) -> None:
        if self.window < 1 or self.window % 2 == 0:
            raise ValueError(f"window must be odd and at least 1, got {self.window}")
        if self.sigma <= 0:
            raise ValueError(f"sigma must be above 0, got {self.sigma}")

    @override
    def score(self, guess: Tensor, truth: Tensor) -> Tensor:
        return ssim(guess, truth, window=self.window, sigma=self.sigma, padding=self.padding)


def ssim(guess: Tensor, truth: Tensor, *, window: int = 11, sigma: float = 1.5, padding: Padding = "none") -> Tensor:
    """Return (N,) similarities in [-1, 1] of (N, C, H, W) images in [0, 1], the mean over places and channels.

    Example:
        >>> image = torch.linspace(0, 1, 144).reshape(1, 1, 12, 12)
        >>> ssim(1 - image, image).item() < 0
        True
    """
    moments = torch.stack([guess, truth, guess.square(), truth.square(), guess * truth])
    if padding == "zeros":
        moments = F.pad(moments, (window // 2,) * 4)
    side = min(window, _largest_odd(min(moments.shape[-2:])))
    g, t, gg, tt, gt = filter_inside(moments, gaussian_window(side, sigma * side / window)).unbind()

    luminance = (2 * g * t + C1) / (g.square() + t.square() + C1)
    structure = (2 * (gt - g * t) + C2) / (gg - g.square() + tt - t.square() + C2)
    return (luminance * structure).flatten(1).mean(1)


def _largest_odd(side: int) -> int:
    return side - 1 + side % 2
