"""What a grid would cost, measured on a few steps."""

import time
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch.nn.functional as F

from gradveil._serving import Granted, serve
from gradveil.client import Client
from gradveil.engine import Runtime, normalized
from gradveil.grid import Material, Settings, draw, load_material
from gradveil.models import build
from gradveil.spec import AuditSpec, Cell
from gradveil.streams import Streams
from gradveil.types import Observation

_STEPS = (2, 6)
_VICTIMS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What a cell would cost.

    Args:
        cell: its title.
        parameters: of the network that is sent.
        update_mib: memory of the updates of all victims.
        attack_seconds: estimated; training and tuning are not counted.
    """

    cell: str
    parameters: int
    update_mib: float
    attack_seconds: float


def plan(spec: AuditSpec, *, data_dir: Path | None = None, device: torch.device | None = None) -> list[Cost]:
    """Estimate what the cells of a spec cost; nothing is written.

    The time is that of a few steps on up to 4 victims, stretched to all steps and victims: an upper estimate on a GPU,
    where a full stack is cheaper per victim.
    """
    place = Settings(device=device).place()
    material = load_material(spec, Settings(data_dir=data_dir, device=device))
    return [_cost(spec, cell, material, place) for cell in spec.cells()]


def _cost(spec: AuditSpec, cell: Cell, material: Material, place: torch.device) -> Cost:
    """Let a few clients take their step on the network as the adversary's server sends it, and time the attack."""
    dataset = material.dataset
    plain = build(cell.model, input_shape=dataset.input_shape, num_classes=dataset.num_classes, seed=spec.model_seed)
    model = (normalized(plain, dataset.mean, dataset.std) if spec.normalize else plain).to(place).eval()
    few = replace(spec, victims=min(spec.victims, _VICTIMS))
    client = Client(
        model=model,
        loss=F.cross_entropy,
        defenses=cell.build_defenses(),
        local=spec.local,
        mode=spec.mode,
        pool=material.pool,
    )
    batch = draw(few, dataset).to(place)
    granted = Granted(knowledge=spec.knowledge_of(cell), auxiliary=material.public)
    served = serve(batch, client, cell.build_attack(), granted=granted, seed=spec.seed)
    seen = served.step.observation
    size = sum(p.numel() for p in seen.model.parameters())
    return Cost(
        cell=cell.title,
        parameters=size,
        update_mib=spec.victims * size * 4 / 2**20,
        attack_seconds=_estimate(cell, seen, few) * spec.victims / few.victims,
    )


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
