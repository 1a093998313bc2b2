"""The verdict: does the update leak, as far as this attack shows?

A score alone says little: a reconstruction may score below a grey square and still be plainly recognizable, because the
attack distorts contrast, or above it and show nothing, because the image is even. So the verdict never rests on bare
PSNR. The update leaks if one of these exceeds the 99th percentile of what guesses reach that know nothing of the image:

- **identification**: how many private images are the nearest of all candidates to their own reconstruction. Chance is
  binomial with rate 1 / (decoys + 1), or with the rate at which null guesses are ranked first, if that is higher;
- **worst case**, per metric: the largest margin of any sample over the best constant picture of that same sample.
  Chance is the largest margin of as many null guesses (`reach_of_chance`), and never below 0: who does not beat a
  constant shows nothing.

Each test alone fires for an attack that knows nothing in about 1 % of audits, so k tests do in at most about k %.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from gradveil.metrics._statistics import Floats, reach_of_chance

CONSTANT_NULLS = ("grey", "own-mean", "mean-image")
"""Null guesses that a reconstruction must beat; every other null says what chance gives."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identification:
    """Ranks of the private images among decoys, in one view.

    Args:
        ranks: of the attack, any shape, every sample counting alike; 0 is identified.
        null_ranks: of null guesses by name, any number of draws each. `own-mean` is passed over: it knows the image.
        decoys: number of decoys.
    """

    ranks: Floats
    null_ranks: Mapping[str, Floats]
    decoys: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Scores of one metric for attack and nulls, paired by sample.

    Args:
        metric: its title.
        unit: `dB` or empty.
        higher_is_better: its direction.
        scores: of the attack, any shape S.
        null_scores: by name; constants are (*S), varying nulls (*S) or, with several draws, (draws, *S).
    """

    metric: str
    unit: str = ""
    higher_is_better: bool = True
    scores: Floats
    null_scores: Mapping[str, Floats]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorstCase:
    """The closest reconstruction by one metric.

    Args:
        metric: its title.
        unit: of the two numbers.
        margin: largest margin over the best constant of the same sample, positive meaning closer.
        chance: what chance gives at most; infinite if too few null guesses were scored.
    """

    metric: str
    unit: str
    margin: float
    chance: float

    @property
    def exceeds(self) -> bool:
        """Whether chance does not explain it."""
        return self.margin > self.chance


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What an audit may claim.

    Args:
        leaks: whether a test exceeded chance.
        sentence: the verdict in words.
        reasons: the tests that exceeded chance, or all tests if none did, in words.
        identified: private images that are the nearest candidate to their reconstruction.
        total: private images.
        candidates: decoys and the private image; 0 without identification.
        threshold: how many chance identifies at most.
        worst_cases: one per metric.
    """

    leaks: bool
    sentence: str
    reasons: tuple[str, ...]
    identified: int
    total: int
    candidates: int
    threshold: int
    worst_cases: tuple[WorstCase, ...]


def judge(
    identification: Identification | None, comparisons: Sequence[Comparison] = (), *, level: float = 0.99
) -> Verdict:
    """Decide whether the update leaks.

    The view and the metrics are to be chosen before the numbers are seen: each one more is one more chance to err.

    Args:
        identification: ranks in one view, None if no decoys were at hand.
        comparisons: one per metric, such as SSIM and PSNR.
        level: percentile of chance that has to be exceeded.

    Example:
        >>> ranks = np.array([0.0] * 8 + [25.0])
        >>> print(judge(Identification(ranks=ranks, null_ranks={"other-of-class": ranks + 9}, decoys=100)).sentence)
        LEAKS: 8 of 9 private images are the nearest of 101 candidates to their reconstruction; chance gives at most 1.
    """
    if identification is None and not comparisons:
        raise ValueError("a verdict needs an identification or at least 1 comparison, got neither")
    total = (identification.ranks if identification else comparisons[0].scores).size
    identified, threshold = _identified(identification, level) if identification else (0, 0)
    candidates = identification.decoys + 1 if identification else 0
    worst_cases = tuple(worst_case(comparison, level=level) for comparison in comparisons)

    said = [(identified > threshold, _say_identified(identified, total, candidates, threshold))] if candidates else []
    said += [(case.exceeds, _say_worst_case(case, total)) for case in worst_cases]
    leaks = any(fired for fired, _ in said)
    reasons = tuple(words for fired, words in said if fired or not leaks)
    return Verdict(
        leaks=leaks,
        sentence=f"LEAKS: {reasons[0]}." if leaks else f"no leak shown by this attack: {'; '.join(reasons)}.",
        reasons=reasons,
        identified=identified,
        total=total,
        candidates=candidates,
        threshold=threshold,
        worst_cases=worst_cases,
    )


def worst_case(comparison: Comparison, *, level: float = 0.99) -> WorstCase:
    """Measure the closest reconstruction against constants and chance.

    Example:
        >>> nulls = {"grey": np.full(4, 12.0), "other-of-class": np.linspace(6, 9, 400).reshape(100, 4)}
        >>> case = worst_case(Comparison(metric="PSNR", scores=np.array([9.0, 8.0, 19.5, 10.0]), null_scores=nulls))
        >>> case.margin, case.exceeds
        (7.5, True)
    """
    sign = 1 if comparison.higher_is_better else -1
    signed = {name: sign * np.asarray(scores, dtype=np.float64) for name, scores in comparison.null_scores.items()}
    constants = [signed[name] for name in CONSTANT_NULLS if name in signed]
    varying = {name: scores for name, scores in signed.items() if name not in CONSTANT_NULLS}
    if not constants or not varying:
        came = ", ".join(signed) or "nothing"
        raise ValueError(f"{comparison.metric} needs scores of a constant and of a varying null guess, got {came}")

    best_constant = np.max(constants, axis=0)
    margins = np.concatenate([np.ravel(scores - best_constant) for scores in varying.values()])
    return WorstCase(
        metric=comparison.metric,
        unit=comparison.unit,
        margin=float((sign * comparison.scores - best_constant).max()),
        chance=max(0.0, reach_of_chance(margins, count=comparison.scores.size, level=level)),
    )


def _identified(identification: Identification, level: float) -> tuple[int, int]:
    """Return how many were identified, and how many chance identifies at most."""
    null_ranks = [ranks for name, ranks in identification.null_ranks.items() if name != "own-mean"]
    rate = max([1 / (identification.decoys + 1), *(float(np.mean(ranks == 0)) for ranks in null_ranks)])
    chance = int(stats.binom.ppf(level, identification.ranks.size, rate))
    return int(np.sum(identification.ranks == 0)), chance


def _say_identified(identified: int, total: int, candidates: int, threshold: int) -> str:
    images = f"{identified} of {total} private {'image' if total == 1 else 'images'}"
    verb = "is" if identified == 1 else "are"
    nearest = f"the nearest of {candidates:,} candidates to {'its' if identified == 1 else 'their'} reconstruction"
    return f"{images} {verb} {nearest}; chance gives at most {threshold}"


def _say_worst_case(case: WorstCase, total: int) -> str:
    if np.isinf(case.chance):
        return f"{case.metric} cannot decide, because too few null guesses were scored to know what chance gives"
    unit = f" {case.unit}" if case.unit else ""
    side = "above" if case.margin >= 0 else "below"
    best = f"the best of {total} reconstructions is {abs(case.margin):.2f}{unit} {side} the best constant picture"
    return f"{best} in {case.metric}; chance gives at most {case.chance:.2f}{unit}"
