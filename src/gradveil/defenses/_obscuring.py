"""Obscured images: alike to a feature extractor, unlike to the eye."""

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor, nn

from gradveil.defenses._obscuring_features import LayerFeatures
from gradveil.engine.capture import capture
from gradveil.errors import DataError
from gradveil.streams import Streams

Reader: TypeAlias = Callable[[Tensor], tuple[Tensor, ...]]
"""Images (N, C, H, W) to features of any shapes (N, ...), which together are g."""

_NOTHING = 1e-8  # added to the norm of a gradient
_FEW = 20  # steps that are not worth being recorded as a CUDA graph


@dataclass(frozen=True, slots=True, kw_only=True)
class Descent:
    """How an image is obscured.

    Args:
        c: weight of looking different.
        steps: of normalized gradient descent.
        lr: length of a step, over all pixels of an image.
    """

    c: float
    steps: int
    lr: float

    def __post_init__(self) -> None:
        if not (0 <= self.c < math.inf and 0 < self.lr < math.inf and self.steps >= 0):
            came = f"{self.c}, {self.steps} and {self.lr}"
            raise ValueError(f"c and steps must be at least 0, lr above 0, and all of them finite, got {came}")


def objective(images: Tensor, private: Tensor, features: nn.Module, *, c: float) -> Tensor:
    """Return (N,), ‖g(x') - g(x*)‖² - c·‖x' - x*‖² of every image (Eq. 4).

    Args:
        images: (N, C, H, W), the x'.
        private: (N, C, H, W), the x*.
        features: g, from (N, C, H, W) to (N, F).
        c: weight of looking different.
    """
    aligned: Tensor = (features(images) - features(private)).square().sum(1)
    return aligned - c * (images - private).square().flatten(1).sum(1)


def gradient(images: Tensor, private: Tensor, target: Tensor, features: nn.Module, *, c: float) -> Tensor:
    """Return (N, C, H, W), the gradient 2·J(x')ᵀ(g(x') - g(x*)) - 2c·(x' - x*) of `objective`.

    Args:
        images: (N, C, H, W), the x'.
        private: (N, C, H, W), the x*.
        target: (N, F), g(x*), which does not change along the way.
        features: g, whose images do not look at each other.
        c: weight of looking different.
    """
    return _slope(images, private, (target,), lambda pixels: (features(pixels),), c=c)


@torch.no_grad()
def obscure(private: Tensor, start: Tensor, features: nn.Module, descent: Descent) -> Tensor:
    """Walk from public images to obscured ones, each on its own, inside [0, 1].

    Args:
        private: (N, C, H, W), the x*.
        start: (N, C, H, W), public images to start from.
        features: g, from (N, C, H, W) to (N, F).
        descent: steps and weights.

    Returns:
        (N, C, H, W) in [0, 1].

    Example:
        >>> private, start = torch.zeros(2, 1, 4, 4), torch.full((2, 1, 4, 4), 0.5)
        >>> far = obscure(private, start, nn.Flatten(), Descent(c=2.0, steps=30, lr=0.1))
        >>> near = obscure(private, start, nn.Flatten(), Descent(c=0.5, steps=30, lr=0.1))
        >>> bool(far.min() > start.max()), bool(near.max() < start.min())
        (True, True)
    """
    read: Reader = features.outputs if isinstance(features, LayerFeatures) else lambda pixels: (features(pixels),)
    images, targets = start.clone(), read(private)

    def step() -> Tensor:
        slope = _slope(images, private, targets, read, c=descent.c)
        length = slope.flatten(1).norm(dim=1).view(-1, 1, 1, 1)
        return images.sub_(descent.lr * slope / (length + _NOTHING)).clamp_(0, 1)

    take = capture(step, {"images": images}) if images.is_cuda and descent.steps > _FEW else None
    for _ in range(descent.steps):
        (take or step)()
    return images


def _slope(images: Tensor, private: Tensor, targets: tuple[Tensor, ...], read: Reader, *, c: float) -> Tensor:
    leaf = images.detach().requires_grad_()
    with torch.enable_grad():
        seen = read(leaf)
    apart = [(one - target).detach() for one, target in zip(seen, targets, strict=True)]
    (pulled,) = torch.autograd.grad(seen, leaf, apart)
    return 2 * pulled - 2 * c * (images - private)


def image_streams(images: Tensor, streams: Streams) -> Streams:
    """Give every image (N, C, H, W) a stream of its own, by its content: the same image always draws the same."""
    # Rounded to half a byte level, so that the number format of a pixel does not matter.
    levels = images.detach().double().mul(510).round().to(torch.int16).flatten(1).cpu().numpy()
    keys = [int.from_bytes(hashlib.blake2b(row.tobytes(), digest_size=8).digest(), "little") for row in levels]
    return Streams(seed=streams.seed, purpose="obscuring", keys=tuple((key,) for key in keys))


def draw_start(images: Tensor, pool: Tensor | None, streams: Streams) -> Tensor:
    """Draw a public image (N, C, H, W) for every private one; noise where there is no pool.

    Args:
        images: (N, C, H, W) private ones.
        pool: (M, C, H, W) public ones.
        streams: one per image.
    """
    if pool is None or not len(pool):
        return streams.uniform("start", images.shape[1:], like=images)
    if pool.shape[1:] != images.shape[1:]:
        shapes = f"{tuple(images.shape[1:])} like the private ones, got {tuple(pool.shape[1:])}"
        raise DataError(f"public images must be {shapes}; resize them or choose others")
    return pool[streams.integers("start", len(pool), ()).to(pool.device)].to(images)
