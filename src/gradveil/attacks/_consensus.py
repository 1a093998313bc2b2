"""Agreement between the restarts of one victim: registration by translation, and the mean of what was registered."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor
from typing_extensions import override

from gradveil.engine import Optimizer, spread

_COUNT = "langevin.count"


def consensus(images: Tensor, restarts: int, *, reach: int) -> Tensor:
    """Register every restart to the mean of its victim's, and average again.

    Args:
        images: (V * restarts, B, C, H, W), restarts of a victim side by side, their samples in one order.
        restarts: of each victim.
        reach: pixels by which an image may be moved in each direction.

    Returns:
        Of the same shape, each victim's mean at all its restarts.

    Example:
        >>> picture = torch.eye(4)[None, None]
        >>> moved = torch.stack([picture, picture.roll(1, -1), picture])
        >>> bool((consensus(moved, 3, reach=1)[0] == picture).all())
        True
    """
    grouped = images.unflatten(0, (-1, restarts))
    mean = grouped.mean(1, keepdim=True).expand_as(grouped)
    registered = register(grouped.flatten(0, 2), mean.flatten(0, 2), reach=reach).view_as(grouped)
    return registered.mean(1, keepdim=True).expand_as(grouped).flatten(0, 1)


def register(images: Tensor, reference: Tensor, *, reach: int) -> Tensor:
    """Move images (N, C, H, W) cyclically, each by what correlates it most with its reference."""
    height, width = images.shape[-2:]
    product = torch.fft.rfft2(reference) * torch.fft.rfft2(images).conj()
    correlation = torch.fft.irfft2(product, s=(height, width)).sum(1)
    rows, columns = (torch.arange(size, device=images.device) for size in (height, width))
    far = (torch.minimum(rows, height - rows) > reach)[:, None] | (torch.minimum(columns, width - columns) > reach)
    best = correlation.masked_fill(far, -torch.inf).flatten(1).argmax(1)
    down, right = (best // width)[:, None], (best % width)[:, None]
    moved_rows = (rows - down) % height
    moved_columns = (columns - right) % width
    number = torch.arange(len(images), device=images.device)[:, None, None]
    return images.movedim(1, -1)[number, moved_rows[:, :, None], moved_columns[:, None, :]].movedim(-1, 1)


@final
@dataclass(frozen=True, slots=True, eq=False)
class Langevin(Optimizer):
    """Another optimizer, whose first variable's gradient is noisy.

    Args:
        inner: the other optimizer.
        noise: (V, n, *shape), drawn ahead and used in turn.
        std: of the noise, in step sizes.
    """

    inner: Optimizer
    noise: Tensor
    std: float

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
        turn = state[_COUNT].add_(1) % self.noise.shape[1]
        factor = self.std * self.inner.lr * (spread(rate, values[0]) if rate.ndim else rate)
        noisy = gradients[0] + factor * self.noise.index_select(1, turn[None]).squeeze(1)
        return self.inner.move(values, [noisy, *gradients[1:]], losses, state=state, rate=rate, active=active)
