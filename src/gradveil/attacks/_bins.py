"""The imprint block: a layer whose rows sort images into bins of linear statistics."""

from math import pi, sqrt
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn

from gradveil.streams import Streams

Statistic: TypeAlias = Literal["mean", "fourier", "random"]
Source: TypeAlias = Literal["auxiliary", "gaussian", "laplace"]

_CHECKS = 32


class ImprintBlock(nn.Module):
    """Flatten, compare statistics with thresholds, and go on with an image of how far it exceeds them.

    Row i of a view of the first layer is active for the images whose statistic lies above threshold i, and gets the
    same gradient from each of them as every other active row: the difference of two neighbouring rows holds the images
    between their thresholds.

    Args:
        directions: (G, d) weights of the statistics, one for every view.
        thresholds: (G, k) of each, in ascending order.
        gain: of the first layer; the second undoes it, so that gradients of the first grow with 1 / gain.
        checks: (m, d) weights of rectified features that the rows see too, but ignore; their gradients tell one image
            from a mean of several; None for none.
    """

    def __init__(self, directions: Tensor, thresholds: Tensor, *, gain: float, checks: Tensor | None = None) -> None:
        super().__init__()
        size, count, extra = directions.shape[1], thresholds.numel(), 0 if checks is None else len(checks)
        self.views, self.gain = len(directions), gain
        self.bins = nn.Linear(size + extra, count, device=directions.device, dtype=directions.dtype)
        self.back = nn.Linear(count, size, device=directions.device, dtype=directions.dtype)
        self.checks = None if checks is None else nn.Linear(size, extra, bias=False).to(checks)
        with torch.no_grad():
            self.bins.weight.zero_()[:, :size] = gain * directions.repeat_interleave(thresholds.shape[1], 0)
            self.bins.bias.copy_(-gain * thresholds.flatten())
            self.back.weight.fill_(1 / (gain * count))
            self.back.bias.zero_()
            if self.checks is not None and checks is not None:
                self.checks.weight.copy_(checks)

    def forward(self, images: Tensor) -> Tensor:
        """Map (B, ...) to an image of the same shape, constant over its pixels."""
        seen = images.flatten(1)
        if self.checks is not None:
            seen = torch.cat([seen, torch.relu(self.checks(seen))], 1)
        above: Tensor = self.back(torch.relu(self.bins(seen)))
        return above.view_as(images)


def direction(statistic: Statistic, size: int, *, mode: int, streams: Streams) -> Tensor:
    """Return the (d,) weights of a statistic of the flattened image.

    Args:
        statistic: `mean` of all entries, `fourier` (one cosine of frequency `mode` over the flattened image) or
            `random` (standardized normal weights over √d).
        size: d.
        mode: frequency.
        streams: of the server.
    """
    if statistic == "mean":
        return torch.full((size,), 1 / size)
    if statistic == "fourier":
        places = torch.arange(size) + 0.5
        return torch.cos(pi / size * places * mode) * (4 / size) * max(mode, 0.33)
    drawn = streams.normal("statistic", (size,))[0]
    return (drawn - drawn.mean()) / drawn.std() / sqrt(size)


def directions(statistic: Statistic, size: int, *, mode: int, views: int, streams: Streams) -> Tensor:
    """Return the (G, d) weights of as many statistics as there are views, those after the first random."""
    first = direction(statistic, size, mode=mode, streams=streams)
    others = [streams.fork(f"view-{number}") for number in range(1, views)]
    return torch.stack([first, *(direction("random", size, mode=mode, streams=own) for own in others)])


def rectified_checks(size: int, *, streams: Streams) -> Tensor:
    """Return the (m, d) weights of features by which a server tells one image from a mean of several."""
    drawn = [direction("random", size, mode=0, streams=streams.fork(f"check-{number}")) for number in range(_CHECKS)]
    return torch.stack(drawn)


def quantiles(source: Source, count: int, *, center: float, scale: float) -> Tensor:
    """Return (count - 1,) quantiles 1/count, 2/count, ... of a normal or Laplace distribution of unit variance.

    Example:
        >>> quantiles("laplace", 4, center=0.0, scale=1.0)
        tensor([-0.4901,  0.0000,  0.4901])
    """
    levels = torch.arange(1, count, dtype=torch.double) / count
    away = (levels - 0.5).abs()
    unit: Tensor = -(levels - 0.5).sign() * torch.log1p(-2 * away) / sqrt(2)
    if source == "gaussian":
        unit = torch.special.ndtri(levels)
    return (center + scale * unit).float()


def thresholds(inner: Tensor, values: Tensor | None = None) -> Tensor:
    """Put a threshold below everything before the (K - 1,) quantiles, so that the first row sees all images."""
    lowest = inner[0] if values is None else torch.minimum(inner[0], values.min())
    width = (inner[-1] - inner[0]).abs() + 1
    return torch.cat([(lowest - 10 * width)[None], inner])


def own_bins(weight: Tensor, bias: Tensor, *, views: int = 1) -> tuple[Tensor, Tensor]:
    """Turn the cumulative rows (V, K, d) and (V, K) of each view into what lies in each bin alone.

    Bin i holds what is above threshold i but not above i + 1; the last one what is above its threshold. The published
    read-out subtracts the row before instead, which keeps the sum of all images as the first and loses the last bin.

    Example:
        >>> own_bins(torch.tensor([[[6.0], [5.0], [3.0]]]), torch.tensor([[3.0, 2.0, 1.0]]))[0].flatten()
        tensor([1., 2., 3.])
    """
    weight, bias = weight.clone(), bias.clone()
    for tensor in (weight.unflatten(1, (views, -1)), bias.unflatten(1, (views, -1))):
        tensor[:, :, :-1] -= tensor[:, :, 1:].clone()
    return weight, bias
