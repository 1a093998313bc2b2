"""The command line: parse, call one library function, show the result."""

import sys

import typer

from gradveil.cli import audit, bench, data, listing, report, train
from gradveil.cli._show import console
from gradveil.errors import GradVeilError, RecordError, SpecError, UnknownNameError

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Audit what shared gradients give away, and what protections are worth.",
)
app.command("audit")(audit.command)
app.command("report")(report.command)
app.command("list")(listing.command)
app.command("train")(train.command)
app.add_typer(data.app, name="data")
app.add_typer(bench.app, name="bench")


def main() -> None:
    """Run the command line; a mistake of the user costs one sentence and exit code 2, a failure exit code 1."""
    try:
        app()
    except (SpecError, UnknownNameError) as error:
        console.print(f"[bold red]wrong use:[/] {_plain(error)}", highlight=False)
        sys.exit(2)
    except (GradVeilError, RecordError) as error:
        console.print(f"[bold red]failed:[/] {_plain(error)}", highlight=False)
        sys.exit(1)
    except KeyboardInterrupt:
        console.print("[bold]interrupted;[/] run the same command again to go on from the last checkpoint")
        sys.exit(130)


def _plain(error: Exception) -> str:
    return str(error).replace("[", "\\[")
