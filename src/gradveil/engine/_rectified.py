"""An eval-mode batch norm and the rectifier after it as one operation, differentiable twice.

Taken apart, the two and their derivatives pass some forty times over the pixels, and on a GPU that is most of an
attack's step. Together they take a pass for the result, one for both kinds of gradient, and one for the derivative
of those.
"""

import importlib
import importlib.util
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from gradveil.engine import _rectified_passes


@dataclass(slots=True, eq=False)
class Norm:
    """What an eval-mode batch norm does to (N, C, H, W), and the sums that its parameters' gradients are made of.

    Args:
        inputs: (N, C, H, W).
        scale: (C,).
        shift: (C,).
        victims: V, of N / V samples each.
        sums: (V, C) twice, of the gradient at the norm's output and of that times the inputs; filled on the way back.
        wanted: whether the way back should fill them; it does so once, before anything is differentiated twice.
    """

    inputs: Tensor
    scale: Tensor
    shift: Tensor
    victims: int
    sums: tuple[Tensor, ...] = field(default=())
    wanted: bool = True


def fuses(tensor: Tensor) -> bool:
    """Tell whether one operation is faster than two: where passes over memory are what takes the time."""
    return tensor.is_cuda


def rectified(norm: Norm) -> Tensor:
    """Return max(0, inputs * scale + shift)."""
    output: Tensor = _Rectified.apply(norm.inputs, norm)  # type: ignore[no-untyped-call]
    return output


def take_sums(norm: Norm, deltas: Tensor) -> tuple[Tensor, ...]:
    """Take the two sums for the gradient (N, C, H, W) at the rectifier's output out of the norm."""
    # They are not left there: sums that know how they were made, by way of this norm, would never be freed.
    sums, norm.sums = norm.sums, ()
    # Where nothing before the norm is differentiated by, the way back ended after it.
    return sums or tuple(_Back.apply(deltas, norm.inputs, norm)[1:])  # type: ignore[no-untyped-call]


class _Rectified(torch.autograd.Function):
    """The operation; its derivative is `_Back`."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, norm: Norm) -> Tensor:
        ctx.save_for_backward(inputs)
        ctx.norm = norm
        output: Tensor = _passes(inputs).forward(inputs, norm.scale, norm.shift)
        return output

    @staticmethod
    def backward(ctx: Any, deltas: Tensor) -> tuple[Tensor, None]:
        (inputs,), norm = ctx.saved_tensors, ctx.norm
        if not norm.wanted and not torch.is_grad_enabled():
            return _passes(inputs).backward(deltas, inputs, norm.scale, norm.shift), None
        by_inputs, *sums = _Back.apply(deltas, inputs, norm)  # type: ignore[no-untyped-call]
        norm.sums = tuple(sums) if norm.wanted else ()
        return by_inputs, None


class _Back(torch.autograd.Function):
    """From the gradient at the output to that at the inputs, and to the two sums."""

    @staticmethod
    def forward(ctx: Any, deltas: Tensor, inputs: Tensor, norm: Norm) -> tuple[Tensor, Tensor, Tensor]:
        ctx.save_for_backward(deltas, inputs)
        ctx.norm = norm
        passes = _passes(inputs)
        by_inputs, plain, product = passes.backward_with_sums(deltas, inputs, norm.scale, norm.shift, norm.victims)
        return by_inputs, plain, product

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, cotangent: Tensor, of_sum: Tensor, of_product: Tensor) -> tuple[Tensor, Tensor, None]:
        (deltas, inputs), norm = ctx.saved_tensors, ctx.norm
        of_sums = of_sum.contiguous(), of_product.contiguous()
        return *_passes(inputs).double_backward(cotangent, *of_sums, deltas, inputs, norm.scale, norm.shift), None


def _passes(tensor: Tensor) -> ModuleType:
    """Choose how the pixels are passed over: once where Triton is at hand, operation by operation elsewhere."""
    if tensor.is_cuda and importlib.util.find_spec("triton"):
        return importlib.import_module("gradveil.engine._triton_rectified")
    return _rectified_passes
