"""Federations: the accuracy of a model that many clients train together, or each of some clients alone."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor, nn

from gradveil import data
from gradveil.data import Dataset, Split
from gradveil.engine import normalized
from gradveil.errors import RecordError, SpecError
from gradveil.federated import Federation, federate
from gradveil.federated.partition import partition
from gradveil.federated.settings import build_federation
from gradveil.models import build
from gradveil.record import Run, about_this_run
from gradveil.reproducing._kinds import Means, matches, slug
from gradveil.reproducing.measuring import Measurement, of_mean, of_share
from gradveil.reproducing.plans import Part, Wanted
from gradveil.spec import build_defenses
from gradveil.storage import TensorFolder, write_atomically

FILE = "federation.json"
_DEFAULTS: dict[str, Any] = {
    "dataset": "digits", "model": "lenet", "model_seed": 0, "partition": "iid", "clients": 10, "per_class": 0,
    "per_client": 0, "settings": "", "local": "lr=0.1", "rounds": 10, "seed": 0, "pool": "", "alone": 0,
    "defenses": ["none"],
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class FederationRecord:
    """What a federation reached.

    Args:
        spec: everything that is needed to run it again.
        defenses: of every client.
        seed: of all randomness.
        accuracies: on clean test images after the last round, from 0 to 1: of the shared model, or of each of the
            clients that trained alone.
        curve: accuracy after every round, of the shared model or of the first client alone.
        test_images: that it was measured on.
        samples: that each client holds.
        run: date, timings, device, versions.
    """

    spec: dict[str, Any]
    defenses: str
    seed: int
    accuracies: list[float]
    curve: list[float]
    test_images: int
    samples: list[int]
    run: Run


def run(part: Part, folder: Path, means: Means) -> None:
    """Run a federation for every defense of the part's table `federation`."""
    table = {**_DEFAULTS, **part.table("federation")}
    unknown = [name for name in table if name not in _DEFAULTS]
    if unknown:
        raise SpecError(f"[federation] takes {', '.join(_DEFAULTS)}, got {unknown[0]}")
    settings = build_federation(table["settings"], table["local"], rounds=table["rounds"], seed=table["seed"])
    dataset = data.load(table["dataset"], means.settings.data_dir)
    for defenses in table["defenses"]:
        spec = {**table, "defenses": [defenses]}
        place = folder / slug(defenses)
        kept = read(place / FILE) if (place / FILE).exists() else None
        if kept is not None and kept.spec != spec:
            raise SpecError(f"{place} holds a federation of another spec; name a new folder with --out, or remove it")
        if kept is None:
            made = _federate(spec, defenses, settings, dataset, place, means)
            write_atomically(place / FILE, json.dumps(asdict(made), indent=1, allow_nan=False).encode())
            TensorFolder(place / "checkpoint").clear()


def measure(folder: Path, wanted: Wanted) -> Measurement | None:
    """Read the accuracy after the last round of the federation that is meant."""
    if wanted.take != "accuracy":
        raise SpecError(f"a federation gives an accuracy, not '{wanted.take}'")
    found = [(file, read(file)) for file in sorted(folder.glob(f"*/{FILE}"))]
    meant = [(file, made) for file, made in found if matches({"defenses": made.defenses}, wanted)]
    if not meant:
        return None
    file, made = meant[0]
    value = fmean(made.accuracies)
    single = len(made.accuracies) == 1
    return Measurement(
        value=value,
        interval=of_share(value, made.test_images) if single else of_mean(made.accuracies),
        records=(file,),
        seed=made.seed,
        device=made.run.device,
        date=made.run.date,
    )


def read(file: Path) -> FederationRecord:
    """Read the record of a federation."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        return FederationRecord(**{**content, "run": Run(**content["run"])})
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise RecordError(f"{file} is not the record of a federation ({error}); remove it and run again") from error


def _federate(
    spec: dict[str, Any], defenses: str, settings: Federation, dataset: Dataset, place: Path, means: Means
) -> FederationRecord:
    clients = _clients(spec, dataset)
    device = means.settings.place()
    groups = [clients] if not spec["alone"] else [[client] for client in clients[: spec["alone"]]]
    pool = data.load(spec["pool"], means.settings.data_dir).train.inputs().to(device) if spec["pool"] else None
    curves, seconds = [], 0.0
    for number, group in enumerate(groups):
        store = TensorFolder(place / "checkpoint" / str(number))
        done = federate(
            _network(spec, dataset),
            group,
            settings=settings,
            defenses=build_defenses(defenses),
            test=dataset.test,
            pool=pool,
            store=store,
            progress=means.settings.progress,
            device=device,
        )
        curves.append([one.accuracy or 0.0 for one in done.rounds])
        seconds += sum(one.seconds for one in done.rounds)
        store.clear()
    return FederationRecord(
        spec=spec,
        defenses=defenses,
        seed=spec["seed"],
        accuracies=[curve[-1] for curve in curves],
        curve=curves[0],
        test_images=len(dataset.test),
        samples=[len(client) for client in clients],
        run=about_this_run(seconds={"federation": seconds}, chunk=0, device=device),
    )


def _network(spec: dict[str, Any], dataset: Dataset) -> nn.Module:
    plain = build(
        spec["model"], input_shape=dataset.input_shape, num_classes=dataset.num_classes, seed=spec["model_seed"]
    )
    return normalized(plain, dataset.mean, dataset.std)


def _clients(spec: dict[str, Any], dataset: Dataset) -> Sequence[Split]:
    """Hand out the training images, and leave every client no more than the spec says, of each class and in all."""
    parts = partition(dataset.train, spec["partition"], clients=spec["clients"], seed=spec["seed"]).apply(dataset.train)
    if spec["per_class"]:
        parts = tuple(part.select(_first_of_class(part.labels, spec["per_class"])) for part in parts)
    if spec["per_client"]:
        parts = tuple(part.select(range(min(spec["per_client"], len(part)))) for part in parts)
    return parts


def _first_of_class(labels: Tensor, count: int) -> Tensor:
    """Return the places of the first samples of every class, in order."""
    chosen = [(labels == label).nonzero().flatten()[:count] for label in labels.unique()]
    return torch.cat(chosen).sort().values
