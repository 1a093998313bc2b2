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
        page = report.build(run, redact=redact)
        output.print(report.to_rich(report.summarize([record for _, record in report.load_records(run)])))
        output.print(f"report: {page}", markup=False, highlight=False, soft_wrap=True)
