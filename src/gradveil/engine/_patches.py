"""Gathering patches and adding them back, one pass per offset of the kernel; any device."""

import math

import torch.nn.functional as F
from torch import Tensor

from gradveil.engine.geometry import Geometry


def gather(inputs: Tensor, geometry: Geometry) -> Tensor:
    """Lay out patches: (V, B, H, W, C) to (V, B, H', W', kernel * kernel, C)."""
    down, right = geometry.padding
    padded = F.pad(inputs, (0, 0, right, right, down, down))
    height, width = geometry.output_size(*inputs.shape[2:4])
    victims, batch, channels = inputs.shape[0], inputs.shape[1], inputs.shape[4]
    patches = inputs.new_empty(victims, batch, height, width, math.prod(geometry.kernel), channels)
    for number, window in enumerate(geometry.windows(height, width)):
        patches[..., number, :] = padded[window]
    return patches


def scatter(patches: Tensor, geometry: Geometry, *, height: int, width: int) -> Tensor:
    """Add patches up: (V, B, H', W', kernel * kernel, C) to (V, B, H, W, C)."""
    down, right = geometry.padding
    padded = patches.new_zeros(*patches.shape[:2], height + 2 * down, width + 2 * right, patches.shape[-1])
    for number, window in enumerate(geometry.windows(*patches.shape[2:4])):
        padded[window] += patches[..., number, :]
    return padded[:, :, down : down + height, right : right + width]
