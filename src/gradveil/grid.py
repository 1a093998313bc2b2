"""Running the cells of a spec, each an independent unit that is finished, failed, or resumed."""

import logging
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from gradveil import data, record
from gradveil._networks import Prepared, checkpoint_hash, prepare, threads_for
from gradveil._public_material import client_pool, public_material, reference
from gradveil._public_material import draw as private_images
from gradveil._recording import failed, pictures, to_record
from gradveil._scoring import Reference
from gradveil._serving import Granted, Served, serve
from gradveil.attacks import Attack
from gradveil.auditing import Audit, Judging, attack_and_judge
from gradveil.client import Client
from gradveil.data import Dataset
from gradveil.defenses import DataDefense, StepDefense
from gradveil.engine import Progress, Runtime
from gradveil.engine.runtime import silent
from gradveil.errors import GradVeilError, RecordError, SpecError
from gradveil.obscuring import mark_of
from gradveil.record import Record
from gradveil.spec import AuditSpec, Cell, build_defenses, build_metrics
from gradveil.storage import TensorFolder, content_hash, write_atomically
from gradveil.streams import Streams
from gradveil.tuning import tune
from gradveil.types import Auxiliary, Batch

_log = logging.getLogger(__name__)

Announce = Callable[[int, int, Cell], None]
"""Called with a cell's number, how many there are, and the cell, before it runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How a grid runs; nothing here changes a result.

    Args:
        data_dir: where data sets lie; None for the usual place.
        device: None takes a GPU if there is one.
        chunk: victims at once; None measures.
        redact: keep no pictures.
        progress: of the work inside a cell.
        announce: of cells.
        save_every: seconds between checkpoints of an attack.
        networks: where networks that were trained are kept, for several grids to share; None for the run folder.
    """

    data_dir: Path | None = None
    device: torch.device | None = None
    chunk: int | None = None
    redact: bool = False
    progress: Progress = silent
    announce: Announce | None = None
    save_every: float = 20.0
    networks: Path | None = None

    def __post_init__(self) -> None:
        if self.chunk is not None and self.chunk < 1:
            raise SpecError(f"chunk must be at least 1, got {self.chunk}")

    def place(self) -> torch.device:
        """Return the device to run on."""
        return self.device or torch.device("cuda" if torch.cuda.is_available() else "cpu")


@dataclass(frozen=True, slots=True, kw_only=True)
class Material:
    """What all cells of a grid share.

    Args:
        dataset: of the private images.
        public: what an adversary with auxiliary knowledge has.
        reference: images that the auditor compares with; the adversary has none of them.
        pool: (N, C, H, W) images that the clients' defenses may draw from; None if no defense is one of data or step.
    """

    dataset: Dataset
    public: Auxiliary | None
    reference: Reference
    pool: Tensor | None


def run_audit(spec: AuditSpec, folder: Path, *, settings: Settings | None = None) -> list[Record]:
    """Run every cell of a spec into a run folder; finished cells are kept, interrupted ones go on.

    Args:
        spec: what to audit.
        folder: holds `spec.toml`, and `cells/NAME/record.json` with images beside it.
        settings: device, progress.
    """
    settings = settings or Settings()
    material = load_material(spec, settings)  # a mistake shows before the folder is taken
    claim(folder, spec)
    cells, records = spec.cells(), []
    for number, cell in enumerate(cells, start=1):
        if settings.announce:
            settings.announce(number, len(cells), cell)
        records.append(run_cell(spec, cell, material, folder, settings))
    return records


def load_material(spec: AuditSpec, settings: Settings) -> Material:
    """Load what all cells of a spec share, and see that there are enough private images."""
    dataset = data.load(spec.dataset, settings.data_dir)
    place, kinds = settings.place(), (DataDefense, StepDefense)
    draws = any(isinstance(defense, kinds) for text in spec.defenses for defense in build_defenses(text))
    return Material(
        dataset=dataset,
        public=public_material(spec, dataset, data_dir=settings.data_dir, device=place),
        reference=reference(spec, dataset),
        pool=client_pool(spec, dataset, data_dir=settings.data_dir).to(place) if draws else None,
    )


def run_cell(spec: AuditSpec, cell: Cell, material: Material, folder: Path, settings: Settings) -> Record:
    """Run one cell into the folder of its spec, or return its record if it is finished."""
    done = finished(folder, cell)
    if done is None:
        done = _run_cell(spec, cell, material, folder, settings)
    elif settings.redact:
        done = record.redact(done, folder / "cells" / cell.name)
    if done.status == "done":
        TensorFolder(folder / "cells" / cell.name / "unfinished").clear()
    return done


def claim(folder: Path, spec: AuditSpec) -> None:
    """Make a folder the place of a spec, or refuse if it is the place of another one."""
    file, text = folder / "spec.toml", spec.to_toml()
    if file.exists() and file.read_text(encoding="utf-8") != text:
        raise SpecError(f"{folder} holds the run of another spec; name a new folder with --out, or remove it")
    if not file.exists() and any(folder.glob("cells/*/preflight.json")):
        raise SpecError(f"{folder} holds an audit of recorded updates; name a new folder with --out")
    if not file.exists():
        write_atomically(file, text.encode())


def finished(folder: Path, cell: Cell) -> Record | None:
    """Return the record of a cell that is done; one that cannot be read is to be made again.

    A record of another checkpoint or feature extractor than the one that lies at its path now is refused.
    """
    try:
        found = record.read(folder / "cells" / cell.name)
    except RecordError:
        return None
    if found.status != "done":
        return None
    if found.extractor and found.extractor != mark_of(cell.build_defenses()):
        raise SpecError(f"{folder / 'cells' / cell.name} was run with another extractor; name a new folder with --out")
    now = checkpoint_hash(cell.state)
    if now and found.network.sha256 not in {"", now}:
        raise SpecError(f"{folder / 'cells' / cell.name} was run with another checkpoint; name a new folder with --out")
    return found


def draw(spec: AuditSpec, dataset: Dataset) -> Batch:
    """Take the private images of a spec."""
    return private_images(spec, dataset)


def _run_cell(spec: AuditSpec, cell: Cell, material: Material, folder: Path, settings: Settings) -> Record:
    place = folder / "cells" / cell.name
    runtime = Runtime(
        precision=spec.precision,
        deterministic=spec.deterministic,
        chunk=settings.chunk,
        progress=settings.progress,
        save_every=settings.save_every,
    )
    try:
        began = time.monotonic()
        prepared = prepare(spec, cell, material.dataset, folder=folder, settings=settings)
        seconds = {"model": time.monotonic() - began}
        store = TensorFolder(place / "unfinished", _mark(cell, prepared))
        runtime = replace(runtime, store=store, threads=threads_for(prepared.model, settings.place()))
        with runtime.numerics():
            result = _audit(spec, cell, material, prepared, runtime, settings.place())
        result = replace(result, seconds={**seconds, **result.seconds})
        made = to_record(result, spec, cell, prepared, material.dataset)
        images = None if settings.redact else pictures(result)
    except RecordError:
        raise  # of the run folder, such as a full disk: no other cell would fare better
    except Exception as error:
        # A cell is a unit of its own: whatever stops it, the others go on.
        _log.info("the cell %s failed", cell.name, exc_info=True)
        reason = str(error) if isinstance(error, GradVeilError) else f"{type(error).__name__}: {error}"
        made, images = failed(spec, cell, reason, settings.place()), None
    return record.write(made, place, images=images)


def _mark(cell: Cell, prepared: Prepared) -> str:
    """Return what an unfinished attack depends on beside its cell: networks that the cell knows by their paths."""
    extractor = mark_of(cell.build_defenses())
    return content_hash(extractor, prepared.sha256) if prepared.sha256 else extractor


def _audit(
    spec: AuditSpec, cell: Cell, material: Material, prepared: Prepared, runtime: Runtime, device: torch.device
) -> Audit:
    client = Client(
        model=prepared.model,
        loss=F.cross_entropy,
        defenses=cell.build_defenses(),
        local=spec.local,
        mode=spec.mode,
        pool=material.pool,
    )
    dataset, attack = material.dataset, cell.build_attack()
    granted = Granted(knowledge=spec.knowledge_of(cell), auxiliary=material.public)
    served = serve(draw(spec, dataset).to(device), client, attack, granted=granted, seed=spec.seed)
    attack, search = _tuned(spec, attack, served, runtime)
    judging = Judging(
        metrics=build_metrics(spec),
        reference=material.reference,
        decoys=spec.decoys,
        null_victims=spec.null_victims,
    )
    result = attack_and_judge(served, attack, judging=judging, seed=spec.seed, runtime=runtime)
    return replace(result, search=search)


def _tuned(spec: AuditSpec, attack: Attack, served: Served, runtime: Runtime) -> tuple[Attack, dict[str, Any]]:
    """Choose the settings of an attack as its adversary would, if the spec asks for it."""
    if not spec.tune:
        return attack, {}
    streams = Streams(seed=spec.seed, purpose="attack")
    chosen, search = tune(
        attack,
        served.step.observation,
        victims=spec.tune_victims,
        steps=spec.tune_steps,
        rule=spec.tune_rule,
        streams=streams,
        runtime=runtime,
    )
    return chosen, asdict(search)
