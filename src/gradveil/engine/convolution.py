"""Weight gradients of convolutions, one per victim."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Geometry:
    """How a two-dimensional convolution moves over its input."""

    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    groups: int

    @classmethod
    def of(
        cls,
        weight: Tensor,
        stride: int | Sequence[int],
        padding: str | int | Sequence[int],
        dilation: int | Sequence[int],
        groups: int,
    ) -> "Geometry | None":
        """Read the arguments of a call; None where padding differs between the two sides."""
        kernel, spread = (int(weight.shape[-2]), int(weight.shape[-1])), _pair(dilation)
        if padding == "valid":
            padding = 0
        elif padding == "same":
            total = [d * (k - 1) for d, k in zip(spread, kernel, strict=True)]
            if any(t % 2 for t in total):
                return None
            padding = [t // 2 for t in total]
        assert not isinstance(padding, str)
        return cls(kernel, _pair(stride), _pair(padding), spread, groups)


def weight_gradient(inputs: Tensor, deltas: Tensor, geometry: Geometry) -> Tensor:
    """Make each victim's weight gradient from what entered a convolution and the gradient at what left it.

    Args:
        inputs: (V, B, C, H, W).
        deltas: (V, B, O, H', W').
        geometry: of the convolution.

    Returns:
        (V, O, C / groups, kernel, kernel), differentiable in both arguments.
    """
    victims, channels = len(inputs), deltas.shape[2]
    shape = (victims * channels, inputs.shape[2] // geometry.groups, *geometry.kernel)
    # Victims become groups of one convolution: (V, B, C, ...) to (B, V * C, ...).
    gradient: Tensor = torch.ops.aten.convolution_backward(
        deltas.transpose(0, 1).flatten(1, 2),
        inputs.transpose(0, 1).flatten(1, 2),
        inputs.new_empty(1).expand(shape),
        None,
        geometry.stride,
        geometry.padding,
        geometry.dilation,
        False,
        [0, 0],
        victims * geometry.groups,
        [False, True, False],
    )[1]
    return gradient.reshape(victims, channels, *shape[1:])


def _pair(value: int | Sequence[int]) -> tuple[int, int]:
    values = (value,) * 2 if isinstance(value, int) else tuple(value) * (2 if len(value) == 1 else 1)
    return int(values[0]), int(values[1])
