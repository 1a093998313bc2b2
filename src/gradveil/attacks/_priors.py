"""What images look like: starts, boxes and penalties, in the standardized pixels the papers' settings are for."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, Self, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from gradveil.attacks._given import Given
from gradveil.engine import Standardize, find_normalization
from gradveil.streams import Streams
from gradveil.types import Observation

Start: TypeAlias = Literal["normal", "uniform", "zeros", "pattern", "smooth", "image"]
Variation: TypeAlias = Literal["anisotropic", "isotropic", "squared", "huber"]
_HUBER = 0.1  # standardized difference up to which the penalty is a parabola
_SMOOTH = 4  # pixels between the grid points of a smooth start


@dataclass(frozen=True, slots=True)
class ImageSpace:
    """Standardized pixels of the images behind an observation.

    Args:
        shape: (B, C, H, W).
        normalization: of the model.
        like: a tensor on the right device and of the right format.
        given: public images to start from.
    """

    shape: tuple[int, int, int, int]
    normalization: Standardize
    like: Tensor
    given: Given = field(default_factory=Given)

    @classmethod
    def of(cls, observation: Observation) -> Self:
        """Read the space off an observation."""
        found, given = find_normalization(observation.model), Given.of(observation)
        return cls(observation.input_shape, found, observation.update[0], given)

    def select(self, victims: Sequence[int]) -> Self:
        """Keep what some victims can start from."""
        return replace(self, given=self.given.select(victims))

    def start(self, kind: Start, streams: Streams, *, tile: int = 16) -> Tensor:
        """Draw (V, B, C, H, W) images to start from.

        A pattern is a uniform tile repeated over the image; a smooth start is normal noise on a coarse grid, enlarged;
        an image is one of the public images, of the sample's class where that is known.
        """
        if kind == "normal":
            return streams.normal("start", self.shape, like=self.like)
        if kind == "uniform":
            return 2 * streams.uniform("start", self.shape, like=self.like) - 1
        if kind == "image":
            return self.normalization.standardize(self.given.draw(streams, self.shape).to(self.like))
        if kind == "zeros":
            return torch.zeros((len(streams.keys), *self.shape), dtype=self.like.dtype, device=self.like.device)
        batch, channels, height, width = self.shape
        if kind == "smooth":
            coarse = (batch, channels, -(-height // _SMOOTH), -(-width // _SMOOTH))
            return enlarge(streams.normal("start", coarse, like=self.like), (height, width))
        side = min(tile, height, width)
        patch = streams.uniform("start", (batch, channels, side, side), like=self.like)
        return patch.repeat(1, 1, 1, -(-height // side), -(-width // side))[..., :height, :width].contiguous()

    def box(self) -> tuple[Tensor, Tensor]:
        """Return the standardized values of black and white, (C, 1, 1) each."""
        black = torch.zeros((self.shape[1], 1, 1), dtype=self.like.dtype, device=self.like.device)
        return self.normalization.standardize(black), self.normalization.standardize(black + 1)

    def pixels(self, standardized: Tensor) -> Tensor:
        """Map standardized values to pixels."""
        return self.normalization.pixels(standardized)


def total_variation(images: Tensor, kind: Variation = "anisotropic") -> Tensor:
    """Return (V,) how much neighbouring pixels differ, the mean over vertical plus that over horizontal neighbours.

    Args:
        images: (V, B, C, H, W).
        kind: `anisotropic` takes absolute differences, as published; `isotropic` the length of both differences at a
            pixel, which prefers no direction; `squared` their squares, which blurs edges; `huber` squares small
            differences and takes the others as they are, which keeps edges and has no steps in flat regions.

    Example:
        >>> total_variation(torch.tensor([[[[[0.0, 1.0], [0.0, 1.0]]]]]))
        tensor([1.])
    """
    down, right = images[..., 1:, :] - images[..., :-1, :], images[..., 1:] - images[..., :-1]
    if kind == "isotropic":
        both = F.pad(down, (0, 0, 0, 1)).square() + F.pad(right, (0, 1)).square()
        return (both + 1e-8).sqrt().mean((1, 2, 3, 4))  # the root of zero has no slope
    return _cost(down, kind).mean((1, 2, 3, 4)) + _cost(right, kind).mean((1, 2, 3, 4))


def opponents(images: Tensor) -> Tensor:
    """Append the differences between the three colours, in which natural images vary least; grey images stay.

    Example:
        >>> opponents(torch.zeros(2, 1, 3, 4, 4)).shape
        torch.Size([2, 1, 6, 4, 4])
    """
    if images.shape[2] != 3:
        return images
    red, green, blue = images.unbind(2)
    return torch.cat([images, torch.stack([red - green, red - blue, green - blue], 2)], 2)


def distance_from_mean(images: Tensor) -> Tensor:
    """Return (V,) the mean square of each channel's mean: how far colour and brightness are from the data set's.

    Example:
        >>> distance_from_mean(torch.full((1, 1, 3, 4, 4), 2.0))
        tensor([4.])
    """
    return images.mean((3, 4)).square().mean((1, 2))


def enlarge(images: Tensor, size: tuple[int, int]) -> Tensor:
    """Enlarge (..., h, w) to a size by linear interpolation.

    Example:
        >>> enlarge(torch.tensor([[0.0, 1.0]]), (1, 4)).tolist()
        [[0.0, 0.25, 0.75, 1.0]]
    """
    return enlarging((images.shape[-2], images.shape[-1]), size, like=images)(images)


def enlarging(old: tuple[int, int], new: tuple[int, int], *, like: Tensor) -> Callable[[Tensor], Tensor]:
    """Return what enlarges (..., *old) to (..., *new), as products that repeat their bits on a GPU."""
    down, right = (_interpolation(*sides, like) for sides in zip(old, new, strict=True))
    return lambda images: down @ images @ right.T


def _interpolation(old: int, new: int, like: Tensor) -> Tensor:
    """Return (new, old), what each new pixel takes of the old ones."""
    unit = torch.eye(old, dtype=torch.float64)[None]
    matrix: Tensor = F.interpolate(unit, size=new, mode="linear", align_corners=False)[0].T
    return matrix.to(like)


def _cost(differences: Tensor, kind: Variation) -> Tensor:
    if kind == "squared":
        return differences.square()
    if kind == "huber":
        size = differences.abs()
        return torch.where(size < _HUBER, size.square() / (2 * _HUBER), size - _HUBER / 2)
    return differences.abs()
