"""`gradveil data`."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from gradveil import data
from gradveil.cli._show import output, progress_bar

app = typer.Typer(invoke_without_command=True, help="List, download and explain data sets.")
DataDir = Annotated[Path | None, typer.Option(help="where data sets lie; else GRADVEIL_DATA")]


@app.callback()
def show(
    context: typer.Context,
    data_dir: DataDir = None,
    as_json: Annotated[bool, typer.Option("--json", help="for machines")] = False,
) -> None:
    """List which data sets are there."""
    if context.invoked_subcommand:
        return
    found = data.available(data_dir)
    if as_json:
        output.print_json(json.dumps([{"name": f.name, "present": f.present} for f in found]))
        return
    table = Table("data set", "present", title=f"in {data.data_root(data_dir)}", title_justify="left")
    for entry in found:
        table.add_row(entry.name, "yes" if entry.present else "no")
    output.print(table)
    output.print("gradveil data download NAME fetches one, gradveil data explain NAME says where files go.")


@app.command()
def download(name: str, data_dir: DataDir = None) -> None:
    """Fetch a data set and check it."""
    with progress_bar(quiet=False) as bar:
        written = data.download(name, data_dir, progress=lambda done, total: bar(name, done, total))
    if not written:
        output.print(f"{name} needs no download: every file is there")
    for path in written:
        output.print(str(path), markup=False, highlight=False, soft_wrap=True)


@app.command()
def explain(name: str) -> None:
    """Say which files a data set needs, and where."""
    output.print(data.explain(name), markup=False, highlight=False, soft_wrap=True)
