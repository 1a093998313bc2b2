"""Privacy against accuracy: the privacy-preserving characteristic (PPC) curve and its average (CAP)."""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gradveil.metrics._statistics import Floats


@dataclass(frozen=True, slots=True, order=True)
class Point:
    """One setting of a defense on a PPC curve.

    Args:
        accuracy: of the protected model, in [0, 1].
        distance: between reconstruction and truth, larger meaning more private.
    """

    accuracy: float
    distance: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Resamples:
    """A curve as it might have come out with other seeds and victims.

    Args:
        accuracies: (R, M) mean accuracy at each of M strengths, once per resample.
        distances: (R, M) mean distance.
    """

    accuracies: Floats
    distances: Floats

    def caps(self) -> Floats:
        """Return the (R,) calibrated averaged performances."""
        products: Floats = (self.accuracies * self.distances).mean(1)
        return products


def ppc(accuracies: npt.ArrayLike, distances: npt.ArrayLike) -> tuple[Point, ...]:
    """Return the PPC curve of a defense over its settings, by increasing accuracy (Fan et al. 2020, Sec. 2.1).

    Example:
        >>> [point.distance for point in ppc([0.9, 0.5], [0.2, 1.0])]
        [1.0, 0.2]
    """
    pairs = zip(*_paired(accuracies, distances), strict=True)
    return tuple(sorted(Point(float(accuracy), float(distance)) for accuracy, distance in pairs))


def cap(accuracies: npt.ArrayLike, distances: npt.ArrayLike) -> float:
    """Return the calibrated averaged performance, the mean of accuracy times distance over settings (Eq. 1).

    Higher is better. The distance is the paper's: rMSE for reconstruction (unbounded, so one wild setting can rule the
    mean), the share of wrong labels for membership, 1 minus the success rate for tracing.

    Example:
        >>> round(cap([0.9, 0.5], [0.2, 1.0]), 2)
        0.34
    """
    accuracy, distance = _paired(accuracies, distances)
    return float((accuracy * distance).mean())


def ppc_position(ratio: float) -> float:
    """Return where a ratio ‖B‖ / ‖E‖ lies on the axis of a PPC figure, log10(ratio + 1) (Fig. 5).

    Example:
        >>> ppc_position(0.0), ppc_position(99.0), ppc_position(math.inf)
        (0.0, 2.0, inf)
    """
    return math.log10(ratio + 1) if math.isfinite(ratio) else math.inf


def resample_curve(
    accuracies: npt.ArrayLike, distances: npt.ArrayLike, *, seed: int = 0, resamples: int = 2000
) -> Resamples:
    """Draw seeds with replacement, and within each drawn seed its victims, as every strength saw them.

    Accuracies vary with the seed alone, distances with both. One seed leaves out what training anew would change.

    Args:
        accuracies: (S, M), of the network that each of S seeds trained at each of M strengths.
        distances: (S, M, V), of victims that are others for every seed and the same ones at every strength.
        seed: of the resampling; the same one gives the same numbers.
        resamples: R, how many times.

    Example:
        >>> resample_curve([[0.5, 1.0]], [[[1.0, 3.0], [0.0, 0.0]]], resamples=9).accuracies[0].tolist()
        [0.5, 1.0]
    """
    accuracy, distance = np.asarray(accuracies, dtype=np.float64), np.asarray(distances, dtype=np.float64)
    if accuracy.ndim != 2 or distance.shape[:2] != accuracy.shape or distance.ndim != 3 or not distance.size:
        came = f"{accuracy.shape} and {distance.shape}"
        raise ValueError(f"a curve needs accuracies (S, M) and distances (S, M, V), got {came}")
    generator, (seeds, strengths, victims) = np.random.default_rng(seed), distance.shape
    drawn = generator.integers(seeds, size=(resamples, seeds))
    means = np.zeros((resamples, strengths))
    for slot in drawn.T:
        for one in range(seeds):
            chosen = slot == one
            # How often each victim is drawn, when as many as there are are drawn with replacement.
            counts = generator.multinomial(victims, np.full(victims, 1 / victims), size=int(chosen.sum()))
            means[chosen] += counts @ distance[one].T / (victims * seeds)
    return Resamples(accuracies=accuracy[drawn].mean(1), distances=means)


def cap_interval(
    accuracies: npt.ArrayLike, distances: npt.ArrayLike, *, level: float = 0.95, seed: int = 0, resamples: int = 2000
) -> tuple[float, float]:
    """Return the percentile bootstrap interval of the CAP over seeds and victims; see `resample_curve`.

    Example:
        >>> low, high = cap_interval([[0.9, 0.5]], [[[0.2, 0.2], [1.0, 1.0]]])
        >>> round(low, 6), round(high, 6)
        (0.34, 0.34)
    """
    caps = resample_curve(accuracies, distances, seed=seed, resamples=resamples).caps()
    low, high = np.quantile(caps, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def _paired(accuracies: npt.ArrayLike, distances: npt.ArrayLike) -> tuple[Floats, ...]:
    pair = tuple(np.asarray(values, dtype=np.float64).ravel() for values in (accuracies, distances))
    if pair[0].size != pair[1].size or not pair[0].size:
        raise ValueError(f"a curve needs one distance per accuracy, got {pair[1].size} for {pair[0].size}")
    return pair
