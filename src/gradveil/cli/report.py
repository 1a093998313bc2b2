"""`gradveil report`."""

from pathlib import Path
from typing import Annotated

import typer

from gradveil import report
from gradveil.cli._show import output


def command(
    runs: Annotated[list[Path], typer.Argument(help="run folders")],
    redact: Annotated[bool, typer.Option("--redact", help="leave private pictures out")] = False,
) -> None:
    """Rebuild the pages of finished runs from their records; nothing is run."""
    for run in runs:
        if report.is_search(run):
            output.print(f"report: {report.build_search(run)}", markup=False, highlight=False, soft_wrap=True)
            continue
        page = report.build(run, redact=redact)
        rows = report.summarize([record for _, record in report.load_records(run)])
        output.print(report.to_rich(rows))
        if report.pairs(rows):
            output.print(report.side_by_side(rows))
        output.print(f"report: {page}", markup=False, highlight=False, soft_wrap=True)
