"""Summaries, intervals and the reach of chance, over plain arrays of scores."""

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Floats: TypeAlias = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Scores of many samples in a few numbers.

    Args:
        count: how many.
        mean: of all.
        std: sample standard deviation, 0 for a single score.
        median: of all.
        worst: the score of the sample that lost most, the closest reconstruction.
        best: the score of the sample that lost least.
    """

    count: int
    mean: float
    std: float
    median: float
    worst: float
    best: float


def summary(scores: npt.ArrayLike, *, higher_is_better: bool = True) -> Summary:
    """Sum up scores of any shape.

    Args:
        scores: of the samples.
        higher_is_better: the metric's direction; it decides which end is the victim's worst case.

    Example:
        >>> summary([10.0, 12.0, 20.0]).worst
        20.0
    """
    values = np.asarray(scores, dtype=np.float64).ravel()
    if not values.size:
        raise ValueError("a summary needs at least 1 score, got none")
    low, high = float(values.min()), float(values.max())
    return Summary(
        count=values.size,
        mean=float(values.mean()),
        std=float(values.std(ddof=1)) if values.size > 1 else 0.0,
        median=float(np.median(values)),
        worst=high if higher_is_better else low,
        best=low if higher_is_better else high,
    )


def bootstrap_interval(
    values: npt.ArrayLike, *, level: float = 0.95, seed: int = 0, resamples: int = 2000
) -> tuple[float, float]:
    """Return the percentile bootstrap interval of the mean; the same seed gives the same numbers.

    Args:
        values: independent scores, one per victim (samples of one update are not independent: average them first).
        level: probability that the interval is meant to cover.
        seed: of the resampling.
        resamples: how many times the scores are drawn again.

    Example:
        >>> low, high = bootstrap_interval([10.0, 11.0, 12.0, 13.0])
        >>> 10 <= low < 11.5 < high <= 13
        True
    """
    scores = np.asarray(values, dtype=np.float64).ravel()
    if not scores.size or not 0 < level < 1:
        raise ValueError(f"an interval needs scores and a level between 0 and 1, got {scores.size} scores, {level}")
    drawn = np.random.default_rng(seed).integers(scores.size, size=(resamples, scores.size))
    low, high = np.quantile(scores[drawn].mean(1), [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def reach_of_chance(null: npt.ArrayLike, *, count: int, level: float = 0.99) -> float:
    """Return what the largest of `count` null values stays below with probability `level`.

    The largest of `count` stays below a value that each exceeds with probability 1 - level^(1/count). Of m null values,
    the k-th largest is exceeded by a further one with probability k / (m + 1), whatever their distribution, which
    settles it from about 100·count null values on. A bootstrap of the maximum is no way around that number: with as
    many null values as victims, the victims exceed it every second time. With fewer, the tail is extrapolated: the
    excesses over the upper tenth (at least 8 values) are taken as exponential of unknown scale, so that a further one
    has a Pareto tail, which is wide when the values are few and infinite when there is one.

    Args:
        null: values of guesses that know nothing, larger meaning closer.
        count: number of victims that the largest is taken of.
        level: probability.

    Example:
        >>> round(reach_of_chance(np.arange(10_000) / 10_000, count=1), 2)
        0.99
    """
    values = np.sort(np.asarray(null, dtype=np.float64).ravel())
    rarity = 1 - level ** (1 / count)
    place = int((values.size + 1) * rarity)
    return float(values[-place]) if place else _predicted_tail(values, rarity)


def _predicted_tail(values: Floats, rarity: float) -> float:
    """Return the value that the next draw exceeds with probability `rarity`; sorted values."""
    above = min(values.size - 1, max(8, values.size // 10))
    if above < 1:
        return float("inf")
    start = values[-above - 1]
    scale = (values[-above:] - start).mean()
    return float(start + above * scale * ((above / values.size / rarity) ** (1 / above) - 1))
