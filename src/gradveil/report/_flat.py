"""The results table as flat values, for programs and spreadsheets."""

import csv
import io
import math
from collections.abc import Sequence
from typing import TypeAlias

from gradveil.report.tables import Row

Flat: TypeAlias = dict[str, str | float | bool | None]
"""Statistics of one cell by name, such as `psnr_mean` or `identified_correlation_rate`; shares are fractions of 1, and
those of the samples that a client marked begin with `marked_`."""


def facts(rows: Sequence[Row]) -> list[Flat]:
    """Flatten each row to values that JSON can write; what is missing or not finite is None.

    Example:
        >>> facts([])
        []
    """
    return [{name: _finite(value) for name, value in _fields(row).items()} for row in rows]


def to_csv(rows: Sequence[Row]) -> str:
    """Write one line per cell with every statistic at full precision.

    Texts that a spreadsheet would take for a formula get a leading apostrophe.

    Example:
        >>> to_csv([]).strip()
        ''
    """
    lines = facts(rows)
    header = list(dict.fromkeys(name for line in lines for name in line))
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, header, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: _plain(value) for name, value in line.items()} for line in lines)
    return buffer.getvalue()


def _fields(row: Row) -> Flat:
    alone = _score_fields(row.marked) if row.marked else {}
    return {**_cell_fields(row), **_score_fields(row), **{f"marked_{name}": value for name, value in alone.items()}}


def _score_fields(row: Row) -> Flat:
    return {
        **{key: value for name in row.metrics for key, value in _metric_fields(row, name).items()},
        **{key: value for view in row.identification for key, value in _identification_fields(row, view).items()},
    }


def _cell_fields(row: Row) -> Flat:
    return {
        "cell": row.number,
        "title": row.title,
        "defenses": row.defense,
        "attack": row.attack,
        "adaptive": row.adaptive,
        "model": row.model,
        "state": row.state,
        "victims": row.victims,
        "batch_size": row.batch_size,
        "leaks": row.verdict.leaks if row.verdict else None,
        "verdict": row.verdict.sentence if row.verdict else None,
        "error": row.error or None,
        "model_accuracy": row.accuracy,
        "labels_granted": row.labels_granted,
        "label_accuracy": row.label_accuracy,
        "stopped_short": row.short,
        **{f"{colour}_layers": _count(row, colour) for colour in ("green", "white", "red")},
    }


def _count(row: Row, colour: str) -> int:
    return sum(found == colour for found in row.regions.values())


def _metric_fields(row: Row, name: str) -> Flat:
    metric = row.metrics[name]
    values: Flat = {
        "mean": metric.summary.mean,
        "low": metric.interval[0],
        "high": metric.interval[1],
        "median": metric.summary.median,
        "std": metric.summary.std,
        "worst": metric.summary.worst,
        "best": metric.summary.best,
        "protected_mean": metric.protected,
        "success": metric.success,
        "threshold": metric.threshold,
        "above_threshold": metric.above,
        **{f"null_{null}": mean for null, mean in metric.nulls.items()},
    }
    return {f"{name}_{key}": value for key, value in values.items()}


def _identification_fields(row: Row, view: str) -> Flat:
    found = row.identification[view]
    values: Flat = {
        "rate": found.rate,
        "decoys": found.decoys,
        **{f"null_{null}": rate for null, rate in found.nulls.items()},
    }
    return {f"identified_{view}_{key}": value for key, value in values.items()}


def _finite(value: str | float | bool | None) -> str | float | bool | None:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _plain(value: str | float | bool | None) -> str | float:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f"'{value}" if value.startswith(("=", "+", "-", "@")) else value
    return "" if value is None else value
