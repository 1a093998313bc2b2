"""`gradveil reproduce`."""

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from gradveil import report
from gradveil.cli._device import chosen_device
from gradveil.cli._show import console, output, progress_bar
from gradveil.errors import SpecError, unknown_name
from gradveil.grid import Settings
from gradveil.reproducing import (
    SIZES,
    Artefact,
    Line,
    Means,
    Size,
    audits_behind,
    catalogue,
    compare,
    find_artefact,
    find_experiments,
    keep,
    reproduce,
    take_kept,
)
from gradveil.spec import Cell


def command(
    name: Annotated[str, typer.Argument(help="such as ats-table-1a; --list shows all")] = "",
    size: Annotated[str, typer.Option(help="smoke (seconds on a CPU), small (minutes on a GPU) or paper")] = "smoke",
    part: Annotated[list[str] | None, typer.Option(help="run this part alone; repeat")] = None,
    checkpoints: Annotated[Path | None, typer.Option(help="folder of networks trained before")] = None,
    adopt: Annotated[list[Path] | None, typer.Option(help="take over audits of this folder that fit; repeat")] = None,
    kept: Annotated[bool, typer.Option("--keep", help="make the run the result in the experiments folder")] = False,
    going_on: Annotated[bool, typer.Option("--from-kept", help="begin with kept records, run the others")] = False,
    show: Annotated[bool, typer.Option("--show", help="show the kept result; nothing is run")] = False,
    listed: Annotated[bool, typer.Option("--list", help="show every table and figure with its state")] = False,
    experiments: Annotated[Path | None, typer.Option(help="folder of the experiments; else ./experiments")] = None,
    out: Annotated[Path | None, typer.Option(help="run folder; the same folder resumes")] = None,
    data_dir: Annotated[Path | None, typer.Option(help="where data sets lie; else GRADVEIL_DATA")] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1; a GPU if there is one")] = None,
    chunk: Annotated[int | None, typer.Option(help="victims at once; measured if not given")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print as JSON")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="no progress bar")] = False,
) -> None:
    """Run a table or figure of a paper again, and set our numbers beside the printed ones."""
    place = find_experiments(experiments)
    if listed or not name:
        _show_list(catalogue(place), as_json=as_json)
        return
    artefact, chosen = find_artefact(place, name), _size(size)
    if show:
        _show_kept(artefact, as_json=as_json)
        return
    if kept and chosen == "smoke":
        raise SpecError("--keep is for small and paper runs; a smoke run is no result of a paper's table")
    folder, silent = out or Path("runs") / f"{name}-{chosen}", quiet or as_json
    settings = Settings(data_dir=data_dir, device=chosen_device(device), chunk=chunk, redact=True)
    with progress_bar(quiet=silent) as bar:
        settings = replace(settings, progress=bar, announce=None if silent else _announce)
        means = Means(settings=settings, checkpoints=checkpoints, adopted=tuple(adopt or ()), say=_say)
        if going_on:
            _say(f"{take_kept(artefact, chosen, folder)} kept records taken over")
        lines = reproduce(artefact, chosen, folder, means=means, parts=part or ())
    _show(artefact, chosen, lines, folder, as_json=as_json)
    if not as_json:
        output.print(f"records: {folder}", markup=False, highlight=False, soft_wrap=True)
    if kept:
        path = keep(artefact, chosen, folder)
        console.print(f"kept: {path}; now write the verdict in its README", markup=False, soft_wrap=True)


def _show_kept(artefact: Artefact, *, as_json: bool) -> None:
    result = artefact.result()
    if result is None:
        raise SpecError(f"no result of {artefact.name} is kept; run it with --size small, and --keep it")
    _show(artefact, _size(result["size"]), compare(artefact, result), artefact.folder, as_json=as_json)


def _show(artefact: Artefact, size: Size, lines: Sequence[Line], folder: Path, *, as_json: bool) -> None:
    """Print the comparison, and below it the statistics of the audits behind it."""
    behind = audits_behind(folder)
    names, rows = [name for name, _ in behind], report.summarize([made for _, made in behind])
    if as_json:
        compared = [{**dataclasses.asdict(line), "difference": line.difference} for line in lines]
        told = [{"name": name, **facts} for name, facts in zip(names, report.facts(rows), strict=True)]
        content = {"artefact": artefact.name, "size": size, "folder": str(folder), "rows": compared, "statistics": told}
        output.print_json(json.dumps(content))
        return
    output.print(to_table(artefact, size, lines))
    if rows:
        output.print(report.statistics(rows, names=names))


def to_table(artefact: Artefact, size: Size, lines: Sequence[Line]) -> Table:
    """Show paper, ours and difference, one line per cell of the paper's table."""
    warning = "; smoke runs on toy data, its numbers mean nothing" if size == "smoke" else ""
    title = f"{artefact.name} ({size}): {artefact.title}{warning}"
    table = Table("row", "column", "paper", "ours", "95 %", "difference", title=title, title_justify="left")
    for line in lines:
        interval = "" if line.interval is None else f"{_shown(line.interval[0])} … {_shown(line.interval[1])}"
        difference = "" if line.difference is None else f"{line.difference:+.4g}"
        column = f"{line.column} ({line.unit})" if line.unit else line.column
        table.add_row(escape(line.row), escape(column), _shown(line.paper), _shown(line.ours), interval, difference)
    return table


def _show_list(artefacts: Sequence[Artefact], *, as_json: bool) -> None:
    if as_json:
        rows = [{**dataclasses.asdict(one), "folder": str(one.folder)} for one in artefacts]
        output.print_json(json.dumps(rows))
        return
    table = Table(title_justify="left")
    table.add_column("name", no_wrap=True)
    for heading in ("what it shows", "state", "why, or what is left out"):
        table.add_column(heading)
    for one in artefacts:
        table.add_row(one.name, escape(one.title), _state(one), escape(one.why))
    output.print(table)


def _state(artefact: Artefact) -> str:
    """Say what was run, in which size, and how many numbers are there where some are not."""
    result = artefact.result() if artefact.built else None
    if result is None:
        return artefact.state
    total, missing = artefact.measured(), artefact.missing()
    return f"{artefact.state} ({result['size']}{f', {total - missing} of {total} numbers' if missing else ''})"


def _size(text: str) -> Size:
    for size in SIZES:
        if text == size:
            return size
    raise unknown_name("size", text, SIZES)


def _shown(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def _say(text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def _announce(number: int, total: int, cell: Cell) -> None:
    console.print(f"[dim]cell {number} of {total}:[/] {escape(cell.title)}", highlight=False)
