"""The passes of a batch norm with its rectifier, each as one kernel over pixels with channels last."""

import torch
import triton
import triton.language as tl
from torch import Tensor

_NUMBERS = 4096  # of a block
_WARPS = 8


@triton.jit
def _forward(inputs, scale, shift, output, rows, C: tl.constexpr, W: tl.constexpr, R: tl.constexpr):
    """Fill output (rows, C)."""
    row, channel = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R), tl.arange(0, W)
    place, inside = row[:, None] * C + channel[None, :], (row < rows)[:, None] & (channel < C)[None, :]
    s, t = tl.load(scale + channel, mask=channel < C), tl.load(shift + channel, mask=channel < C)
    x = tl.load(inputs + place, mask=inside, other=0.0).to(s.dtype)
    value = x * s[None, :] + t[None, :]
    tl.store(output + place, tl.where(value > 0, value, 0.0).to(output.dtype.element_ty), mask=inside)


@triton.jit
def _backward(
    deltas, inputs, scale, shift, by_inputs, sums, products, rows, blocks,
    C: tl.constexpr, W: tl.constexpr, R: tl.constexpr, SUMS: tl.constexpr,
):  # fmt: skip
    """Fill by_inputs (V, rows, C), and per block of rows the sums and products (V, blocks, C)."""
    block, victim = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    row, channel = block * R + tl.arange(0, R), tl.arange(0, W)
    inside = (row < rows)[:, None] & (channel < C)[None, :]
    place = (victim * rows + row)[:, None] * C + channel[None, :]
    s = tl.load(scale + channel, mask=channel < C, other=0.0)
    t = tl.load(shift + channel, mask=channel < C, other=0.0)
    x = tl.load(inputs + place, mask=inside, other=0.0).to(s.dtype)
    d = tl.load(deltas + place, mask=inside, other=0.0).to(s.dtype)
    d = tl.where(x * s[None, :] + t[None, :] > 0, d, 0.0)
    tl.store(by_inputs + place, (d * s[None, :]).to(by_inputs.dtype.element_ty), mask=inside)
    if SUMS:
        result = (victim * blocks + block) * C + channel
        tl.store(sums + result, tl.sum(d, 0), mask=channel < C)
        tl.store(products + result, tl.sum(d * x, 0), mask=channel < C)


@triton.jit
def _double_backward(
    cotangent, of_sum, of_product, deltas, inputs, scale, shift, by_deltas, by_inputs, rows,
    C: tl.constexpr, W: tl.constexpr, R: tl.constexpr,
):  # fmt: skip
    """Fill by_deltas and by_inputs (V, rows, C)."""
    block, victim = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    row, channel = block * R + tl.arange(0, R), tl.arange(0, W)
    inside = (row < rows)[:, None] & (channel < C)[None, :]
    place = (victim * rows + row)[:, None] * C + channel[None, :]
    s = tl.load(scale + channel, mask=channel < C, other=0.0)
    t = tl.load(shift + channel, mask=channel < C, other=0.0)
    a = tl.load(of_sum + victim * C + channel, mask=channel < C, other=0.0)
    b = tl.load(of_product + victim * C + channel, mask=channel < C, other=0.0)
    x = tl.load(inputs + place, mask=inside, other=0.0).to(s.dtype)
    d = tl.load(deltas + place, mask=inside, other=0.0).to(s.dtype)
    c = tl.load(cotangent + place, mask=inside, other=0.0).to(s.dtype)
    passes = x * s[None, :] + t[None, :] > 0
    first = tl.where(passes, c * s[None, :] + a[None, :] + b[None, :] * x, 0.0)
    tl.store(by_deltas + place, first.to(by_deltas.dtype.element_ty), mask=inside)
    tl.store(by_inputs + place, tl.where(passes, d * b[None, :], 0.0).to(by_inputs.dtype.element_ty), mask=inside)


def forward(inputs: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """Return max(0, inputs * scale + shift) for (N, C, H, W)."""
    inputs = _last(inputs)
    output, (width, block) = torch.empty_like(inputs), _block(inputs)
    rows = inputs[:, 0].numel()
    _forward[(triton.cdiv(rows, block),)](
        inputs, scale, shift, output, rows, inputs.shape[1], width, block, num_warps=_WARPS
    )
    return output


def backward(deltas: Tensor, inputs: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """Return the gradient at the inputs."""
    deltas, inputs = _last(deltas), _last(inputs)
    result, (width, block), rows = torch.empty_like(inputs), _block(inputs), inputs[:, 0].numel()
    grid = (triton.cdiv(rows, block), 1)
    _backward[grid](
        deltas, inputs, scale, shift, result, result, result, rows, grid[0], inputs.shape[1], width, block, False,
        num_warps=_WARPS,
    )  # fmt: skip
    return result


def backward_with_sums(
    deltas: Tensor, inputs: Tensor, scale: Tensor, shift: Tensor, victims: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradient at the inputs, and the (V, C) sums of that at the norm's output, plain and times inputs."""
    deltas, inputs = _last(deltas), _last(inputs)
    result, (width, block), rows = torch.empty_like(inputs), _block(inputs), inputs[:, 0].numel() // victims
    blocks = triton.cdiv(rows, block)
    sums, products = (scale.new_empty(victims, blocks, inputs.shape[1]) for _ in range(2))
    _backward[(blocks, victims)](
        deltas, inputs, scale, shift, result, sums, products, rows, blocks, inputs.shape[1], width, block, True,
        num_warps=_WARPS,
    )  # fmt: skip
    return result, sums.sum(1), products.sum(1)


def double_backward(
    cotangent: Tensor,
    of_sum: Tensor,
    of_product: Tensor,
    deltas: Tensor,
    inputs: Tensor,
    scale: Tensor,
    shift: Tensor,
) -> tuple[Tensor, Tensor]:
    """Return the derivatives of `backward_with_sums` by deltas and inputs, for (N, C, H, W) and twice (V, C)."""
    cotangent, deltas, inputs = _last(cotangent), _last(deltas), _last(inputs)
    by_deltas, by_inputs = torch.empty_like(deltas), torch.empty_like(inputs)
    (width, block), victims = _block(inputs), len(of_sum)
    rows = inputs[:, 0].numel() // victims
    _double_backward[(triton.cdiv(rows, block), victims)](
        cotangent, of_sum, of_product, deltas, inputs, scale, shift, by_deltas, by_inputs, rows, inputs.shape[1],
        width, block, num_warps=_WARPS,
    )  # fmt: skip
    return by_deltas, by_inputs


def _last(tensor: Tensor) -> Tensor:
    return tensor.contiguous(memory_format=torch.channels_last)


def _block(inputs: Tensor) -> tuple[int, int]:
    """Return the channels of a block, a power of two, and its rows."""
    width = triton.next_power_of_2(inputs.shape[1])
    return width, max(1, _NUMBERS // width)
