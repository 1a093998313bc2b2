"""Privacy against accuracy: sweep the strength of defenses, train and attack under each, and draw the curves.

A study is a run folder: `tradeoff.toml`, one audit per seed below `seed-N`, and `tradeoff.json`. What is finished is
kept, what was interrupted goes on.
"""

import dataclasses
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from gradveil import data, record
from gradveil._networks import Prepared, prepare
from gradveil._tradeoff_curves import BOUNDS, Attacked, Measured, mechanism_result
from gradveil._tradeoff_distances import (
    MEASURES,
    Distances,
    Judges,
    distances_of,
    keep_distances,
    kept_distances,
    null_distances,
    perturbation_of,
)
from gradveil._tradeoff_record import (
    FILE,
    Curve,
    MechanismResult,
    Strength,
    TradeoffRecord,
    read_tradeoff,
    write_tradeoff,
)
from gradveil._tradeoff_spec import STUDY_AUDIT, Mechanism, TradeoffSpec, read_tradeoff_spec, tradeoff_from
from gradveil.data import Dataset
from gradveil.errors import GradVeilError, RecordError, SpecError
from gradveil.grid import Settings, draw, finished, run_audit
from gradveil.record import Record, about_this_run
from gradveil.spec import AuditSpec, Cell
from gradveil.storage import write_atomically

__all__ = [
    "BOUNDS",
    "FILE",
    "MEASURES",
    "STUDY_AUDIT",
    "Curve",
    "Judges",
    "Mechanism",
    "MechanismResult",
    "Strength",
    "TradeoffRecord",
    "TradeoffSpec",
    "distances_of",
    "null_distances",
    "perturbation_of",
    "read_tradeoff",
    "read_tradeoff_spec",
    "run_tradeoff",
    "tradeoff_from",
    "write_tradeoff",
]


def run_tradeoff(spec: TradeoffSpec, folder: Path, *, settings: Settings | None = None) -> TradeoffRecord:
    """Train and attack under every strength, once per seed, into a run folder; the same folder resumes.

    Tracing needs the pictures of an audit. With `settings.redact` they are removed as soon as the audit of a seed ends,
    also by an interruption; what was measured on them stays.

    Args:
        spec: what to sweep.
        folder: of the run.
        settings: device, progress, redaction.
    """
    settings = settings or Settings()
    dataset = data.load(spec.audit.dataset, settings.data_dir)
    for number in range(spec.seeds):
        draw(spec.audit_of(number), dataset)  # too few images show before anything runs
    _claim(folder, spec)
    began, seeds = time.monotonic(), []
    for number in range(spec.seeds):
        seeds.append(_run_seed(spec, number, dataset, folder / f"seed-{number}", settings))
        made = _to_record(spec, seeds, settings, seconds=time.monotonic() - began)
        write_tradeoff(made, folder)
    return made


def _run_seed(
    spec: TradeoffSpec, number: int, dataset: Dataset, folder: Path, settings: Settings
) -> dict[str, Measured]:
    """Train and attack once; return what came out by spec string of the defenses."""
    audit = spec.audit_of(number)
    networks = dict(_networks(spec, audit, dataset, folder, settings))
    plain = networks["none"]
    split = dataset.test if audit.split == "test" else dataset.train
    judges = Judges(
        queries=split.images,
        participants=spec.participants,
        most=spec.queries,
        network=plain.model if isinstance(plain, Prepared) else None,
        device=settings.place(),
        seed=audit.seed,
    )
    try:
        run_audit(audit, folder, settings=dataclasses.replace(settings, redact=False))
    finally:
        distances = {cell: _measure(cell, folder, judges, settings) for cell in audit.cells()}
    attacked = {
        text: [_attacked(c, folder, distances[c], spec) for c in _cells(audit, text)] for text in audit.defenses
    }
    return {text: _measured(networks[text], attacked[text]) for text in audit.defenses}


def _networks(
    spec: TradeoffSpec, audit: AuditSpec, dataset: Dataset, folder: Path, settings: Settings
) -> Iterator[tuple[str, Prepared | float | str]]:
    """Train a network under each strength; where that fails, give the reason, and where it was given, the accuracy."""
    given = {
        text: accuracy
        for mechanism in spec.mechanisms
        for text, accuracy in zip(mechanism.strengths(), mechanism.accuracies, strict=False)
    }
    for text in audit.defenses:
        if text in given:
            yield text, given[text]
            continue
        state = "trained" if text == "none" else "trained-with-defense"
        cell = Cell(model=audit.models[0], state=state, defenses=text, attack=audit.attacks[0])
        try:
            yield text, prepare(audit, cell, dataset, folder=folder, settings=settings)
        except RecordError:
            raise  # of the run folder: no other strength would fare better
        except GradVeilError as error:
            yield text, f"no network could be trained with {text}: {error}"


def _measure(cell: Cell, folder: Path, judges: Judges, settings: Settings) -> Distances:
    """Measure a finished cell, and remove its pictures if they are not to be kept; empty if it is not finished."""
    place, done = folder / "cells" / cell.name, finished(folder, cell)
    if done is None:
        return {}
    found = kept_distances(place, done)
    if found is None:
        found = distances_of(done, record.read_images(place, done), judges=judges)
        keep_distances(found, place, done)
    if settings.redact:
        record.redact(done, place)
    return found


def _cells(audit: AuditSpec, text: str) -> list[Cell]:
    return [cell for cell in audit.cells() if cell.defenses == text]


def _attacked(cell: Cell, folder: Path, distances: Distances, spec: TradeoffSpec) -> Attacked:
    """Say what an attack made of a strength; the settings of an informed one may follow the strength, its name not."""
    attack = cell.attack.partition(":")[0] if cell.adaptive else cell.attack
    found = record.read(folder / "cells" / cell.name)
    if not distances:
        return Attacked(attack=attack, informed=cell.adaptive, distances={}, nulls={}, error=_reason(found))
    return Attacked(
        attack=attack,
        informed=cell.adaptive,
        distances=distances,
        nulls=null_distances(found, participants=spec.participants),
        ratios=perturbation_of(found),
    )


def _reason(found: Record) -> str:
    return f"{found.attack} failed on {' + '.join(found.defenses) or 'none'}: {found.error}"


def _measured(network: Prepared | float | str, attacked: Sequence[Attacked]) -> Measured:
    if isinstance(network, str):
        return Measured(accuracy=None, attacked=attacked, error=network)
    return Measured(accuracy=network.accuracy if isinstance(network, Prepared) else network, attacked=attacked)


def _to_record(
    spec: TradeoffSpec, seeds: Sequence[Mapping[str, Measured]], settings: Settings, *, seconds: float
) -> TradeoffRecord:
    plain = [accuracy for seed in seeds if (accuracy := seed["none"].accuracy) is not None]
    return TradeoffRecord(
        spec=spec.to_dict(),
        status="done" if len(seeds) == spec.seeds else "running",
        seeds=[spec.audit_of(number).seed for number in range(len(seeds))],
        plain_accuracy=sum(plain) / len(plain) if len(plain) == len(seeds) else None,
        mechanisms=[mechanism_result(mechanism, seeds) for mechanism in spec.mechanisms],
        bounds=list(BOUNDS),
        run=about_this_run(seconds={"study": seconds}, chunk=0, device=settings.place()),
    )


def _claim(folder: Path, spec: TradeoffSpec) -> None:
    """Make a folder the place of a study, or refuse if it is the place of another one."""
    file, text = folder / "tradeoff.toml", spec.to_toml()
    if file.exists() and file.read_text(encoding="utf-8") != text:
        raise SpecError(f"{folder} holds another study; name a new folder with --out, or remove it")
    if not file.exists():
        write_atomically(file, text.encode())
