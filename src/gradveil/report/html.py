"""The report page: one file that needs nothing else, for a data-protection officer as for an engineer."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from jinja2 import Environment, PackageLoader, StrictUndefined

from gradveil.record import Record
from gradveil.report import _words
from gradveil.report._context import Fact, Group, download, numbers, settings, threat_facts
from gradveil.report._flat import to_csv
from gradveil.report._layers import Layer, layers, tally
from gradveil.report._loading import cell_folders, load_records, load_run
from gradveil.report._nulls import NullLine, null_lines
from gradveil.report._pairs import Pair, pairs
from gradveil.report._verdicts import VERDICT_METRICS, preferred
from gradveil.report.figures import Plot, plots
from gradveil.report.pictures import Grid, grid
from gradveil.report.tables import MetricRow, Overall, Row, overall, summarize, worst
from gradveil.storage import write_atomically


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One cell on the page.

    Args:
        row: its statistics.
        grid: its pictures, None if there are none to show.
        settings: all of them.
        layers: that a defense changed.
        tally: of their regions, in words.
    """

    row: Row
    grid: Grid | None
    settings: Sequence[Group]
    layers: Sequence[Layer]
    tally: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """Everything the template shows.

    Args:
        name: of the run.
        models: that were attacked.
        date: of the last record.
        version: of GradVeil that made the records.
        redacted: whether pictures were left out on request.
        unfinished: cells without a record.
        worst: cell for privacy.
        defenses: the verdict of each.
        pairs: the standard adversary beside the informed one.
        facts: of the threat model.
        metrics: of the table, by name; those of the verdict first.
        first: how many of them the verdict rests on.
        views: of the table.
        candidates: numbers of candidates in identification, in words.
        nulls: lines of the table.
        plots: shown at once.
        more_plots: shown on request.
        cells: all of them.
        changed: one cell for each network that defenses changed the gradients of.
        json: the numbers as a link.
        csv: the table as a link.
    """

    name: str
    models: Sequence[str]
    date: str
    version: str
    redacted: bool
    unfinished: int
    worst: Row | None
    defenses: Sequence[Overall]
    pairs: Sequence[Pair]
    facts: Sequence[Fact]
    metrics: Mapping[str, MetricRow]
    first: int
    views: Sequence[str]
    candidates: str
    nulls: Sequence[NullLine]
    plots: Sequence[Plot]
    more_plots: Sequence[Plot]
    cells: Sequence[Cell]
    changed: Sequence[Cell]
    json: str
    csv: str


def build(run: Path, *, redact: bool = False) -> Path:
    """Write `report.html` into a run folder.

    Args:
        run: folder with `cells/NAME/record.json`.
        redact: leave every picture out; images are not even read.

    Returns:
        The path of the page.
    """
    if redact:
        records, images = [record for _, record in load_records(run)], []
    else:
        loaded = load_run(run)
        records, images = [record for _, record, _ in loaded], [found for _, _, found in loaded]
    unfinished = len(cell_folders(run)) - len(records)
    page = render(records, images, redact=redact, name=run.resolve().name, unfinished=unfinished)
    write_atomically(run / "report.html", page.encode())
    return run / "report.html"


def render(
    records: Sequence[Record],
    images: Sequence[Mapping[str, npt.NDArray[np.uint8]]],
    *,
    redact: bool = False,
    name: str = "RUN",
    unfinished: int = 0,
) -> str:
    """Write the page of some records.

    Args:
        records: at least one.
        images: arrays `private`, `protected`, `guess` of each record, (V, B, C, H, W) bytes; ignored if redacted.
        redact: leave every picture and label out.
        name: of the run folder, for the command that makes the page again.
        unfinished: cells of the run that have no record yet.
    """
    if not records:
        raise ValueError("a page needs at least 1 record, got none")
    shown = [{} for _ in records] if redact else images
    environment = Environment(
        loader=PackageLoader("gradveil.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals["words"] = _words
    page = _page(records, shown, redact=redact, name=name, unfinished=unfinished)
    return environment.get_template("page.html").render(page=page)


def _page(
    records: Sequence[Record],
    images: Sequence[Mapping[str, npt.NDArray[np.uint8]]],
    *,
    redact: bool,
    name: str,
    unfinished: int,
) -> Page:
    rows, drawn = summarize(records), plots(records)
    cells = [_cell(row, record, arrays) for row, record, arrays in zip(rows, records, images, strict=True)]
    first = preferred([plot.name for plot in drawn], VERDICT_METRICS)
    return Page(
        name=shlex.quote(name),
        models=list(dict.fromkeys(f"{row.model}, {row.state}" for row in rows)),
        date=max(record.run.date for record in records),
        version=records[0].run.versions.get("gradveil", ""),
        redacted=redact,
        unfinished=unfinished,
        worst=worst(rows),
        defenses=overall(rows),
        pairs=pairs(rows),
        facts=threat_facts(records),
        metrics=_columns(rows, first),
        first=len(first),
        views=list(dict.fromkeys(view for row in rows for view in row.identification)),
        candidates=" or ".join(sorted({f"{i.decoys + 1:,}" for row in rows for i in row.identification.values()})),
        nulls=null_lines(rows),
        plots=[plot for plot in drawn if plot.name in first],
        more_plots=[plot for plot in drawn if plot.name not in first],
        cells=cells,
        changed=_changed(cells),
        json=download(numbers(records, redact=redact), "application/json"),
        csv=download(to_csv(rows), "text/csv"),
    )


def _cell(row: Row, record: Record, images: Mapping[str, npt.NDArray[np.uint8]]) -> Cell:
    found = layers(record)
    return Cell(row=row, grid=grid(record, images), settings=settings(record), layers=found, tally=tally(found))


def _changed(cells: Sequence[Cell]) -> list[Cell]:
    """Keep one of the cells whose clients shared the same: standard and informed adversaries see the same updates."""
    found = {(cell.row.defenses, cell.row.model, cell.row.state, tuple(cell.layers)): cell for cell in reversed(cells)}
    return [cell for cell in reversed(list(found.values())) if cell.layers]


def _columns(rows: Sequence[Row], first: Sequence[str]) -> dict[str, MetricRow]:
    """Collect the metrics of all rows, each with the row that has it first."""
    found = {name: metric for row in reversed(rows) for name, metric in row.metrics.items()}
    return {name: found[name] for name in sorted(found, key=lambda name: (name not in first, list(found).index(name)))}
