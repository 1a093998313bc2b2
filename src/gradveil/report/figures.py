"""Strip plots: every sample's score beside the lines that guesses reach which know nothing.

Drawn as small inline SVG in percent of the width, so that the type keeps its size on a phone; colours are those of the
page, and nothing is told by colour alone.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gradveil.record import Record, Scores
from gradveil.report._words import null_label, number, reading

TIER = 17
"""Height of a line of labels, in pixels."""

_LANE, _STEP, _BINS = 46, 5.0, 90


@dataclass(frozen=True, slots=True, kw_only=True)
class Dot:
    """One sample.

    Args:
        x: in percent of the width.
        y: in pixels from the middle of the lane.
        worst: whether it is the closest reconstruction.
        text: shown when pointed at.
    """

    x: float
    y: float
    worst: bool
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NullMark:
    """One null line.

    Args:
        x: in percent of the width.
        y: of its label, in pixels.
        anchor: of its label: start or end, so that it stays inside.
        text: the label.
    """

    x: float
    y: float
    anchor: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Strip:
    """The samples of one cell.

    Args:
        number: of the cell.
        dots: one per sample.
        mean: in percent of the width.
        marks: null lines; labels point inwards and the outermost is highest, so that lines do not cross labels.
        lane: y of the middle of the dots, in pixels.
        height: of the whole, in pixels, without the axis.
        text: all of it in words.
    """

    number: int
    dots: tuple[Dot, ...]
    mean: float
    marks: tuple[NullMark, ...]
    lane: float
    height: float
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """One metric over all cells, on one axis.

    Args:
        name: of the metric.
        title: with its unit.
        higher_is_better: whether closer reconstructions lie to the right.
        ticks: (percent of the width, label).
        strips: one per cell.
    """

    name: str
    title: str
    higher_is_better: bool
    ticks: tuple[tuple[float, str], ...]
    strips: tuple[Strip, ...]


@dataclass(frozen=True, slots=True)
class Axis:
    """A linear axis.

    Args:
        low: value at 0 % of the width.
        high: value at 100 %.
    """

    low: float
    high: float

    def place(self, value: float) -> float:
        """Return the place of a value, in percent.

        Example:
            >>> Axis(0.0, 4.0).place(1.0)
            25.0
        """
        return round(100 * (value - self.low) / (self.high - self.low), 3)

    def ticks(self, *, about: int = 5) -> tuple[tuple[float, str], ...]:
        """Choose round values.

        Example:
            >>> [label for _, label in Axis(3.0, 28.0).ticks()]
            ['5', '10', '15', '20', '25']
        """
        rough = (self.high - self.low) / about
        power = 10 ** math.floor(math.log10(rough))
        step = power * next(m for m in (1, 2, 2.5, 5, 10) if m * power >= rough * 0.999)
        first, last = math.ceil(self.low / step), math.floor(self.high / step)
        return tuple((self.place(k * step), f"{k * step:g}") for k in range(first, last + 1))


def plots(records: Sequence[Record]) -> list[Plot]:
    """Plot each metric over all finished cells.

    Args:
        records: in the order of their numbers, failed ones included.

    Example:
        >>> plots([])
        []
    """
    done = {number: record for number, record in enumerate(records, start=1) if record.status == "done"}
    names = dict.fromkeys(name for record in done.values() for name in record.scores)
    return [_plot(name, {n: r.scores[name] for n, r in done.items() if name in r.scores}) for name in names]


def _plot(name: str, scores: Mapping[int, Scores]) -> Plot:
    first = next(iter(scores.values()))
    axis = _axis(list(scores.values()))
    return Plot(
        name=name,
        title=f"{reading(first.title, name) if first.title else name}{f' in {first.unit}' if first.unit else ''}",
        higher_is_better=first.higher_is_better,
        ticks=axis.ticks(),
        strips=tuple(_strip(number, score, axis) for number, score in scores.items()),
    )


def _axis(scores: Sequence[Scores]) -> Axis:
    """Cover all finite scores and null means, with a margin."""
    means = [np.mean(values) for score in scores for values in score.nulls.values() if values]
    values = np.concatenate([*(np.ravel(score.private) for score in scores), means])
    values = values[np.isfinite(values)]
    low, high = (float(values.min()), float(values.max())) if values.size else (0.0, 1.0)
    margin = 0.04 * (high - low) or 0.5
    return Axis(low - margin, high + margin)


def _strip(cell: int, scores: Scores, axis: Axis) -> Strip:
    private = np.asarray(scores.private, dtype=np.float64)
    means = {name: float(np.mean(values)) for name, values in scores.nulls.items() if values}
    shown = sorted((mean, name) for name, mean in means.items() if math.isfinite(mean))
    outermost = sorted(shown, key=lambda null: -abs(axis.place(null[0]) - 50))
    marks = tuple(_mark(tier, mean, name, axis, scores.unit) for tier, (mean, name) in enumerate(outermost))
    lane = TIER * len(marks) + _LANE / 2
    mean = float(private.mean())
    nulls = "; ".join(f"{null_label(name)} {number(value, unit=scores.unit)}" for value, name in shown)
    return Strip(
        number=cell,
        dots=_dots(private, scores, axis),
        mean=axis.place(mean) if math.isfinite(mean) else -1.0,
        marks=marks,
        lane=lane,
        height=lane + _LANE / 2,
        text=f"{scores.title} of {private.size} samples, mean {number(mean, unit=scores.unit)}; null lines: {nulls}",
    )


def _mark(tier: int, mean: float, name: str, axis: Axis, unit: str) -> NullMark:
    x = axis.place(mean)
    return NullMark(
        x=x,
        y=TIER * (tier + 0.7),
        anchor="start" if x < 50 else "end",
        text=f"{null_label(name)} {number(mean, unit=unit)}",
    )


def _dots(private: npt.NDArray[np.float64], scores: Scores, axis: Axis) -> tuple[Dot, ...]:
    """Place one dot per sample; samples of nearly the same score are stacked around the middle."""
    finite = np.isfinite(private)
    if not finite.any():
        return ()
    closest = np.max(private[finite]) if scores.higher_is_better else np.min(private[finite])
    crowd: dict[int, int] = {}
    dots = []
    for victim, sample in np.argwhere(finite):
        value = float(private[victim, sample])
        x = axis.place(value)
        rank = crowd[round(x / 100 * _BINS)] = crowd.get(round(x / 100 * _BINS), -1) + 1
        text = f"victim {victim + 1}, sample {sample + 1}: {number(value, unit=scores.unit)} {scores.unit}".strip()
        dots.append(Dot(x=x, y=_offset(rank), worst=value == closest, text=text))
    return tuple(dots)


def _offset(rank: int) -> float:
    """Alternate around the middle: 0, -5, 5, -10, ..., and begin anew when the lane is full."""
    rank %= int((_LANE - 6) / _STEP)
    return _STEP * ((rank + 1) // 2) * (-1 if rank % 2 else 1)
