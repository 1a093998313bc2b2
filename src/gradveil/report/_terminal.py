"""The results table for the terminal."""

from collections.abc import Mapping, Sequence
from typing import TypeVar

from rich import box
from rich.table import Table
from rich.text import Text

from gradveil.report._nulls import NullLine, null_lines
from gradveil.report._verdicts import VERDICT_VIEWS, preferred
from gradveil.report._words import cells, labels, number, outcome, percent, spaced
from gradveil.report.tables import MetricRow, Row

_T = TypeVar("_T")


def to_rich(rows: Sequence[Row]) -> Table:
    """Draw a table that fits 100 columns: one line per cell, then the null lines, then why cells failed.

    It shows PSNR and SSIM, where `worst` is the closest reconstruction, and the share of private images found first
    among decoys. Further metrics and views are in `to_csv`.

    Example:
        >>> to_rich([]).row_count
        0
    """
    shared = _shared(rows)
    table = Table(box=box.SIMPLE_HEAD, padding=0, pad_edge=False, show_edge=False, caption_justify="left")
    if shared:
        table.title, table.title_justify = Text(shared, style="bold"), "left"
    table.add_column("", no_wrap=True)
    for heading in ("defense", "" if shared else "attack, model"):
        table.add_column(heading, overflow="fold", ratio=None if shared else 1)
    for heading in ("PSNR\nmean", "\nworst", "SSIM\nmean", "\nworst", "found\nfirst", "labels\nfound", "model\nacc."):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("verdict", width=9)

    for row in rows:
        table.add_row(*_cell(row, "" if shared else f"{_attack(row)}\n{row.model}, {row.state}"))
    table.add_section()
    for line in null_lines(rows):
        table.add_row(*_null(line, len(rows)), style="dim")
    table.caption = _caption(rows)
    return table


def _shared(rows: Sequence[Row]) -> str:
    """Return the attack and the network that all rows have in common; empty if they differ."""
    found = {f"{spaced(row.attack)} on {row.model}, {row.state}" for row in rows}
    return found.pop() if len(found) == 1 else ""


def _attack(row: Row) -> str:
    return f"{spaced(row.attack)}{' (adaptive)' if row.adaptive else ''}"


def _cell(row: Row, attack: str) -> list[Text | str]:
    found = preferred(row.identification, VERDICT_VIEWS)
    return [
        str(row.number),
        Text(spaced(row.defense)),
        Text(attack),
        *_scores(_find(row.metrics, "psnr"), decimals=1),
        *_scores(_find(row.metrics, "ssim"), decimals=2),
        percent(row.identification[found[0]].rate if found else None),
        labels(row),
        percent(row.accuracy),
        Text(outcome(row), style={"LEAKS": "bold red", "failed": "yellow"}.get(outcome(row), "")),
    ]


def _scores(metric: MetricRow | None, *, decimals: int) -> list[str]:
    values = (metric.summary.mean, metric.summary.worst) if metric else (None, None)
    return [number(value, decimals=decimals) for value in values]


def _null(line: NullLine, total: int) -> list[str]:
    psnr, ssim = _find(line.means, "psnr"), _find(line.means, "ssim")
    rates = [line.rates[view] for view in preferred(line.rates, VERDICT_VIEWS)]
    means = [number(psnr, decimals=1), "", number(ssim, decimals=2), ""]
    return [
        "",
        f"null: {line.name}",
        cells(line.cells, total),
        *means,
        percent(rates[0] if rates else None),
        "",
        "",
        "",
    ]


def _caption(rows: Sequence[Row]) -> Text | None:
    failed = [f"cell {row.number} failed: {row.error}" for row in rows if row.error]
    return Text("\n".join(failed), style="yellow") if failed else None


def _find(items: Mapping[str, _T], name: str) -> _T | None:
    """Find a metric by its plain name, whatever its settings."""
    return next((item for key, item in items.items() if key.partition(":")[0] == name), None)
