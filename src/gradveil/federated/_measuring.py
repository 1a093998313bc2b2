"""How well a federation's model does on clean images."""

from dataclasses import dataclass

import torch
from torch import nn

from gradveil.data import Split
from gradveil.types import LossFn

_AT_ONCE = 250


@dataclass(frozen=True, slots=True)
class Measured:
    """Mean loss, and accuracy from 0 to 1; both None without a split to measure on."""

    loss: float | None = None
    accuracy: float | None = None


def measure(model: nn.Module, test: Split | None, loss: LossFn) -> Measured:
    """Measure a model in eval mode on a clean split."""
    if test is None:
        return Measured()
    like = next(model.parameters())
    total, hits = 0.0, 0
    with torch.no_grad():
        for rows in torch.arange(len(test)).split(_AT_ONCE):
            labels = test.labels[rows].to(like.device)
            outputs = model(test.inputs(rows, dtype=like.dtype).to(like.device))
            total += float(loss(outputs, labels)) * len(rows)
            hits += int((outputs.argmax(1) == labels).sum())
    return Measured(total / len(test), hits / len(test))
