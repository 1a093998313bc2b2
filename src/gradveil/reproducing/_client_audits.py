"""Audits of clients that mark sensitive samples or draw from a pool of public images, which a spec file cannot say."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from gradveil import data, record
from gradveil._networks import Prepared, prepare, threads_for
from gradveil._public_material import public_material
from gradveil._recording import to_record
from gradveil._scoring import Reference
from gradveil._serving import Granted, serve
from gradveil.auditing import Judging, attack_and_judge
from gradveil.client import Client
from gradveil.data import Dataset
from gradveil.engine import Runtime
from gradveil.errors import SpecError
from gradveil.grid import claim, draw, finished
from gradveil.obscuring import mark_of
from gradveil.record import Record
from gradveil.reproducing._audits import to_spec
from gradveil.reproducing._kinds import Means
from gradveil.reproducing.plans import Part
from gradveil.spec import AuditSpec, Cell, build_metrics
from gradveil.storage import TensorFolder
from gradveil.types import Batch

_KNOWN = ("sensitive", "pool", "distinct_labels")


def run(part: Part, folder: Path, means: Means) -> None:
    """Run every cell of a part's grid with clients as its table `client` says.

    `sensitive` marks so many samples at the end of every batch, `pool` names the data set whose training images data
    and step defenses may draw from, `distinct_labels` gives no victim a label twice.
    """
    spec, about = to_spec(part, means), part.table("client")
    unknown = [name for name in about if name not in _KNOWN]
    if unknown:
        raise SpecError(f"[client] takes {', '.join(_KNOWN)}, got {unknown[0]}")
    dataset = data.load(spec.dataset, means.settings.data_dir)
    batch = _batch(spec, dataset, about)
    pool = _pool(about.get("pool", ""), dataset, means)
    claim(folder, spec)
    for number, cell in enumerate(spec.cells(), start=1):
        if means.settings.announce:
            means.settings.announce(number, len(spec.cells()), cell)
        if finished(folder, cell) is None:
            made = _run_cell(spec, cell, dataset, batch, pool, folder, means)
            record.write(replace(made, spec={**made.spec, "client": about}), folder / "cells" / cell.name)


def _batch(spec: AuditSpec, dataset: Dataset, about: dict[str, Any]) -> Batch:
    """Draw the private images, and mark the last ones of every batch."""
    batch = draw(spec, dataset)
    if about.get("distinct_labels"):
        split = dataset.test if spec.split == "test" else dataset.train
        batch = data.draw_victims(
            split,
            victims=spec.victims,
            batch_size=spec.batch_size,
            seed=spec.seed,
            start=None if spec.start < 0 else spec.start,
            distinct_labels=True,
        )
    count = int(about.get("sensitive", 0))
    if not count:
        return batch
    places = torch.arange(spec.batch_size).expand(spec.victims, -1)
    return replace(batch, sensitive=places >= spec.batch_size - count)


def _pool(source: str, dataset: Dataset, means: Means) -> Tensor | None:
    if not source:
        return None
    other = dataset if source == dataset.name else data.load(source, means.settings.data_dir)
    if other.input_shape != dataset.input_shape:
        raise SpecError(f"the pool {source} has images {other.input_shape}, but the clients have {dataset.input_shape}")
    return other.train.inputs()


def _run_cell(
    spec: AuditSpec, cell: Cell, dataset: Dataset, batch: Batch, pool: Tensor | None, folder: Path, means: Means
) -> Record:
    settings = means.settings
    prepared: Prepared = prepare(spec, cell, dataset, folder=folder, settings=settings)
    place = settings.place()
    runtime = Runtime(
        precision=spec.precision,
        deterministic=spec.deterministic,
        chunk=settings.chunk,
        progress=settings.progress,
        store=TensorFolder(folder / "cells" / cell.name / "unfinished", mark_of(cell.build_defenses())),
        save_every=settings.save_every,
        threads=threads_for(prepared.model, place),
    )
    client = Client(
        model=prepared.model,
        loss=F.cross_entropy,
        defenses=cell.build_defenses(),
        local=spec.local,
        mode=spec.mode,
        pool=None if pool is None else pool.to(place),
    )
    public = public_material(spec, dataset, data_dir=settings.data_dir, device=place)
    granted = Granted(knowledge=spec.knowledge_of(cell), auxiliary=public)
    split = dataset.test if spec.split == "test" else dataset.train
    judging = Judging(
        metrics=build_metrics(spec),
        reference=Reference(split.inputs(), split.labels),
        decoys=spec.decoys,
        null_victims=spec.null_victims,
    )
    with runtime.numerics():
        attack = cell.build_attack()
        served = serve(batch.to(place), client, attack, granted=granted, seed=spec.seed)
        result = attack_and_judge(served, attack, judging=judging, seed=spec.seed, runtime=runtime)
    TensorFolder(folder / "cells" / cell.name / "unfinished").clear()
    return to_record(result, spec, cell, prepared, dataset)
