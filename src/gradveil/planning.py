"""What a grid would cost, measured on a few steps."""

import time
from dataclasses import replace
from pathlib import Path

import torch
import torch.nn.functional as F
from rich.table import Table

from gradveil import data
from gradveil.client import Client, step
from gradveil.engine import Runtime, normalized
from gradveil.grid import Settings, draw
from gradveil.models import build
from gradveil.spec import AuditSpec, Cell, parse_knowledge
from gradveil.streams import Streams
from gradveil.types import Observation

_STEPS = (2, 6)
_VICTIMS = 4


def plan(spec: AuditSpec, *, data_dir: Path | None = None, device: torch.device | None = None) -> Table:
    """List the cells of a spec with parameters and estimated attack time; training is not counted.

    The time is that of a few steps on up to 4 victims, stretched to all steps and victims: an upper estimate on a GPU,
    where a full stack is cheaper per victim.
    """
    dataset = data.load(spec.dataset, data_dir)
    place = Settings(device=device).place()
    table = Table("cell", "parameters", "update of all victims", "attack time", title="plan", title_justify="left")
    for cell in spec.cells():
        plain = build(
            cell.model, input_shape=dataset.input_shape, num_classes=dataset.num_classes, seed=spec.model_seed
        )
        model = normalized(plain, dataset.mean, dataset.std).to(place)
        size = sum(p.numel() for p in model.parameters())
        few = replace(spec, victims=min(spec.victims, _VICTIMS))
        batch = draw(few, dataset).to(place)
        client = Client(model=model, loss=F.cross_entropy, defenses=cell.build_defenses(), mode=spec.mode)
        streams = Streams(seed=spec.seed, purpose="client")
        seen = step(batch, client, streams=streams, knowledge=parse_knowledge(spec.knowledge)).observation
        seconds = _estimate(cell, seen, few) * spec.victims / few.victims
        memory = spec.victims * size * 4 / 2**20
        table.add_row(cell.title, f"{size:,}", f"{memory:,.0f} MiB", f"about {seconds:,.0f} s")
    return table


def _estimate(cell: Cell, observation: Observation, spec: AuditSpec) -> float:
    """Return the seconds of a whole attack on a few victims."""
    totals: list[int] = []

    def note(_task: str, _done: int, total: int) -> None:
        totals.append(total)

    times = []
    attack, streams = cell.build_attack(), Streams(seed=spec.seed, purpose="attack")
    for steps in _STEPS:
        runtime = Runtime(precision=spec.precision, probe=steps, capture=False, chunk=spec.victims, progress=note)
        began = time.monotonic()
        attack(observation, streams=streams, runtime=runtime)
        if observation.device.type == "cuda":
            torch.cuda.synchronize()
        times.append(time.monotonic() - began)
    per_step = max(times[1] - times[0], 0.0) / (_STEPS[1] - _STEPS[0])
    return per_step * max(totals, default=0)
