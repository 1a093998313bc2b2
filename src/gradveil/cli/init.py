"""`gradveil init`."""

from pathlib import Path
from typing import Annotated

import typer

from gradveil.cli._show import output

app = typer.Typer(no_args_is_help=True, help="Write an example to begin with.")


@app.callback()
def main() -> None:
    """Write an example to begin with."""


@app.command("flower")
def flower(folder: Annotated[Path, typer.Argument(help="new folder for the app")]) -> None:
    """Write a Flower app whose clients vet, protect and record."""
    from gradveil.federated.example import write_example

    for path in write_example(folder):
        output.print(str(path), markup=False, highlight=False, soft_wrap=True)
    words = f"next: pip install 'gradveil[flower]', then python {folder / 'run.py'} simulation"
    output.print(words, markup=False, highlight=False, soft_wrap=True)
