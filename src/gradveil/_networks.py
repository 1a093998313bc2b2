"""The networks of a grid: built, trained or loaded once, and kept in the run folder."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import nn

from gradveil.engine import Runtime, normalized
from gradveil.models import build, checkpoints
from gradveil.models.training import evaluate, train
from gradveil.record import Network
from gradveil.storage import TensorFolder, cannot_write

if TYPE_CHECKING:
    from gradveil.data import Dataset
    from gradveil.grid import Settings
    from gradveil.spec import AuditSpec, Cell


_SMALL = 200_000  # parameters


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A network as the server sends it.

    Args:
        model: on the device, in eval mode, eating pixels.
        accuracy: on the clean test split, from 0 to 1.
        accuracy_of: what that accuracy belongs to.
    """

    model: nn.Module
    accuracy: float
    accuracy_of: str

    def describe(self, cell: Cell, spec: AuditSpec) -> Network:
        """Write the network down."""
        return Network(
            spec=cell.model,
            state=cell.state,
            mode=spec.mode,
            parameters=sum(p.numel() for p in self.model.parameters()),
            accuracy=self.accuracy,
            accuracy_of=self.accuracy_of,
        )


def threads_for(model: nn.Module, device: torch.device) -> int | None:
    """Return 1 for a small network on a CPU: its layers are too short for threads to wait for each other."""
    small = sum(p.numel() for p in model.parameters()) < _SMALL
    return 1 if small and device.type == "cpu" else None


def prepare(spec: AuditSpec, cell: Cell, dataset: Dataset, *, folder: Path, settings: Settings) -> Prepared:
    """Build the network of a cell and bring it to its state."""
    device = settings.place()
    plain = build(cell.model, input_shape=dataset.input_shape, num_classes=dataset.num_classes, seed=spec.model_seed)
    model = normalized(plain, dataset.mean, dataset.std) if spec.normalize else plain
    model = model.to(device).eval()
    if cell.state.startswith("checkpoint:"):
        path = Path(cell.state.partition(":")[2]).expanduser()
        about = checkpoints.load(path, model)
        made_with = about.get("defenses", "") or "an unknown training"
        return Prepared(
            model=model, accuracy=evaluate(model, dataset.test), accuracy_of=f"the checkpoint ({made_with})"
        )
    if cell.state == "untrained":
        return Prepared(model=model, accuracy=evaluate(model, dataset.test), accuracy_of="the untrained network")
    return _trained(spec, cell, dataset, model, folder=folder, settings=settings)


def _trained(
    spec: AuditSpec, cell: Cell, dataset: Dataset, model: nn.Module, *, folder: Path, settings: Settings
) -> Prepared:
    defended = cell.state == "trained-with-defense"
    defenses = cell.build_defenses() if defended else ()
    words = cell.defenses if defended and defenses else "no defense"
    path = folder / "models" / f"{_key(spec, cell, words)}.safetensors"
    store = TensorFolder(path.with_suffix(".unfinished"))
    if path.exists():
        about = checkpoints.load(path, model)
        store.clear()
        return Prepared(model=model, accuracy=float(about["accuracy"]), accuracy_of=about["accuracy_of"])

    training = replace(spec.training, seed=spec.seed)
    with Runtime(threads=threads_for(model, settings.place())).numerics():
        done = train(
            model,
            dataset.train,
            training=training,
            defenses=defenses,
            test=dataset.test,
            progress=settings.progress,
            store=store,
            device=settings.place(),
        )
    accuracy = done.accuracy or 0.0
    about = {
        "model": cell.model,
        "dataset": spec.dataset,
        "defenses": words,
        "accuracy": repr(accuracy),
        "accuracy_of": f"this network, trained with {words}",
        "training": json.dumps(asdict(training)),
        "torch": torch.__version__,
    }
    try:
        checkpoints.save(done.model, path, about=about)
    except OSError as error:
        raise cannot_write(path, error) from error
    store.clear()
    return Prepared(model=done.model, accuracy=accuracy, accuracy_of=about["accuracy_of"])


def _key(spec: AuditSpec, cell: Cell, defenses: str) -> str:
    parts = [spec.dataset, cell.model, defenses, spec.seed, spec.model_seed, spec.normalize, asdict(spec.training)]
    return hashlib.sha256(json.dumps(parts, default=str).encode()).hexdigest()[:16]
