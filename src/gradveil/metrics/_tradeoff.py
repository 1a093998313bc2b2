"""Privacy against accuracy: the privacy-preserving characteristic (PPC) curve and its average (CAP)."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True, order=True)
class Point:
    """One setting of a defense on a PPC curve.

    Args:
        accuracy: of the protected model, in [0, 1].
        distance: between reconstruction and truth, larger meaning more private.
    """

    accuracy: float
    distance: float


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


def _paired(accuracies: npt.ArrayLike, distances: npt.ArrayLike) -> tuple[npt.NDArray[np.float64], ...]:
    pair = tuple(np.asarray(values, dtype=np.float64).ravel() for values in (accuracies, distances))
    if pair[0].size != pair[1].size or not pair[0].size:
        raise ValueError(f"a curve needs one distance per accuracy, got {pair[1].size} for {pair[0].size}")
    return pair
