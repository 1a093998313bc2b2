"""`gradveil audit`."""

import dataclasses
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Protocol

import typer
from rich.markup import escape
from rich.table import Table

from gradveil import report
from gradveil.cli._device import chosen_device
from gradveil.cli._show import console, output, progress_bar, show_cells
from gradveil.cli.recorded import FurtherFiles, GrantedFolder, RecordedFiles, RecordedFlags, Together, run_recorded
from gradveil.errors import SpecError
from gradveil.grid import Settings, run_audit
from gradveil.planning import Cost, plan
from gradveil.record import Record
from gradveil.spec import AuditSpec, Cell, read_spec, spec_from
from gradveil.workers import run_audit_on_ray

Many = list[str] | None
Defenses = Annotated[Many, typer.Option(help="none, gaussian-noise:std=1e-3, 'pruning + gaussian-noise', ...")]
Adaptive = Annotated[
    bool | None, typer.Option(help="attack each defense by its informed adversary too", show_default="on")
]
Adversaries = Annotated[Many, typer.Option(help="settings of informed adversaries: bayes-optimal:steps=600, ...")]
Public = Annotated[str | None, typer.Option(help="public images: train, test, a data set; else like the private ones")]
Tune = Annotated[bool, typer.Option("--tune", help="choose settings on victims simulated from public images")]


def command(
    spec: Annotated[Path | None, typer.Option(help="a TOML file; flags override it")] = None,
    dataset: Annotated[str | None, typer.Option(help="digits, cifar100, folder:PATH, ...")] = None,
    model: Annotated[Many, typer.Option(help="lenet, resnet20-4, ...; repeat for a grid")] = None,
    state: Annotated[Many, typer.Option(help="untrained, trained, trained-with-defense, checkpoint:PATH")] = None,
    attack: Annotated[Many, typer.Option(help="dlg, inverting-gradients:steps=4800, ...")] = None,
    defense: Defenses = None,
    metric: Annotated[Many, typer.Option(help="psnr, ssim, lpips:weights=PATH, ...")] = None,
    knowledge: Annotated[Many, typer.Option(help="labels, nothing, ...; what the adversary is granted")] = None,
    adaptive: Adaptive = None,
    adversary: Adversaries = None,
    tune: Tune = False,
    auxiliary: Public = None,
    auxiliary_images: Annotated[int | None, typer.Option(help="how many public images")] = None,
    generator: Annotated[Path | None, typer.Option(help="checkpoint of a generator, for the adversary")] = None,
    extractor: Annotated[Path | None, typer.Option(help="checkpoint of a feature network, for the adversary")] = None,
    victims: Annotated[int | None, typer.Option(help="independent clients")] = None,
    batch_size: Annotated[int | None, typer.Option(help="images of each client")] = None,
    start: Annotated[int | None, typer.Option(help="index of the first private image, -1 draws at random")] = None,
    mode: Annotated[str | None, typer.Option(help="batch norm of the client: eval or train")] = None,
    seed: Annotated[int | None, typer.Option()] = None,
    model_seed: Annotated[int | None, typer.Option(help="of the network's initial weights")] = None,
    epochs: Annotated[int | None, typer.Option(help="of training, for trained states")] = None,
    precision: Annotated[str | None, typer.Option(help="float32, tf32 or bf16")] = None,
    deterministic: Annotated[bool, typer.Option("--deterministic", help="repeat the bits on a GPU")] = False,
    recorded: RecordedFiles = None,
    files: FurtherFiles = None,
    together: Together = False,
    granted: GrantedFolder = None,
    workers: Annotated[str | None, typer.Option(help="ray: cells over processes, one per GPU or CPU")] = None,
    out: Annotated[Path | None, typer.Option(help="run folder; the same folder resumes")] = None,
    data_dir: Annotated[Path | None, typer.Option(help="where data sets lie; else GRADVEIL_DATA")] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1; a GPU if there is one")] = None,
    chunk: Annotated[int | None, typer.Option(help="victims at once; measured if not given")] = None,
    redact: Annotated[bool, typer.Option("--redact", help="keep no private pictures")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="show cells, memory and time, run nothing")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print the folder and the results as JSON")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="no progress bar")] = False,
) -> None:
    """Let clients share protected gradients, attack them, and report what leaks."""
    flags = {
        "dataset": dataset, "models": model, "states": state, "attacks": attack, "defenses": defense,
        "metrics": metric, "knowledge": knowledge, "adaptive": adaptive, "adversaries": adversary, "tune": tune or None,
        "auxiliary": auxiliary, "auxiliary_images": auxiliary_images, "generator": generator and str(generator),
        "extractor": extractor and str(extractor), "victims": victims, "batch_size": batch_size, "start": start,
        "mode": mode, "seed": seed, "model_seed": model_seed, "precision": precision,
        "deterministic": deterministic or None,
    }  # fmt: skip
    settings = Settings(data_dir=data_dir, device=chosen_device(device), chunk=chunk, redact=redact)
    if recorded or files or together or granted:
        given = RecordedFlags(recorded=recorded or [], files=files or [], together=together, granted=granted)
        beside = {**flags, "spec": spec, "epochs": epochs, "dry_run": dry_run or None, "workers": workers}
        return run_recorded(given, beside, settings, out=out, as_json=as_json, quiet=quiet)
    wanted = merge(read_spec(spec) if spec else None, flags, epochs=epochs)
    if dry_run:
        return _show_plan(plan(wanted, data_dir=data_dir, device=settings.place()), as_json=as_json)
    folder = out or Path("runs") / f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{re.sub(r'[^a-z0-9]+', '-', wanted.dataset)}"
    return _run(wanted, folder, settings, workers=workers, quiet=quiet, as_json=as_json)


def _run(
    wanted: AuditSpec, folder: Path, settings: Settings, *, workers: str | None, quiet: bool, as_json: bool
) -> None:
    """Run the grid, and show what came out."""
    silent = quiet or as_json
    if not silent:
        console.print(f"run folder: {folder}", markup=False, highlight=False, soft_wrap=True)
    with progress_bar(quiet=silent) as show:
        shown = replace(settings, progress=show, announce=None if silent else _announce)
        records = _runner(workers)(wanted, folder, settings=shown)
    page = report.build(folder, redact=settings.redact)
    rows = report.summarize(records)
    if as_json:
        _print_json({"folder": str(folder), "report": str(page), "cells": report.facts(rows)})
    else:
        show_cells(rows)
        output.print(f"report: {page}", markup=False, highlight=False, soft_wrap=True)
    if any(made.status == "failed" for made in records):
        raise typer.Exit(1)


class Runner(Protocol):
    """Runs a grid; see `grid.run_audit`."""

    def __call__(self, spec: AuditSpec, folder: Path, *, settings: Settings) -> list[Record]:
        """Return the records of all cells."""


def _runner(workers: str | None) -> Runner:
    if workers is None:
        return run_audit
    if workers != "ray":
        raise SpecError(f"workers must be ray, got '{workers}'; leave the flag out to run here")
    return run_audit_on_ray


def merge(base: AuditSpec | None, flags: dict[str, Any], *, epochs: int | None) -> AuditSpec:
    """Put the flags that were given over a spec file, or over the defaults."""
    tables: dict[str, Any] = base.to_dict() if base else {"audit": {}}
    tables["audit"] |= {name: value for name, value in flags.items() if value is not None}
    if epochs is not None:
        tables["training"] = {**tables.get("training", {}), "epochs": epochs}
    return spec_from(tables)


def _announce(number: int, total: int, cell: Cell) -> None:
    console.print(f"[dim]cell {number} of {total}:[/] {escape(cell.title)}", highlight=False)


def _show_plan(costs: Sequence[Cost], *, as_json: bool) -> None:
    if as_json:
        _print_json([dataclasses.asdict(cost) for cost in costs])
        return
    table = Table("cell", "parameters", "update of all victims", "attack time", title="plan", title_justify="left")
    for cost in costs:
        memory, seconds = f"{cost.update_mib:,.0f} MiB", f"about {cost.attack_seconds:,.0f} s"
        table.add_row(escape(cost.cell), f"{cost.parameters:,}", memory, seconds)
    output.print(table)


def _print_json(value: object) -> None:
    output.print_json(json.dumps(value, allow_nan=False))
