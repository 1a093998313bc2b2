"""Two memory-bound kernels of the GPU path: gathering patches, and adding them back where they came from.

With library calls each of them is one pass per offset of the kernel; here it is one pass in all.
"""

import triton
import triton.language as tl
from torch import Tensor

from gradveil.engine.geometry import Geometry

_BLOCK = 1024


@triton.jit
def _gather(
    inputs, patches, total, height, width, out_height, out_width,
    C: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr,
    PH: tl.constexpr, PW: tl.constexpr, DH: tl.constexpr, DW: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Fill patches (N, out_height, out_width, KH, KW, C) from inputs (N, height, width, C)."""
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    channel, rest = place % C, place // C
    j, i, pixel = rest % KW, (rest // KW) % KH, rest // (KW * KH)
    x, y, n = pixel % out_width, (pixel // out_width) % out_height, pixel // (out_width * out_height)
    row, column = y * SH - PH + i * DH, x * SW - PW + j * DW
    inside = (row >= 0) & (row < height) & (column >= 0) & (column < width) & (place < total)
    value = tl.load(inputs + ((n * height + row) * width + column) * C + channel, mask=inside, other=0.0)
    tl.store(patches + place, value, mask=place < total)


@triton.jit
def _scatter(
    patches, inputs, total, height, width, out_height, out_width,
    C: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr,
    PH: tl.constexpr, PW: tl.constexpr, DH: tl.constexpr, DW: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Add up, for each of inputs (N, height, width, C), the patches that hold it."""
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    channel, pixel = place % C, place // C
    column, row, n = pixel % width, (pixel // width) % height, pixel // (width * height)
    kind = tl.float64 if inputs.dtype.element_ty == tl.float64 else tl.float32
    result = tl.zeros((BLOCK,), dtype=kind)
    for i in tl.static_range(KH):
        for j in tl.static_range(KW):
            down, right = row + PH - i * DH, column + PW - j * DW
            y, x = down // SH, right // SW
            inside = (down >= 0) & (right >= 0) & (down % SH == 0) & (right % SW == 0)
            inside = inside & (y < out_height) & (x < out_width) & (place < total)
            source = (((n * out_height + y) * out_width + x) * KH * KW + i * KW + j) * C + channel
            result += tl.load(patches + source, mask=inside, other=0.0).to(kind)
    tl.store(inputs + place, result.to(inputs.dtype.element_ty), mask=place < total)


def gather(inputs: Tensor, geometry: Geometry) -> Tensor:
    """Lay out patches: (V, B, H, W, C) to (V, B, H', W', kernel * kernel, C)."""
    victims, batch, height, width, channels = inputs.shape
    out_height, out_width = geometry.output_size(height, width)
    offsets = geometry.kernel[0] * geometry.kernel[1]
    patches = inputs.new_empty(victims, batch, out_height, out_width, offsets, channels)
    _launch(_gather, inputs.contiguous(), patches, patches.numel(), (height, width), channels, geometry)
    return patches


def scatter(patches: Tensor, geometry: Geometry, *, height: int, width: int) -> Tensor:
    """Add patches up: (V, B, H', W', kernel * kernel, C) to (V, B, H, W, C)."""
    inputs = patches.new_empty(*patches.shape[:2], height, width, patches.shape[-1])
    _launch(_scatter, patches.contiguous(), inputs, inputs.numel(), (height, width), patches.shape[-1], geometry)
    return inputs


def _launch(
    kernel: triton.JITFunction,
    source: Tensor,
    result: Tensor,
    total: int,
    size: tuple[int, int],
    channels: int,
    geometry: Geometry,
) -> None:
    settings = (*geometry.kernel, *geometry.stride, *geometry.padding, *geometry.dilation)
    output = geometry.output_size(*size)
    kernel[(triton.cdiv(total, _BLOCK),)](source, result, total, *size, *output, channels, *settings, _BLOCK)
