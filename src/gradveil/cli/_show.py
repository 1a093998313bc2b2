"""What the terminal shows."""

import contextlib
from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from gradveil import engine, report

console = Console(stderr=True)
"""Messages and progress; results go to standard output."""

output = Console()


def say(kind: str, message: object) -> None:
    """Write one sentence to standard error, after a word in bold red that says what kind it is."""
    console.print(f"[bold red]{kind}:[/] ", end="")
    console.print(str(message), markup=False, highlight=False, soft_wrap=True)


def show_cells(rows: Sequence[report.Row]) -> None:
    """Print the results of a run, the informed adversary beside the standard one, and what the means hide."""
    output.print(report.to_rich(rows))
    if report.pairs(rows):
        output.print(report.side_by_side(rows))
    if any(row.metrics for row in rows):
        output.print(report.statistics(rows))


@contextlib.contextmanager
def progress_bar(*, quiet: bool) -> Iterator[engine.Progress]:
    """Show one bar per task, with the time left; nothing if quiet."""
    if quiet:
        yield lambda task, done, total: None  # noqa: ARG005
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f}%"))
    with Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=console, transient=True) as bars:
        known = {}

        def show(task: str, done: int, total: int) -> None:
            if task not in known:
                known[task] = bars.add_task(task, total=total)
            bars.update(known[task], completed=done, total=total)
            if done >= total:
                bars.remove_task(known.pop(task))

        yield show
