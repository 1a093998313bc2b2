"""The command line: parse, call one library function, show the result."""

import errno
import os
import sys
from typing import Any

import typer
from typer.core import TyperGroup
from typing_extensions import override

from gradveil.cli import (
    audit,
    bench,
    data,
    decode,
    federate,
    init,
    listing,
    obscure,
    report,
    reproduce,
    search,
    tradeoff,
    train_parts,
    vet,
)
from gradveil.cli._show import console, say
from gradveil.engine import keep_freed_memory
from gradveil.errors import GradVeilError, SpecError, UnknownNameError


class OneSentence(TyperGroup):
    """Commands whose errors are one sentence: exit code 2 for a mistake of the user, 1 for a failure."""

    @override
    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except (SpecError, UnknownNameError) as error:
            say("wrong use", error)
            raise typer.Exit(2) from error
        except GradVeilError as error:
            say("failed", error)
            raise typer.Exit(1) from error
        except OSError as error:
            if error.errno == errno.EPIPE:  # the reader of a pipe has seen enough
                raise
            say("failed", f"{error.filename or 'a file'} cannot be used ({error.strerror}); see that it is there")
            raise typer.Exit(1) from error
        except KeyboardInterrupt as error:
            console.print("interrupted; the same command with the same output goes on where it was", soft_wrap=True)
            raise typer.Exit(130) from error


app = typer.Typer(
    cls=OneSentence,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Audit what shared gradients give away, and what protections are worth.",
)
app.command("audit")(audit.command)
app.command("report")(report.command)
app.command("reproduce")(reproduce.command)
app.command("list")(listing.command)
app.command("federate")(federate.command)
app.command("vet")(vet.command)
app.command("decode")(decode.command)
app.command("tradeoff")(tradeoff.command)
app.add_typer(data.app, name="data")
app.add_typer(init.app, name="init")
app.add_typer(bench.app, name="bench")
app.add_typer(search.app, name="search")
app.add_typer(train_parts.app, name="train")
app.add_typer(obscure.app, name="obscure")


def main() -> None:
    """Run the command line; what nobody foresaw costs one sentence too, unless GRADVEIL_DEBUG is set."""
    keep_freed_memory()
    try:
        app()
    except Exception as error:
        if os.environ.get("GRADVEIL_DEBUG"):
            raise
        say("failed", f"{type(error).__name__}: {error}; set GRADVEIL_DEBUG=1 to see where, and please report it")
        sys.exit(1)
