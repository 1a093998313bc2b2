"""A median filter between the steps of an optimizer."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
import torch.nn.functional as F
from torch import Tensor
from typing_extensions import override

from gradveil.engine import Optimizer

_COUNT = "filtered.count"


def median_filter(images: Tensor) -> Tensor:
    """Replace every pixel of (..., C, H, W) by the median of its 3×3 neighbours, with mirrored borders.

    Example:
        >>> median_filter(torch.eye(3)[None]).sum()
        tensor(2.)
    """
    flat = images.flatten(0, -3)[:, None]
    padded = F.pad(flat, (1, 1, 1, 1), mode="reflect")
    windows = padded.unfold(2, 3, 1).unfold(3, 3, 1).flatten(4)
    return windows.sort(-1).values[..., 4].view_as(images)


@final
@dataclass(frozen=True, slots=True)
class Filtered(Optimizer):
    """Another optimizer, which also filters its first variable every so many moves.

    Args:
        inner: the other optimizer.
        every: moves between two filterings.
    """

    inner: Optimizer
    every: int

    @override
    def iterations(self, steps: int) -> int:
        return self.inner.iterations(steps)

    @override
    def start(self, values: Sequence[Tensor]) -> dict[str, Tensor]:
        return {**self.inner.start(values), _COUNT: torch.zeros((), dtype=torch.long, device=values[0].device)}

    @override
    def move(
        self,
        values: Sequence[Tensor],
        gradients: Sequence[Tensor],
        losses: Tensor,
        *,
        state: dict[str, Tensor],
        rate: Tensor,
        active: Tensor,
    ) -> Tensor:
        converged = self.inner.move(values, gradients, losses, state=state, rate=rate, active=active)
        count = state[_COUNT].add_(1)
        # No branch on the count: a step that is replayed as a CUDA graph cannot take one.
        now = (count % self.every == 0) & active
        values[0].copy_(torch.where(now.view(-1, 1, 1, 1, 1), median_filter(values[0]), values[0]))
        return converged
