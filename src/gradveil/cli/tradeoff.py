"""`gradveil tradeoff`."""

import dataclasses
import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.table import Table
from rich.text import Text

from gradveil import report
from gradveil.cli._device import chosen_device
from gradveil.cli._show import console, output, progress_bar
from gradveil.errors import SpecError
from gradveil.grid import Settings
from gradveil.spec import Cell
from gradveil.tradeoff import (
    MEASURES,
    Curve,
    TradeoffRecord,
    TradeoffSpec,
    read_tradeoff_spec,
    run_tradeoff,
    tradeoff_from,
)

Many = list[str] | None


def command(
    spec: Annotated[Path | None, typer.Option(help="a TOML file; flags override it")] = None,
    defense: Annotated[str | None, typer.Option(help="gaussian-noise, 'ppdl:theta=0.05 + gaussian-noise', ...")] = None,
    field: Annotated[str | None, typer.Option(help="its setting to sweep, such as std")] = None,
    values: Annotated[str | None, typer.Option(help="of that setting, such as 1e-4,1e-3,1e-2")] = None,
    seeds: Annotated[int | None, typer.Option(help="runs with other victims, weights and noise")] = None,
    participants: Annotated[int | None, typer.Option(help="that victims are dealt to, for tracing")] = None,
    queries: Annotated[int | None, typer.Option(help="images to trace, at most")] = None,
    dataset: Annotated[str | None, typer.Option(help="digits, cifar10, folder:PATH, ...")] = None,
    model: Annotated[str | None, typer.Option(help="lenet, convnet, ...")] = None,
    state: Annotated[str | None, typer.Option(help="that is attacked: untrained, trained-with-defense, ...")] = None,
    attack: Annotated[Many, typer.Option(help="dlg, inverting-gradients:steps=4800, ...")] = None,
    knowledge: Annotated[Many, typer.Option(help="what the adversary is granted; labels end membership")] = None,
    adaptive: Annotated[
        bool | None, typer.Option(help="attack each defense by its informed adversary too", show_default="on")
    ] = None,
    victims: Annotated[int | None, typer.Option(help="independent clients of one seed")] = None,
    batch_size: Annotated[int | None, typer.Option(help="images of each client")] = None,
    seed: Annotated[int | None, typer.Option(help="the first one")] = None,
    epochs: Annotated[int | None, typer.Option(help="of training")] = None,
    precision: Annotated[str | None, typer.Option(help="float32, tf32 or bf16")] = None,
    out: Annotated[Path | None, typer.Option(help="run folder; the same folder resumes")] = None,
    data_dir: Annotated[Path | None, typer.Option(help="where data sets lie; else GRADVEIL_DATA")] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda; a GPU if there is one")] = None,
    chunk: Annotated[int | None, typer.Option(help="victims at once; measured if not given")] = None,
    redact: Annotated[bool, typer.Option("--redact", help="keep no private pictures")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print the record as JSON")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="no progress bar")] = False,
) -> None:
    """Sweep the strength of a defense: accuracy against what attacks find, with CAP."""
    swept = {"defense": defense, "field": field, "values": values}
    study = {"seeds": seeds, "participants": participants, "queries": queries}
    audit = {
        "dataset": dataset, "models": model, "states": state, "attacks": attack, "knowledge": knowledge,
        "adaptive": adaptive, "victims": victims, "batch_size": batch_size, "seed": seed, "precision": precision,
    }  # fmt: skip
    base = read_tradeoff_spec(spec).to_dict() if spec else {}
    wanted = merge(base, swept, study, audit, epochs=epochs)
    folder = out or Path("runs") / f"{datetime.now(UTC):%Y%m%d-%H%M%S}-tradeoff"
    settings = Settings(data_dir=data_dir, device=chosen_device(device), chunk=chunk, redact=redact)
    silent = quiet or as_json
    if not silent:
        console.print(f"run folder: {folder}", markup=False, highlight=False, soft_wrap=True)
    with progress_bar(quiet=silent) as show:
        shown = replace(settings, progress=show, announce=None if silent else _announce)
        made = run_tradeoff(wanted, folder, settings=shown)
    page = report.build_tradeoff(folder)
    _show(made, page, as_json=as_json)


def merge(
    base: dict[str, Any],
    swept: dict[str, str | None],
    study: dict[str, int | None],
    audit: dict[str, Any],
    *,
    epochs: int | None,
) -> TradeoffSpec:
    """Put the flags that were given over a spec file, or over the defaults."""
    tables = {**base}
    if any(swept.values()):
        missing = [f"--{name}" for name, value in swept.items() if not value]
        if missing:
            raise SpecError(f"a sweep needs --defense, --field and --values, but {' and '.join(missing)} is missing")
        listed = [value.strip() for value in str(swept["values"]).split(",") if value.strip()]
        tables["mechanism"] = [{**swept, "values": listed}]
    tables["tradeoff"] = tables.get("tradeoff", {}) | _given(study)
    tables["audit"] = tables.get("audit", {}) | _given(audit)
    if epochs is not None:
        tables["training"] = tables.get("training", {}) | {"epochs": epochs}
    return tradeoff_from(tables)


def _given(flags: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in flags.items() if value is not None}


def _announce(number: int, total: int, cell: Cell) -> None:
    console.print(f"cell {number} of {total}: {cell.title}", markup=False, highlight=False)


def _show(made: TradeoffRecord, page: Path, *, as_json: bool) -> None:
    if as_json:
        output.print_json(json.dumps(dataclasses.asdict(made), allow_nan=False))
    else:
        output.print(to_table(made))
        output.print(f"report: {page}", markup=False, highlight=False, soft_wrap=True)
    if any(strength.errors for mechanism in made.mechanisms for strength in mechanism.strengths):
        raise typer.Exit(1)


def to_table(made: TradeoffRecord) -> Table:
    """Show the CAP of every attack on every mechanism by the distances of the paper, then what is missing."""
    runs = f"{len(made.seeds)} seed{'s' if len(made.seeds) > 1 else ''}"
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False, caption_justify="left")
    table.title, table.title_justify = Text(f"CAP over {runs}, with 95 % interval", style="bold"), "left"
    table.add_column("mechanism", overflow="fold")
    table.add_column("attack", overflow="fold")
    measures = list(MEASURES)[:3]
    for name in measures:
        table.add_column(name, justify="right", no_wrap=True)
    for mechanism in made.mechanisms:
        for attack, informed in dict.fromkeys((curve.attack, curve.informed) for curve in mechanism.curves):
            found = {c.measure: c for c in mechanism.curves if (c.attack, c.informed) == (attack, informed)}
            words = f"{attack}{' (informed)' if informed else ''}"
            table.add_row(Text(mechanism.name), Text(words), *(_cap(found.get(name)) for name in measures))
        nothing = [mechanism.null_cap(name) for name in measures]
        shown = ["–" if value is None else f"{value:.3f}" for value in nothing]
        table.add_row(Text(mechanism.name), "who knows nothing", *shown, style="dim")
    errors = [error for mechanism in made.mechanisms for strength in mechanism.strengths for error in strength.errors]
    table.caption = Text("\n".join(dict.fromkeys(errors)), style="yellow") if errors else None
    return table


def _cap(curve: Curve | None) -> str:
    if curve is None or curve.cap is None:
        return "–"
    low, high = curve.cap_interval
    return f"{curve.cap:.3f}\n{low:.2f}–{high:.2f}"
