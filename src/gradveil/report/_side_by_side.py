"""Standard and informed adversary beside each other, for the terminal."""

from collections.abc import Sequence

from rich import box
from rich.table import Table
from rich.text import Text

from gradveil.report._pairs import Pair, pairs
from gradveil.report._terminal import find_metric
from gradveil.report._verdicts import VERDICT_VIEWS, preferred
from gradveil.report._words import number, outcome, percent, spaced
from gradveil.report.tables import Row

_STYLES = {"LEAKS": "bold red", "failed": "yellow"}


def side_by_side(rows: Sequence[Row]) -> Table:
    """Draw one line per defended network: the attack that does not know of the defense, the one that does, the verdict.

    It fits 100 columns. The verdict is the worse of the two; where no informed adversary was run, the reason stands in
    its place.

    Example:
        >>> side_by_side([]).row_count
        0
    """
    table = Table(box=box.SIMPLE_HEAD, padding=0, pad_edge=False, show_edge=False)
    table.title, table.title_justify = Text("standard and informed adversary", style="bold"), "left"
    found = pairs(rows)
    several = len({pair.network for pair in found}) > 1
    table.add_column("defense", overflow="fold", ratio=3)
    for heading in ("standard\nPSNR", "\nfound"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("informed\nattack", overflow="fold", ratio=4)
    for heading in ("\nPSNR", "\nfound"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("verdict", width=9)
    for pair in found:
        table.add_row(*_line(pair, several=several))
    return table


def _line(pair: Pair, *, several: bool) -> list[Text | str]:
    name = f"{spaced(pair.defense)}\n{pair.network}" if several else spaced(pair.defense)
    attack = "\n".join(filter(None, (spaced(pair.adaptive.attack) if pair.adaptive else "", pair.words)))
    ended = "undecided" if pair.verdict is None else outcome(pair.verdict)
    return [
        Text(name),
        *_scores(pair.standard),
        Text(attack, style="" if pair.adaptive else "dim"),
        *_scores(pair.adaptive),
        Text(ended, style=_STYLES.get(ended, "")),
    ]


def _scores(row: Row | None) -> list[str]:
    if row is None or row.error:
        return ["–" if row is None else "failed", "–"]
    psnr, views = find_metric(row.metrics, "psnr"), preferred(row.identification, VERDICT_VIEWS)
    mean = number(psnr.summary.mean if psnr else None, decimals=1)
    return [mean, percent(row.identification[views[0]].rate if views else None)]
