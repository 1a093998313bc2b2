"""`gradveil report`."""

from pathlib import Path
from typing import Annotated

import typer

from gradveil import report
from gradveil.cli._show import output, show_cells
from gradveil.errors import SpecError


def command(
    runs: Annotated[list[Path], typer.Argument(help="run folders; or leaderboard, and a folder of runs")],
    redact: Annotated[bool, typer.Option("--redact", help="leave private pictures out")] = False,
) -> None:
    """Rebuild the pages of finished runs from their records; nothing is run.

    `gradveil report leaderboard [FOLDER]` writes a card for every audit below a folder, and one page of all of them.
    """
    if str(runs[0]) == "leaderboard":
        _leaderboard(runs[1:])
        return
    for run in runs:
        _page(run, redact=redact)


def _leaderboard(folders: list[Path]) -> None:
    if len(folders) > 1:
        raise SpecError(f"a leaderboard is of one folder and all below it, got {len(folders)}; name the one above them")
    page = report.build_leaderboard(folders[0] if folders else Path())
    output.print(f"report: {page}", markup=False, highlight=False, soft_wrap=True)


def _page(run: Path, *, redact: bool) -> None:
    if report.is_search(run) or report.is_tradeoff(run):
        page = report.build_search(run) if report.is_search(run) else report.build_tradeoff(run)
        output.print(f"report: {page}", markup=False, highlight=False, soft_wrap=True)
        return
    page = report.build(run, redact=redact)
    show_cells(report.summarize([record for _, record in report.load_records(run)]))
    output.print(f"report: {page}", markup=False, highlight=False, soft_wrap=True)
