"""Null lines: what guesses that know nothing of the private images score, listed once for all cells that share them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gradveil.report._words import NULL_LABELS
from gradveil.report.tables import Row


@dataclass(frozen=True, slots=True, kw_only=True)
class NullLine:
    """One null guess with the same numbers in one or more cells.

    Args:
        name: of the null.
        cells: numbers of the cells.
        means: by metric.
        rates: share identified, by view.
    """

    name: str
    cells: tuple[int, ...]
    means: Mapping[str, float]
    rates: Mapping[str, float]


def null_lines(rows: Sequence[Row]) -> list[NullLine]:
    """List the null lines of all cells; the well-known ones first, in the order in which people meet them.

    Example:
        >>> null_lines([])
        []
    """
    lines: list[NullLine] = []
    for name in _names(rows):
        alike: dict[tuple[object, ...], list[Row]] = {}
        for row in rows:
            values = (*_means(row, name).items(), *_rates(row, name).items())
            if values:
                alike.setdefault(values, []).append(row)
        for group in alike.values():
            numbers = tuple(row.number for row in group)
            lines.append(NullLine(name=name, cells=numbers, means=_means(group[0], name), rates=_rates(group[0], name)))
    return lines


def _names(rows: Sequence[Row]) -> list[str]:
    scored = [metric.nulls for row in rows for metric in row.metrics.values()]
    ranked = [found.nulls for row in rows for found in row.identification.values()]
    found = dict.fromkeys(name for nulls in (*scored, *ranked) for name in nulls)
    return [*(name for name in NULL_LABELS if name in found), *(name for name in found if name not in NULL_LABELS)]


def _means(row: Row, null: str) -> dict[str, float]:
    return {name: metric.nulls[null] for name, metric in row.metrics.items() if null in metric.nulls}


def _rates(row: Row, null: str) -> dict[str, float]:
    return {view: found.nulls[null] for view, found in row.identification.items() if null in found.nulls}
