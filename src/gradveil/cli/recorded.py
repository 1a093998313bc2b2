"""`gradveil audit-recorded`: the audit of updates that a real federation sent."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from torch import nn

from gradveil.cli._device import chosen_device
from gradveil.cli._show import output, progress_bar
from gradveil.engine import Runtime
from gradveil.errors import SpecError
from gradveil.federated.deployment import RecordedAudit, audit_recorded
from gradveil.federated.importing import import_object


def command(
    files: Annotated[list[Path], typer.Argument(help="recorded updates, one safetensors file each")],
    attack: Annotated[str, typer.Option(help="inverting-gradients:steps=4800, ...")] = "inverting-gradients",
    model: Annotated[str | None, typer.Option(help="import:package.module:name, if it is your own")] = None,
    together: Annotated[bool, typer.Option("--together", help="attack the mean of each round alone")] = False,
    seed: Annotated[int, typer.Option(help="of the attack")] = 0,
    out: Annotated[Path | None, typer.Option(help="run folder")] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda; a GPU if there is one")] = None,
    redact: Annotated[bool, typer.Option("--redact", help="keep no pictures")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print the outcome as JSON")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="show no progress")] = False,
) -> None:
    """Attack recorded updates as a deployment case: nobody here has the truth, so that there are no scores."""
    folder = out or Path("runs") / f"{datetime.now(UTC):%Y%m%d-%H%M%S}-recorded"
    with progress_bar(quiet=quiet or as_json) as bar:
        made = audit_recorded(
            files,
            attack=attack,
            out=folder,
            model=None if model is None else _model(model),
            together=together,
            seed=seed,
            runtime=Runtime(progress=bar),
            device=chosen_device(device),
            redact=redact,
        )
    show(made, folder, as_json=as_json)
    if any(one.record.status == "failed" for one in made):
        raise typer.Exit(1)


def show(made: list[RecordedAudit], folder: Path, *, as_json: bool) -> None:
    """Print what each file gave."""
    if as_json:
        cells = [
            {
                "name": one.name,
                "status": one.record.status,
                "error": one.record.error,
                "failed checks": [check.reason for check in one.checks if check.outcome == "failed"],
                "ruled out": one.ruled_out,
            }
            for one in made
        ]
        output.print_json(json.dumps({"folder": str(folder), "cells": cells}))
        return
    table = Table("file", "pre-flight", "attack", "ruled out")
    for one in made:
        failed = [check.reason for check in one.checks if check.outcome == "failed"]
        table.add_row(one.name, failed[0] if failed else "passed", one.record.error or "done", ", ".join(one.ruled_out))
    output.print(table)
    output.print(f"report: {folder / 'report.html'}", markup=False, highlight=False, soft_wrap=True)


def _model(text: str) -> nn.Module:
    made = import_object(text)()
    if not isinstance(made, nn.Module):
        raise SpecError(f"'{text}' must return a network, got {type(made).__name__}")
    return made
