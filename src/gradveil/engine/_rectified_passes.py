"""The passes of a batch norm with its rectifier, operation by operation; any device."""

import torch
from torch import Tensor


def forward(inputs: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """Return max(0, inputs * scale + shift) for (N, C, H, W)."""
    return _normed(inputs, scale, shift).clamp_min(0).to(inputs.dtype)


def backward(deltas: Tensor, inputs: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """Return the gradient at the inputs."""
    return (_passed(deltas, inputs, scale, shift) * _wide(scale)).to(inputs.dtype)


def backward_with_sums(
    deltas: Tensor, inputs: Tensor, scale: Tensor, shift: Tensor, victims: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradient at the inputs, and the (V, C) sums of that at the norm's output, plain and times inputs."""
    passed = _passed(deltas, inputs, scale, shift)
    plain, times_inputs = (
        tensor.unflatten(0, (victims, -1)).sum((1, 3, 4)) for tensor in (passed, passed * inputs.to(passed.dtype))
    )
    return (passed * _wide(scale)).to(inputs.dtype), plain, times_inputs


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
    samples = len(inputs) // len(of_sum)
    plain, product = (of.repeat_interleave(samples, 0)[:, :, None, None] for of in (of_sum, of_product))
    by_deltas = _passed(cotangent * _wide(scale) + plain + product * inputs, inputs, scale, shift)
    by_inputs = _passed(deltas, inputs, scale, shift) * product
    return by_deltas.to(deltas.dtype), by_inputs.to(inputs.dtype)


def _normed(inputs: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    return torch.addcmul(_wide(shift), inputs, _wide(scale))


def _passed(deltas: Tensor, inputs: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """Keep gradients where the norm's output is above 0, in the number format of the scale."""
    return torch.where(_normed(inputs, scale, shift) > 0, deltas.to(scale.dtype), 0)


def _wide(channels: Tensor) -> Tensor:
    return channels[:, None, None]
