"""Weight gradients of convolutions, one per victim."""

import importlib
import importlib.util
import math
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from gradveil.engine import _patches
from gradveil.engine.factors import Factored
from gradveil.engine.geometry import Geometry


def weight_gradient(inputs: Tensor, deltas: Tensor, geometry: Geometry) -> Tensor:
    """Make each victim's weight gradient from what entered a convolution and the gradient at what left it.

    Args:
        inputs: (V, B, C, H, W).
        deltas: (V, B, O, H', W').
        geometry: of the convolution.

    Returns:
        (V, O, C / groups, kernel, kernel), differentiable in both arguments.
    """
    if inputs.is_cuda and geometry.groups == 1:
        return weight_gradient_by_patches(inputs, deltas, geometry)
    return weight_gradient_by_groups(inputs, deltas, geometry)


def weight_gradient_by_groups(inputs: Tensor, deltas: Tensor, geometry: Geometry) -> Tensor:
    """Let the victims be the groups of one library convolution: the fastest on a CPU."""
    victims, channels = len(inputs), deltas.shape[2]
    shape = (victims * channels, inputs.shape[2] // geometry.groups, *geometry.kernel)
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


def weight_gradient_by_patches(inputs: Tensor, deltas: Tensor, geometry: Geometry) -> Tensor:
    """Multiply the patches with the deltas, one matrix product per victim: the fastest on a GPU.

    Pixels are rows and channels are columns, as the channels-last format has them in memory; so no matrix is copied to
    be transposed. The result is a permuted view, laid out as (V, O, kernel, kernel, C).
    """
    return factor_gradient(inputs, deltas, geometry).formed()


def factor_gradient(inputs: Tensor, deltas: Tensor, geometry: Geometry) -> Factored:
    """Return each victim's weight gradient as deltas and patches, for a convolution without groups."""
    patches: Tensor = _Patches.apply(inputs.permute(0, 1, 3, 4, 2), geometry)  # type: ignore[no-untyped-call]
    return Factored(deltas.permute(0, 1, 3, 4, 2).flatten(1, 3), patches, geometry.kernel)


def convolution(inputs: Tensor, weight: Tensor, geometry: Geometry) -> Tensor:
    """Convolve (N, C, H, W) with a constant kernel shared by all; differentiable in the inputs, as often as one likes.

    On a GPU every derivative is again one library convolution in the channels-last format.
    """
    if not inputs.is_cuda or weight.requires_grad:
        return F.conv2d(inputs, weight, None, geometry.stride, geometry.padding, geometry.dilation, geometry.groups)
    kernel = weight.contiguous(memory_format=torch.channels_last)
    result: Tensor = _Convolve.apply(inputs, kernel, geometry)  # type: ignore[no-untyped-call]
    return result


class _Convolve(torch.autograd.Function):
    """A convolution with a constant kernel; its derivative is `_Spread`."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, kernel: Tensor, geometry: Geometry) -> Tensor:
        ctx.save_for_backward(kernel)
        ctx.geometry, ctx.shape = geometry, inputs.shape
        last = inputs.contiguous(memory_format=torch.channels_last)
        return F.conv2d(last, kernel, None, geometry.stride, geometry.padding, geometry.dilation, geometry.groups)

    @staticmethod
    def backward(ctx: Any, deltas: Tensor) -> tuple[Tensor, None, None]:
        (kernel,) = ctx.saved_tensors
        return _Spread.apply(deltas, kernel, ctx.geometry, ctx.shape), None, None  # type: ignore[no-untyped-call]


class _Spread(torch.autograd.Function):
    """The transpose of `_Convolve`."""

    @staticmethod
    def forward(ctx: Any, deltas: Tensor, kernel: Tensor, geometry: Geometry, shape: torch.Size) -> Tensor:
        ctx.save_for_backward(kernel)
        ctx.geometry = geometry
        last = deltas.contiguous(memory_format=torch.channels_last)
        inputs = deltas.new_empty(1).expand(shape).to(memory_format=torch.channels_last)
        spread: Tensor = torch.ops.aten.convolution_backward(
            last,
            inputs,
            kernel,
            None,
            geometry.stride,
            geometry.padding,
            geometry.dilation,
            False,
            [0, 0],
            geometry.groups,
            [True, False, False],
        )[0]
        return spread

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor, None, None, None]:
        (kernel,) = ctx.saved_tensors
        return _Convolve.apply(cotangent, kernel, ctx.geometry), None, None, None  # type: ignore[no-untyped-call]


class _Patches(torch.autograd.Function):
    """What each output pixel sees: (V, B, H, W, C) to (V, B * H' * W', kernel * kernel * C)."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, geometry: Geometry) -> Tensor:
        ctx.size, ctx.geometry = inputs.shape[2:4], geometry
        patches: Tensor = _kernels(inputs).gather(inputs, geometry)
        return patches.view(len(inputs), -1, patches.shape[-2] * patches.shape[-1])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor, None]:
        geometry: Geometry = ctx.geometry
        height, width = ctx.size
        pixels, offsets = math.prod(geometry.output_size(height, width)), math.prod(geometry.kernel)
        victims, rows, columns = cotangent.shape
        shape = (victims, rows // pixels, *geometry.output_size(height, width), offsets, columns // offsets)
        return _kernels(cotangent).scatter(cotangent.view(shape), geometry, height=height, width=width), None


def _kernels(tensor: Tensor) -> ModuleType:
    """Choose how patches are moved: in one pass where Triton is at hand, in one per offset elsewhere."""
    if tensor.is_cuda and importlib.util.find_spec("triton"):
        return importlib.import_module("gradveil.engine._triton")
    return _patches
