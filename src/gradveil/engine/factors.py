"""Weight gradients as products of two matrices that need not be multiplied out.

Of a layer that saw few rows, an image's gradient is a large matrix of low rank. An objective that asks only for its
square and for its product with a target gets both from the factors, and the large matrix never passes through memory.
"""

from dataclasses import dataclass, replace
from typing import Any, Self, TypeAlias

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

_ROWS = 4
"""Factors pay if their squares, (rows, rows), hold this many times fewer numbers than the gradient."""


@dataclass(frozen=True, slots=True, eq=False)
class Factored:
    """The gradient of a weight, as the sum over rows of one vector times another.

    Args:
        deltas: (V, R, O), gradients at what left the layer.
        seen: (V, R, K), what entered it.
        kernel: sides of a convolution's kernel, whose K are (*kernel, channels); empty for a linear layer.
    """

    deltas: Tensor
    seen: Tensor
    kernel: tuple[int, ...] = ()

    def formed(self) -> Tensor:
        """Multiply out: (V, O, K), or (V, O, channels, *kernel) laid out with channels last."""
        gradient = torch.bmm(self.deltas.transpose(1, 2), self.seen)
        if not self.kernel:
            return gradient
        channels_last: Tensor = gradient.unflatten(2, (*self.kernel, -1))
        return channels_last.permute(0, 1, 4, 2, 3)

    def row_squares(self) -> Tensor:
        """Return (V, O), the sums of the squared entries of each row."""
        pairs = torch.bmm(self.seen, self.seen.transpose(1, 2))
        return (torch.bmm(pairs, self.deltas) * self.deltas).sum(1)

    def row_products(self, target: Tensor) -> Tensor:
        """Return (V, O), the products of each row with that of a target of the shape of the formed gradient."""
        matrix = target.permute(0, 1, 3, 4, 2).flatten(2) if self.kernel else target
        return (torch.bmm(self.seen, matrix.transpose(1, 2)) * self.deltas).sum(1)

    def to(self, dtype: torch.dtype) -> Self:
        """Change the number format: products of factors of few bits would lose what is left of them."""
        return replace(self, deltas=self.deltas.to(dtype), seen=self.seen.to(dtype))

    def times(self, factors: Tensor) -> Self:
        """Multiply each victim's gradient by one of (V,) numbers."""
        return replace(self, deltas=self.deltas * factors[:, None, None])


Factors: TypeAlias = tuple[Tensor | Factored, ...]
"""One gradient per parameter, some of them not multiplied out."""


def pays(rows: int, outputs: int, columns: int) -> bool:
    """Tell whether a gradient of (outputs, columns) from so many rows is better left as factors.

    Example:
        >>> pays(8 * 8, 256, 9 * 256), pays(32 * 32, 64, 9 * 64)
        (True, False)
    """
    return _ROWS * rows**2 <= outputs * columns


def formed(gradient: Tensor | Factored) -> Tensor:
    """Return a gradient as one tensor."""
    return gradient.formed() if isinstance(gradient, Factored) else gradient


def square_and_product(trial: Tensor | Factored, target: Tensor) -> tuple[Tensor, Tensor]:
    """Return a trial gradient's (V,) square, and its (V,) product with a target.

    Example:
        >>> trial = Factored(torch.tensor([[[1.0, 2.0]]]), torch.tensor([[[3.0]]]))
        >>> trial.formed()
        tensor([[[3.],
                 [6.]]])
        >>> square_and_product(trial, torch.ones(1, 2, 1))
        (tensor([45.]), tensor([9.]))
    """
    if isinstance(trial, Factored):
        return trial.row_squares().sum(1), trial.row_products(target).sum(1)
    squares, products = _products(trial, target, axis=1)
    return squares, products


def row_squares_and_products(trial: Tensor | Factored, target: Tensor) -> tuple[Tensor, Tensor]:
    """Return (V, O) squares and products of the rows, the gradients of one output each; a bias is a single row.

    Example:
        >>> trial = torch.tensor([[[1.0, 2.0], [3.0, 4.0]]])
        >>> row_squares_and_products(trial, torch.ones(1, 2, 2))
        (tensor([[ 5., 25.]]), tensor([[3., 7.]]))
    """
    if isinstance(trial, Factored):
        return trial.row_squares(), trial.row_products(target)
    if trial.ndim < 3:
        return _products(trial[:, None], target[:, None], axis=2)
    return _products(trial, target, axis=2)


def _products(trial: Tensor, target: Tensor, *, axis: int) -> tuple[Tensor, Tensor]:
    squares, products = _Products.apply(trial, target, axis)  # type: ignore[no-untyped-call]
    return squares, products


class _Products(torch.autograd.Function):
    """Squares of a trial tensor and its products with the target, summed from an axis on.

    They are differentiated in one pass over both.
    """

    @staticmethod
    def forward(ctx: Any, trial: Tensor, target: Tensor, axis: int) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(trial, target)
        axes = tuple(range(axis, trial.ndim))
        return torch.linalg.vector_norm(trial, dim=axes).square(), (trial * target).sum(axes)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_squares: Tensor, of_products: Tensor) -> tuple[Tensor, None, None]:
        trial, target = ctx.saved_tensors
        shape = (*of_squares.shape, *[1] * (trial.ndim - of_squares.ndim))
        by_trial = torch.addcmul(trial * (2 * of_squares).view(shape), target, of_products.view(shape))
        return by_trial, None, None
