"""What a number of ours is: its value, how sure it is, and the records behind it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np

from gradveil.metrics import bootstrap_interval

Interval: TypeAlias = tuple[float, float]
_NORMAL = 1.96


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """A number that was read off records.

    Args:
        value: in the unit of the table.
        interval: that covers its mean by 95 %, over victims, policies, images or clients; None where a single number
            is all there is, such as the accuracy of one network or the largest of some scores.
        records: files that it was read off.
        seed: of their runs.
        device: that they ran on.
        date: of the last of them, UTC, ISO format.
    """

    value: float
    interval: Interval | None
    records: tuple[Path, ...]
    seed: int
    device: str
    date: str

    def scaled(self, factor: float) -> "Measurement":
        """Return it in another unit, such as percent."""
        low_high = None if self.interval is None else (self.interval[0] * factor, self.interval[1] * factor)
        return Measurement(
            value=self.value * factor,
            interval=low_high,
            records=self.records,
            seed=self.seed,
            device=self.device,
            date=self.date,
        )


def of_share(share: float, count: int) -> Interval:
    """Return the interval of Wilson for a share of independent cases, such as an accuracy on test images.

    Args:
        share: from 0 to 1.
        count: of cases.

    Example:
        >>> [round(bound, 3) for bound in of_share(0.5, 100)]
        [0.404, 0.596]
    """
    square = _NORMAL**2 / count
    middle = (share + square / 2) / (1 + square)
    half = _NORMAL / (1 + square) * math.sqrt(share * (1 - share) / count + square / (4 * count))
    return max(middle - half, 0.0), min(middle + half, 1.0)


def of_shares(cases: Sequence[float]) -> Interval:
    """Return the interval of Wilson for cases that are 0 or 1; resampling would be sure of cases that are all alike.

    Example:
        >>> [round(bound, 3) for bound in of_shares([0.0] * 10)]
        [0.0, 0.278]
    """
    return of_share(float(np.mean(cases)), len(cases))


def of_mean(values: Sequence[float]) -> Interval | None:
    """Return the bootstrap interval of a mean; None for fewer than two values.

    Example:
        >>> of_mean([1.0]) is None, of_mean([2.0, 2.0])
        (True, (2.0, 2.0))
    """
    return bootstrap_interval(values) if len(values) > 1 else None


def of_correlation(pairs: Sequence[tuple[float, float]], *, seed: int = 0, resamples: int = 2000) -> Interval | None:
    """Return the bootstrap interval of a Pearson correlation over pairs; None for fewer than four.

    Example:
        >>> low, high = of_correlation([(0, 0), (1, 1.1), (2, 1.9), (3, 3.2), (4, 3.9)])
        >>> low > 0.9
        True
    """
    values = np.asarray(pairs, dtype=np.float64)
    if len(values) < 4:
        return None
    drawn = np.random.default_rng(seed).integers(len(values), size=(resamples, len(values)))
    centred = values[drawn] - values[drawn].mean(1, keepdims=True)
    x, y = centred[..., 0], centred[..., 1]
    norm = np.sqrt((x**2).sum(1) * (y**2).sum(1))
    found = (x * y).sum(1)[norm > 0] / norm[norm > 0]
    low, high = np.quantile(found, [0.025, 0.975])
    return float(low), float(high)


def pearson(pairs: Sequence[tuple[float, float]]) -> float:
    """Return the Pearson correlation of pairs.

    Example:
        >>> round(pearson([(0, 1), (1, 3), (2, 5)]), 6)
        1.0
    """
    values = np.asarray(pairs, dtype=np.float64)
    return float(np.corrcoef(values[:, 0], values[:, 1])[0, 1])
