"""`gradveil audit --recorded`: the audit of updates that a real federation sent."""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from torch import nn

from gradveil.cli._show import output, progress_bar
from gradveil.engine import Precision, Runtime
from gradveil.errors import SpecError
from gradveil.federated.deployment import RecordedAudit, audit_recorded
from gradveil.federated.importing import import_object
from gradveil.grid import Settings
from gradveil.registry import convert

RecordedFiles = Annotated[
    list[Path] | None, typer.Option(help="attack recorded updates instead: FILE..., one safetensors file each")
]
FurtherFiles = Annotated[list[Path] | None, typer.Argument(help="further files after --recorded", hidden=True)]
Together = Annotated[bool, typer.Option("--together", help="of recorded updates, each round's mean alone")]
GrantedFolder = Annotated[
    Path | None, typer.Option(help="folder of the witness mod: replay recorded updates before the attack")
]

_TAKEN = ("attacks", "models", "seed", "precision")
"""Flags of an audit that mean something for recorded updates."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedFlags:
    """The flags of `gradveil audit` for recorded updates.

    Args:
        recorded: files after `--recorded`.
        files: further ones, which a shell made of a pattern.
        together: attack the mean of each round alone.
        granted: folder of what the clients granted.
    """

    recorded: Sequence[Path]
    files: Sequence[Path]
    together: bool
    granted: Path | None


def run_recorded(
    given: RecordedFlags,
    beside: Mapping[str, Any],
    settings: Settings,
    *,
    out: Path | None,
    as_json: bool,
    quiet: bool,
) -> None:
    """Attack recorded updates as a deployment case: nobody here has the truth, so that there are no scores.

    Args:
        given: the files.
        beside: all other flags of an audit, None where they were not given.
        settings: device and chunk.
        out: run folder.
        as_json: print the outcome as JSON.
        quiet: show no progress.
    """
    _check(given, beside)
    attack, model = (_single(beside, name) for name in ("attacks", "models"))
    folder = out or Path("runs") / f"{datetime.now(UTC):%Y%m%d-%H%M%S}-recorded"
    with progress_bar(quiet=quiet or as_json) as bar:
        made = audit_recorded(
            [*given.recorded, *given.files],
            attack=attack or "inverting-gradients",
            out=folder,
            model=None if model is None else _model(model),
            together=given.together,
            granted=given.granted,
            seed=beside["seed"] or 0,
            runtime=Runtime(progress=bar, chunk=settings.chunk, precision=_precision(beside)),
            device=settings.place(),
            redact=settings.redact,
        )
    show(made, folder, as_json=as_json)
    if any(one.record.status == "failed" for one in made):
        raise typer.Exit(1)


def _check(given: RecordedFlags, beside: Mapping[str, Any]) -> None:
    if not given.recorded:
        raise SpecError("files, --together and --granted belong to --recorded FILE...; name the recorded updates")
    other = [name for name, value in beside.items() if value is not None and name not in _TAKEN]
    if other:
        flag = other[0].removesuffix("s").replace("_", "-")
        raise SpecError(
            f"--{flag} says how to simulate clients, but --recorded attacks what was recorded; leave it out"
        )


def _single(beside: Mapping[str, Any], name: str) -> str | None:
    values: list[str] = beside[name] or []
    if len(values) > 1:
        raise SpecError(
            f"recorded updates take one --{name.removesuffix('s')}, got {len(values)}; run it once for each"
        )
    return values[0] if values else None


def _precision(beside: Mapping[str, Any]) -> Precision:
    if beside["precision"] is None:
        return Runtime().precision
    chosen: Precision = convert(beside["precision"], Precision, "precision")
    return chosen


def show(made: list[RecordedAudit], folder: Path, *, as_json: bool) -> None:
    """Print what each file gave."""
    if as_json:
        cells = [
            {
                "name": one.name,
                "status": one.record.status,
                "error": one.record.error,
                "remarks": one.record.outcome.remarks,
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
    for remark in dict.fromkeys(remark for one in made for remark in one.record.outcome.remarks):
        output.print(f"note: {remark}", markup=False, highlight=False, soft_wrap=True)
    output.print(f"report: {folder / 'report.html'}", markup=False, highlight=False, soft_wrap=True)


def _model(text: str) -> nn.Module:
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))  # an app of one's own is often not installed, but where the command is given
    made = import_object(text)()
    if not isinstance(made, nn.Module):
        raise SpecError(f"'{text}' must return a network, got {type(made).__name__}")
    return made
