"""The correlation between the privacy score of policies and what an attack recovers, all policies in one stack."""

import json
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from gradveil import data
from gradveil._networks import Prepared, prepare, threads_for
from gradveil._scoring import numbers
from gradveil._serving import Granted, serve
from gradveil.client import Client
from gradveil.engine import Runtime
from gradveil.errors import RecordError, SpecError
from gradveil.grid import claim, draw
from gradveil.metrics import PSNR
from gradveil.record import Run, about_this_run
from gradveil.reproducing._audits import to_spec
from gradveil.reproducing._kinds import Means, matches
from gradveil.reproducing._searches import search
from gradveil.reproducing.measuring import Measurement, of_correlation, pearson
from gradveil.reproducing.plans import Part, Wanted
from gradveil.spec import AuditSpec
from gradveil.storage import TensorFolder, write_atomically
from gradveil.streams import Streams
from gradveil.types import Batch, Observation

FILE = "correlation.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class CorrelationRecord:
    """Policies with their privacy scores, and how well each was attacked.

    Args:
        spec: of the audit; its defenses are the policies that the search beside this file drew.
        policies: that were attacked.
        privacy: S_pri of each.
        protected: (policies, images) PSNR against what the model saw, in decibels.
        private: (policies, images) PSNR against the private images.
        accuracy: of the network under attack.
        seed: of all randomness.
        run: date, timings, device, versions.
    """

    spec: dict[str, Any]
    policies: list[str]
    privacy: list[float]
    protected: list[list[float]]
    private: list[list[float]]
    accuracy: float
    seed: int
    run: Run


def run(part: Part, folder: Path, means: Means) -> None:
    """Score random policies by a search, and attack images under each of them, all in one stack."""
    found = search(replace(part, tables={**part.tables, "training": part.table("semi_training")}), folder, means)
    drawn = {entry.policy: entry.privacy for entry in found.scored if entry.origin == "random" and entry.privacy}
    base = to_spec(part, means)
    spec = replace(base, defenses=tuple(f"transform-policy:policy={policy}" for policy in drawn), adaptive=False)
    if len(spec.models) * len(spec.states) * len(spec.attacks) != 1:
        raise SpecError("a correlation takes one model, one state and one attack")
    claim(folder, spec)
    if (folder / FILE).exists():
        return
    made = _attack(spec, list(drawn), [value or 0.0 for value in drawn.values()], folder, means)
    write_atomically(folder / FILE, json.dumps(asdict(made), indent=1, allow_nan=False).encode())
    TensorFolder(folder / "unfinished").clear()


def measure(folder: Path, wanted: Wanted) -> Measurement | None:
    """Read `pearson.protected` or `pearson.private`, the correlation of S_pri and mean PSNR over policies."""
    if not (folder / FILE).exists():
        return None
    made = read(folder / FILE)
    name, _, against = wanted.take.partition(".")
    if name != "pearson" or against not in {"protected", "private"} or not matches({"over": "policies"}, wanted):
        raise SpecError(f"a correlation gives pearson.protected or pearson.private over policies, not '{wanted.take}'")
    pairs = [(s, fmean(row)) for s, row in zip(made.privacy, getattr(made, against), strict=True)]
    if any(len(set(values)) < 2 for values in zip(*pairs, strict=True)):
        return None  # what does not vary has no correlation
    return Measurement(
        value=pearson(pairs),
        interval=of_correlation(pairs),
        records=(folder / FILE,),
        seed=made.seed,
        device=made.run.device,
        date=made.run.date,
    )


def read(file: Path) -> CorrelationRecord:
    """Read the record of a correlation."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        return CorrelationRecord(**{**content, "run": Run(**content["run"])})
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise RecordError(f"{file} is not the record of a correlation ({error}); remove it and run again") from error


def _attack(
    spec: AuditSpec, policies: list[str], privacy: list[float], folder: Path, means: Means
) -> CorrelationRecord:
    settings, began = means.settings, time.monotonic()
    place = settings.place()
    dataset, cells = data.load(spec.dataset, settings.data_dir), spec.cells()
    prepared: Prepared = prepare(spec, cells[0], dataset, folder=folder, settings=settings)
    runtime = Runtime(
        precision=spec.precision,
        chunk=settings.chunk,
        progress=settings.progress,
        store=TensorFolder(folder / "unfinished"),
        threads=threads_for(prepared.model, place),
    )
    batch, attack = draw(spec, dataset).to(place), cells[0].build_attack()
    with runtime.numerics():
        joined, seen = _shared(spec, prepared, batch)
        keys = tuple((victim,) for _ in seen for victim in range(spec.victims))
        streams = Streams(seed=spec.seed, purpose="attack", keys=keys)
        guesses = attack(joined, streams=streams, runtime=runtime).inputs.split(spec.victims)
    metric = PSNR()
    return CorrelationRecord(
        spec=spec.to_dict(),
        policies=policies,
        privacy=privacy,
        protected=[_mean_of(numbers(metric(guess, truth))) for guess, truth in zip(guesses, seen, strict=True)],
        private=[_mean_of(numbers(metric(guess, batch.inputs))) for guess in guesses],
        accuracy=prepared.accuracy,
        seed=spec.seed,
        run=about_this_run(
            seconds={"all": time.monotonic() - began}, chunk=settings.chunk or 0, device=batch.inputs.device
        ),
    )


def _shared(spec: AuditSpec, prepared: Prepared, batch: Batch) -> tuple[Observation, list[Tensor]]:
    """Let the victims share under every policy, and put all of them into one stack; say what the model saw under each.

    A victim keeps the start that it would have alone. Nothing else of the clients is held on to: the updates alone are
    large.
    """
    shown, seen = [], []
    for cell in spec.cells():
        client = Client(model=prepared.model, loss=F.cross_entropy, defenses=cell.build_defenses(), mode=spec.mode)
        granted = Granted(knowledge=spec.knowledge_of(cell))
        step = serve(batch, client, cell.build_attack(), granted=granted, seed=spec.seed).step
        shown.append(step.observation)
        seen.append(step.evidence.protected.inputs.clamp(0, 1))
    update = tuple(torch.cat(tensors) for tensors in zip(*(one.update for one in shown), strict=True))
    labels = [one.labels for one in shown if one.labels is not None]
    return replace(shown[0], update=update, labels=torch.cat(labels) if labels else None), seen


def _mean_of(rows: list[list[float]]) -> list[float]:
    """Return one number per victim."""
    return [fmean(row) for row in rows]
