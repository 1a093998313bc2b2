"""`gradveil bench`."""

import json
from pathlib import Path
from typing import Annotated, get_args

import typer
from rich.table import Table

from gradveil.benchmark import bench_attack, to_json
from gradveil.cli._device import chosen_device
from gradveil.cli._show import output
from gradveil.engine import Precision
from gradveil.errors import SpecError
from gradveil.storage import write_atomically

app = typer.Typer(no_args_is_help=True, help="Measure speed.")


@app.callback()
def group() -> None:
    """Measure speed."""


@app.command()
def attack(
    model: Annotated[str, typer.Option(help="lenet, resnet20-4, ...")] = "resnet20-4",
    victims: Annotated[list[int] | None, typer.Option(help="stack sizes; repeat")] = None,
    iterations: Annotated[int, typer.Option(min=1)] = 50,
    precision: Annotated[str, typer.Option(help="float32, tf32 or bf16")] = "tf32",
    device: Annotated[str | None, typer.Option(help="cpu, cuda; a GPU if there is one")] = None,
    out: Annotated[Path | None, typer.Option(help="JSON file to write")] = None,
) -> None:
    """Time gradient matching: one victim in a plain loop, ours in stacks, and breaching if it is installed."""
    sizes = victims or [1, 4, 16]
    chosen = next((p for p in get_args(Precision) if p == precision), None)
    if chosen is None:
        raise SpecError(f"precision must be one of {', '.join(get_args(Precision))}, got '{precision}'")
    if min(sizes) < 1:
        raise SpecError(f"victims must be at least 1, got {min(sizes)}")
    place = chosen_device(device)
    rows = bench_attack(model, victims=sizes, iterations=iterations, precision=chosen, device=place)
    table = Table("program", "victims", "ms per victim and iteration", "times the plain loop", "peak MiB", "CUDA graph")
    for row in rows:
        peak = "" if row.peak_mib is None else f"{row.peak_mib:,.0f}"
        captured = "yes" if row.captured else ""
        table.add_row(row.what, str(row.victims), f"{row.milliseconds:.3f}", f"{row.ratio:.1f}", peak, captured)
    output.print(table)
    if out:
        settings = {"model": model, "iterations": iterations, "precision": precision, "victims": sizes}
        write_atomically(out, json.dumps(to_json(rows, settings=settings, device=place), indent=1).encode())
