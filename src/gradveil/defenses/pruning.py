"""Pruning of the update."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor
from typing_extensions import override

from gradveil.defenses._base import Adversary, UpdateDefense
from gradveil.streams import Streams
from gradveil.types import Card, Gradients


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Pruning(UpdateDefense):
    """Set the entries of smallest magnitude to zero, in each tensor of the update.

    Args:
        fraction: share of the entries of a tensor that is dropped, rounded down to whole entries.
    """

    adversary: ClassVar[Adversary] = Adversary(
        attack="bayes-optimal",
        reason="the zeros show what was dropped, and who knows of the defense matches the surviving entries alone",
    )
    off: ClassVar[Mapping[str, object] | None] = {"fraction": 0.0}
    card: ClassVar[Card] = Card(
        fails="against who knows of it and matches the surviving entries; what is dropped is lost, not sent later",
        costs="one selection per tensor; accuracy at fractions near 1",
        suggested="fraction=0.9 and above",
        interacts="noise after it fills the zeros and hides which entries survived; top-k and ppdl do the same "
        "with a residual, and one of the three is enough",
    )

    fraction: float = 0.9

    def __post_init__(self) -> None:
        if not 0 <= self.fraction < 1:
            raise ValueError(f"fraction must be at least 0 and below 1, got {self.fraction}")

    @override
    def apply(self, update: Gradients, *, streams: Streams) -> Gradients:
        return tuple(self._prune(tensor) for tensor in update)

    @override
    def visible(self, update: Gradients) -> Gradients:
        return tuple(tensor != 0 for tensor in update)

    def _prune(self, tensor: Tensor) -> Tensor:
        flat = tensor.flatten(1)
        dropped = int(flat.shape[1] * self.fraction)
        if dropped == 0:
            return tensor
        smallest = flat.abs().topk(dropped, dim=1, largest=False, sorted=False).indices
        return flat.scatter(1, smallest, torch.zeros_like(flat)).view_as(tensor)
