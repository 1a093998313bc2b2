"""Every statistic of the verdict's metrics for the terminal, so that a mean is not read alone."""

from collections.abc import Mapping, Sequence

from rich import box
from rich.table import Table
from rich.text import Text

from gradveil.report._verdicts import VERDICT_METRICS, VERDICT_VIEWS, preferred
from gradveil.report._words import null_label, number, percent, short, threshold
from gradveil.report.tables import MetricRow, Row

_HEADINGS = (
    "mean",
    "std",
    "95 % of\nthe mean",
    "worst",
    "share\nover",
    "beats\nconst.",
    "of what\nwas seen",
    "found\nfirst",
)


def statistics(rows: Sequence[Row], *, names: Sequence[str] = ()) -> Table:
    """Draw one line per metric of the verdict and cell; it fits 100 columns.

    Scores are against the private image, but for one column against what the model saw. `share over` counts the images
    that reach the threshold named beside the metric, `best null` is the guess that knows nothing and comes closest; the
    settings of a metric stand at the end of its line.

    Args:
        rows: of the cells.
        names: of the cells, listed with their numbers below the table, where they take no width from it.

    Example:
        >>> statistics([]).row_count
        0
    """
    table = Table(box=box.SIMPLE_HEAD, padding=0, pad_edge=False, show_edge=False)
    table.title, table.title_justify = Text("statistics over all private images, cell by cell", style="bold"), "left"
    if names:
        called = "\n".join(f"{row.number}  {_called(row, name)}" for row, name in zip(rows, names, strict=True))
        table.caption, table.caption_justify, table.caption_style = Text(called), "left", ""
    table.add_column("", overflow="fold", min_width=2)
    for heading in _HEADINGS:
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("best null", overflow="fold")
    for name in dict.fromkeys(name for row in rows for name in preferred(row.metrics, VERDICT_METRICS)):
        having = [row for row in rows if name in row.metrics]
        first = having[0].metrics[name]
        limit = threshold(first.threshold, unit=first.unit, higher_is_better=first.higher_is_better)
        settings = Text(name.partition(":")[2], style="bold")
        table.add_row("", Text(first.title, style="bold"), first.unit, "", "", limit, "", "", "", settings)
        for row in having:
            table.add_row(str(row.number), *_line(row.metrics[name], row))
            if row.marked:
                table.add_row(Text(f"{row.number}, marked"), *_line(row.marked.metrics[name], row.marked))
        table.add_section()
    return table


def _called(row: Row, name: str) -> str:
    return f"{name}; {short(row)}" if row.mostly_short else name


def _line(metric: MetricRow, row: Row) -> list[str]:
    unit, views = metric.unit, preferred(row.identification, VERDICT_VIEWS)
    low, high = (number(end, unit=unit) for end in metric.interval)
    return [
        number(metric.summary.mean, unit=unit),
        number(metric.summary.std, unit=unit),
        f"{low}–{high}",
        number(metric.summary.worst, unit=unit),
        percent(metric.above),
        percent(metric.success),
        number(metric.protected, unit=unit),
        percent(row.identification[views[0]].rate if views else None),
        _best_null(metric.nulls, higher_is_better=metric.higher_is_better, unit=unit),
    ]


def _best_null(nulls: Mapping[str, float], *, higher_is_better: bool, unit: str) -> str:
    sign = 1 if higher_is_better else -1
    best = max(nulls.items(), key=lambda null: sign * null[1], default=None)
    return "–" if best is None else f"{number(best[1], unit=unit)} {null_label(best[0])}"
