"""From a record to the arrays that `metrics.judge` decides on."""

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from gradveil import metrics
from gradveil.metrics import CONSTANT_NULLS, Comparison, Verdict, judge
from gradveil.record import Identification, Numbers, Record, Scores

VERDICT_METRICS = ("psnr", "ssim")
VERDICT_VIEWS = ("correlation", "pixels")
"""What the verdict rests on, fixed before any number is seen: both metrics, and the first view that a record has."""


def verdict(record: Record) -> Verdict | None:
    """Judge one finished cell; None if nothing was scored that could decide.

    A null that covers only some of the victims is no fair sample of chance for the closest of all victims, so it is
    left out of the comparisons by metric; identification takes any number of draws.
    """
    comparisons = [_comparison(record.scores[name]) for name in preferred(record.scores, VERDICT_METRICS)]
    views = preferred(record.identification, VERDICT_VIEWS)
    ranked = record.identification[views[0]] if views else None
    usable = [comparison for comparison in comparisons if comparison is not None]
    if ranked is None and not usable:
        return None
    return judge(None if ranked is None else _ranks(ranked), usable)


def success(scores: Scores) -> float | None:
    """Return the share of samples closer than every constant null of the same sample; None without such nulls.

    Example:
        >>> success(Scores(private=[[14.0], [9.0]], protected=[], nulls={"grey": [[12.0], [12.0]]}))
        0.5
    """
    private = np.asarray(scores.private, dtype=np.float64)
    sign = 1 if scores.higher_is_better else -1
    paired = [_paired(scores.nulls[name], private.shape) for name in CONSTANT_NULLS if name in scores.nulls]
    constants = [sign * null for null in paired if null is not None]
    return float(np.mean(sign * private > np.max(constants, axis=0))) if constants else None


def preferred(names: Iterable[str], order: Sequence[str]) -> list[str]:
    """Pick the names that a verdict rests on, in the order of preference, or the first if none is preferred.

    A name may carry settings, as in `ssim:window=7`.

    Example:
        >>> preferred(["lpips", "ssim:window=7", "psnr"], ("psnr", "ssim"))
        ['psnr', 'ssim:window=7']
    """
    names = list(names)
    return [name for wish in order for name in names if name.partition(":")[0] == wish] or names[:1]


def _ranks(found: Identification) -> metrics.Identification:
    return metrics.Identification(
        ranks=np.asarray(found.ranks, dtype=np.float64),
        null_ranks={name: np.asarray(ranks, dtype=np.float64) for name, ranks in found.nulls.items() if ranks},
        decoys=found.decoys,
    )


def _comparison(scores: Scores) -> Comparison | None:
    """Pair scores with their nulls; None unless a constant and a varying null cover every sample."""
    private = np.asarray(scores.private, dtype=np.float64)
    paired = {name: _paired(values, private.shape) for name, values in scores.nulls.items()}
    nulls = {name: null for name, null in paired.items() if null is not None}
    constants = set(CONSTANT_NULLS) & set(nulls)
    if not constants or constants == set(nulls):
        return None
    return Comparison(
        metric=scores.title,
        unit=scores.unit,
        higher_is_better=scores.higher_is_better,
        scores=private,
        null_scores=nulls,
    )


def _paired(null: Numbers, shape: tuple[int, ...]) -> npt.NDArray[np.float64] | None:
    """Bring the draws of a null to (draws, V, B), one after the other; None if they do not cover every victim."""
    values = np.asarray(null, dtype=np.float64)
    if not values.size or values.shape[1:] != shape[1:] or len(values) % shape[0]:
        return None
    return values.reshape(-1, *shape)
