"""How alike the gradients of stacked samples are, parameter by parameter, without keeping the gradients.

Of every gradient only two numbers are wanted: its product with the gradient of a target, and its square. The fast path
makes them layer by layer, so the memory holds one layer's gradients at a time. Of a layer that saw few rows P it does
not even make those: with what it saw A (P, K) and deltas D (P, O), the product of two gradients D'A is the sum over
pairs of rows of (A1 A2') * (D1 D2'), at 2 P P (K + O) multiplications for square and product instead of P K O.
"""

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

from gradveil.engine._tapped import TappedGradients
from gradveil.engine.factors import Factored
from gradveil.engine.gradients import GradientFunction, Trial
from gradveil.engine.looped_fallback import patient_function
from gradveil.engine.matching import memory_order
from gradveil.engine.runtime import Precision
from gradveil.types import LossFn


class Products(NamedTuple):
    """Products of the gradients of M groups of J samples.

    Args:
        with_last: (T, M, J) with the gradient of the last sample of the group, for each of T parameters.
        squares: (T, M, J) with itself.
    """

    with_last: Tensor
    squares: Tensor


ProductFunction: TypeAlias = Callable[[Tensor, Tensor], Products]
"""Inputs (M, J, ...) and labels (M,), one for each group, to `Products`."""


def product_function(
    model: nn.Module, loss: LossFn, *, names: tuple[str, ...], precision: Precision, trial: Trial
) -> ProductFunction:
    """Make the function from groups of samples to the products of their gradients, for a model in eval mode.

    Args:
        model: eats (B, ...); it is not changed.
        loss: of the outputs and labels of one sample.
        names: parameters to differentiate by, in the order of the result.
        precision: bf16 runs the model under autocast.
        trial: a stack of batches of one on which the fast path is tried; the general path is taken where it fails.
    """
    gradients = patient_function(model, loss, names=names, precision=precision, trial=trial)
    if isinstance(gradients, TappedGradients):
        return lambda inputs, labels: tapped_products(gradients, names, inputs, labels)
    return lambda inputs, labels: products_of_gradients(gradients, inputs, labels)


def products_of_gradients(gradients: GradientFunction, inputs: Tensor, labels: Tensor) -> Products:
    """Make all gradients of a stack first; for models that the fast path does not take."""
    count = inputs.shape[1]
    evaluation = gradients(inputs.flatten(0, 1)[:, None], labels.repeat_interleave(count)[:, None])
    pairs = [_of_gradient(gradient, count) for gradient in evaluation.gradients]
    return Products(*(torch.stack(each) for each in zip(*pairs, strict=True)))


def tapped_products(gradients: TappedGradients, names: tuple[str, ...], inputs: Tensor, labels: Tensor) -> Products:
    """Reduce each layer's gradients before the next layer's are made."""
    (groups, count), dtype = inputs.shape[:2], inputs.dtype
    found = gradients.reduced(
        inputs.flatten(0, 1)[:, None],
        labels.repeat_interleave(count)[:, None],
        lambda gradient: _of_layer(gradient, count, dtype),
    )
    absent = Products(inputs.new_zeros(groups, count), inputs.new_zeros(groups, count))
    pairs = [found.get(name, absent) for name in names]
    return Products(*(torch.stack(each) for each in zip(*pairs, strict=True)))


def _of_layer(gradient: Tensor | Factored, count: int, dtype: torch.dtype) -> Products:
    if isinstance(gradient, Factored):
        return _of_pairs(gradient, count, dtype)
    return _of_gradient(gradient.to(dtype), count)


def _of_gradient(gradient: Tensor, count: int) -> Products:
    """Compare the gradients (M * J, *shape) of one parameter."""
    # In the order of memory, which is not always that of the axes, nothing has to be copied.
    flat = gradient.permute(0, *memory_order(gradient)).reshape(-1, count, gradient[0].numel())
    return Products(torch.einsum("mjd,md->mj", flat, flat[:, -1]), torch.linalg.vector_norm(flat, dim=2).square())


def _of_pairs(gradient: Factored, count: int, dtype: torch.dtype) -> Products:
    """Compare M * J weight gradients by pairs of rows."""
    pairs = [_row_pairs(rows, count, dtype) for rows in (gradient.seen, gradient.deltas)]
    with_last, own = (torch.einsum("vpq,vpq->v", *both) for both in zip(*pairs, strict=True))
    return Products(with_last.view(-1, count), own.view(-1, count))


def _row_pairs(rows: Tensor, count: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Multiply (V, P, K) with the last of its group, and with itself: twice (V, P, P)."""
    grouped = rows.unflatten(0, (-1, count))
    with_last = torch.bmm(grouped.flatten(1, 2), grouped[:, -1].mT)
    return with_last.view(len(rows), *rows.shape[1:2] * 2).to(dtype), torch.bmm(rows, rows.mT).to(dtype)
