"""The cells of a grid over many processes, by Ray: one process per GPU, or per share of the CPUs."""

import contextlib
import importlib.util
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from gradveil import record
from gradveil._networks import prepare
from gradveil._recording import failed
from gradveil.errors import GradVeilError, SpecError
from gradveil.grid import Settings, claim, finished, load_material, run_cell
from gradveil.record import Record
from gradveil.spec import AuditSpec, Cell

_QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}


def run_audit_on_ray(spec: AuditSpec, folder: Path, *, settings: Settings | None = None) -> list[Record]:
    """Run the cells of a spec as Ray tasks; finished ones are kept, interrupted ones go on, as in `run_audit`.

    Networks that several cells share are trained once, before those cells. A cell whose process dies is a failed one,
    and the others go on. Without a cluster (`RAY_ADDRESS`) Ray runs on this machine and ends with this call; on a
    cluster, the run folder and the data must be the same place on every machine.

    Args:
        spec: what to audit.
        folder: of the run.
        settings: device, data; a GPU, or one CPU, is what each process takes.
    """
    if importlib.util.find_spec("ray") is None:
        raise SpecError("workers by ray need the package ray, which is not installed; install `gradveil[flower]`")
    settings = settings or Settings()
    load_material(spec, settings)  # a mistake shows before the folder is taken
    claim(folder, spec)
    cells = spec.cells()
    kept = {cell: done for cell in cells if (done := finished(folder, cell)) is not None and not settings.redact}
    with _ray() as ray:
        made = _fan_out(ray, [cell for cell in cells if cell not in kept], _Work(spec, folder.resolve(), settings))
    return [kept.get(cell) or made[cell] for cell in cells]


@dataclass(frozen=True, slots=True)
class _Work:
    """What is the same for all tasks."""

    spec: AuditSpec
    folder: Path
    settings: Settings

    def packed(self) -> tuple[AuditSpec, Path, Settings]:
        """Return what travels to another process; whoever watches stays here."""
        place = self.settings.place()
        there = torch.device("cuda") if place.type == "cuda" else place  # a task sees its own GPU alone
        plain = Settings()
        kept = replace(self.settings, device=there, progress=plain.progress, announce=plain.announce)
        return self.spec, self.folder, kept


@contextlib.contextmanager
def _ray() -> Iterator[Any]:
    """Join the cluster that `RAY_ADDRESS` names or begin one here; end it if it was not there before."""
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    import ray

    begun = not ray.is_initialized()
    if begun:
        ray.init(include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    try:
        yield ray
    finally:
        if begun:
            ray.shutdown()


def _fan_out(ray: Any, cells: list[Cell], work: _Work) -> dict[Cell, Record]:
    on_gpu = work.settings.place().type == "cuda"
    share = {"num_gpus": 1} if on_gpu else {"num_cpus": 1}
    task, network = (ray.remote(**share, max_retries=0)(function) for function in (_run_there, _prepare_there))
    packed = ray.put(work.packed())
    ready = {key: network.remote(packed, cell) for key, cell in _networks(cells).items()}
    waiting = {task.remote(packed, cell, ready.get(_network(cell))): cell for cell in cells}
    total, made = len(waiting), dict[Cell, Record]()
    while waiting:
        (done, *_), _ = ray.wait(list(waiting))
        cell = waiting.pop(done)
        made[cell] = _outcome(ray, done, cell, work)
        work.settings.progress("cells", len(made), total)
    return made


def _outcome(ray: Any, done: Any, cell: Cell, work: _Work) -> Record:
    """Return the record of a finished task; if its process died, one that says so."""
    try:
        made: Record = ray.get(done)
    except ray.exceptions.RayTaskError as error:
        cause = error.cause
        raise cause if isinstance(cause, GradVeilError) else error from None
    except ray.exceptions.RayError as error:
        reason = f"its process ended ({type(error).__name__}), perhaps for want of memory; run the same command again"
        lost = failed(work.spec, cell, reason, work.settings.place())
        return record.write(lost, work.folder / "cells" / cell.name, images=None)
    return made


def _networks(cells: list[Cell]) -> dict[tuple[str, str], Cell]:
    """Return one cell of every network that must be trained."""
    return {_network(cell): cell for cell in cells if cell.state.startswith("trained")}


def _network(cell: Cell) -> tuple[str, str]:
    """Name the network of a cell: its architecture, and the defenses it is trained with, if it is trained."""
    words = {"trained": "none", "trained-with-defense": cell.defenses}
    return cell.model, words.get(cell.state, cell.state)


def _prepare_there(packed: tuple[AuditSpec, Path, Settings], cell: Cell) -> None:
    """Train a network into the run folder; what goes wrong is reported by the cells that need it."""
    spec, folder, settings = packed
    with contextlib.suppress(Exception):
        prepare(spec, cell, load_material(spec, settings).dataset, folder=folder, settings=settings)


def _run_there(packed: tuple[AuditSpec, Path, Settings], cell: Cell, ready: None) -> Record:  # noqa: ARG001
    """Run one cell; `ready` makes it wait for its network."""
    spec, folder, settings = packed
    return run_cell(spec, cell, load_material(spec, settings), folder, settings)
