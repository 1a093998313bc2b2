"""Terms of a loss that travel beside the logits.

A model defense that adds a term to the loss lets its network carry the term in further columns of the outputs, and its
loss take them off again. Nothing is remembered between the two, so that networks of many clients can run at once. The
columns lie below all logits: the largest output is still the predicted class.
"""

import torch
from torch import Tensor


def carry(outputs: Tensor, terms: Tensor) -> Tensor:
    """Append terms (B, n), all at least 0, to outputs (B, K).

    Example:
        >>> carry(torch.tensor([[2.0, 5.0]]), torch.tensor([[7.0]]))
        tensor([[ 2.,  5., -6.]])
    """
    return torch.cat([outputs, _floor(outputs) - terms], 1)


def take_off(outputs: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Split outputs (B, K + n) into those without the last n columns, and the terms that these carry.

    Example:
        >>> take_off(torch.tensor([[2.0, 5.0, -6.0]]), 1)
        (tensor([[2., 5.]]), tensor([[7.]]))
    """
    logits, carried = outputs[:, :-count], outputs[:, -count:]
    return logits, _floor(logits) - carried


def _floor(outputs: Tensor) -> Tensor:
    return outputs.detach().amin(1, keepdim=True) - 1
