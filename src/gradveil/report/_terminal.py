"""The results table for the terminal."""

from collections.abc import Mapping, Sequence
from typing import TypeVar

from rich import box
from rich.table import Table
from rich.text import Text

from gradveil.report._nulls import NullLine, null_lines
from gradveil.report._verdicts import VERDICT_VIEWS, preferred
from gradveil.report._words import cells, labels, number, outcome, percent, short, spaced
from gradveil.report.tables import MetricRow, Row

_T = TypeVar("_T")


def to_rich(rows: Sequence[Row]) -> Table:
    """Draw a table that fits 100 columns: one line per cell, then the null lines, then why cells failed.

    It shows PSNR and SSIM, mean ± standard deviation, where `worst` is the closest reconstruction, and the share of
    private images found first among decoys. `statistics` shows the rest.

    Example:
        >>> to_rich([]).row_count
        0
    """
    networks, attacks = {f"{row.model}, {row.state}" for row in rows}, {row.attack for row in rows}
    shared = len(networks) == 1
    table = Table(box=box.SIMPLE_HEAD, padding=0, pad_edge=False, show_edge=False, caption_justify="left")
    if shared:
        who = f"{spaced(min(attacks))} on " if len(attacks) == 1 else ""
        table.title, table.title_justify = Text(f"{who}{min(networks)}", style="bold"), "left"
    table.add_column("", no_wrap=True)
    alone = shared and len(attacks) == 1
    for heading in ("defense", "" if alone else "attack" if shared else "attack, model"):
        table.add_column(heading, overflow="fold", ratio=None if alone else 1)
    for heading in ("PSNR\nmean", "\nworst", "SSIM\nmean", "\nworst", "found\nfirst", "labels\nfound", "model\nacc."):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("verdict", width=9)

    for row in rows:
        attack = _informed(row) if alone else _attack(row)
        table.add_row(*_cell(row, attack if shared else f"{attack}\n{row.model}, {row.state}"))
        if row.marked:
            table.add_row("", "marked samples alone", *_cell(row.marked, "")[2:])
    table.add_section()
    for line in null_lines(rows):
        table.add_row(*_null(line, len(rows)), style="dim")
    table.caption = _caption(rows)
    return table


def _attack(row: Row) -> str:
    return f"{spaced(row.attack)} {_informed(row)}".strip()


def _informed(row: Row) -> str:
    return "(informed)" if row.adaptive else ""


def _cell(row: Row, attack: str) -> list[Text | str]:
    found = preferred(row.identification, VERDICT_VIEWS)
    return [
        str(row.number),
        Text(spaced(row.defense)),
        Text(attack),
        *_scores(find_metric(row.metrics, "psnr"), decimals=1),
        *_scores(find_metric(row.metrics, "ssim"), decimals=2),
        percent(row.identification[found[0]].rate if found else None),
        labels(row),
        percent(row.accuracy),
        Text(outcome(row), style={"LEAKS": "bold red", "failed": "yellow"}.get(outcome(row), "")),
    ]


def _scores(metric: MetricRow | None, *, decimals: int) -> list[str]:
    if metric is None:
        return [number(None)] * 2
    mean, spread, worst = (
        number(value, decimals=decimals) for value in (metric.summary.mean, metric.summary.std, metric.summary.worst)
    )
    return [f"{mean}\n±{spread}", worst]


def _null(line: NullLine, total: int) -> list[str]:
    psnr, ssim = find_metric(line.means, "psnr"), find_metric(line.means, "ssim")
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
    said = [f"cell {row.number} failed: {row.error}" for row in rows if row.error]
    said += [f"cell {row.number}: {short(row)}" for row in rows if row.mostly_short and outcome(row) == "no leak shown"]
    return Text("\n".join(said), style="yellow") if said else None


def find_metric(items: Mapping[str, _T], name: str) -> _T | None:
    """Find a metric by its plain name, whatever its settings.

    Example:
        >>> find_metric({"ssim:window=7": 0.5}, "ssim")
        0.5
    """
    return next((item for key, item in items.items() if key.partition(":")[0] == name), None)
