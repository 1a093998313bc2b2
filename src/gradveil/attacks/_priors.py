"""What images look like: starts, boxes and penalties, in the standardized pixels the papers' settings are for."""

from dataclasses import dataclass
from typing import Literal, Self, TypeAlias

import torch
from torch import Tensor

from gradveil.engine import Standardize, find_normalization
from gradveil.streams import Streams
from gradveil.types import Observation

Start: TypeAlias = Literal["normal", "uniform", "zeros", "pattern"]


@dataclass(frozen=True, slots=True)
class ImageSpace:
    """Standardized pixels of the images behind an observation.

    Args:
        shape: (B, C, H, W).
        normalization: of the model.
        like: a tensor on the right device and of the right format.
    """

    shape: tuple[int, int, int, int]
    normalization: Standardize
    like: Tensor

    @classmethod
    def of(cls, observation: Observation) -> Self:
        """Read the space off an observation."""
        return cls(observation.input_shape, find_normalization(observation.model), observation.update[0])

    def start(self, kind: Start, streams: Streams, *, tile: int = 16) -> Tensor:
        """Draw (V, B, C, H, W) images to start from; a pattern is a uniform tile repeated over the image."""
        if kind == "normal":
            return streams.normal("start", self.shape, like=self.like)
        if kind == "uniform":
            return 2 * streams.uniform("start", self.shape, like=self.like) - 1
        if kind == "zeros":
            return torch.zeros((len(streams.keys), *self.shape), dtype=self.like.dtype, device=self.like.device)
        batch, channels, height, width = self.shape
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


def total_variation(images: Tensor) -> Tensor:
    """Return (V,) the mean absolute difference of vertical plus that of horizontal neighbours.

    Example:
        >>> total_variation(torch.tensor([[[[[0.0, 1.0], [0.0, 1.0]]]]]))
        tensor([1.])
    """
    vertical = (images[..., 1:, :] - images[..., :-1, :]).abs().mean((1, 2, 3, 4))
    horizontal = (images[..., 1:] - images[..., :-1]).abs().mean((1, 2, 3, 4))
    return vertical + horizontal
