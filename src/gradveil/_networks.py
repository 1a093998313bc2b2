"""The networks of a grid: built, trained or loaded once, and kept in the run folder."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gradveil import training_record
from gradveil._public_material import client_pool
from gradveil.client import Client, sent_model
from gradveil.defenses import DataDefense, StepDefense
from gradveil.engine import Runtime, normalized
from gradveil.models import build, checkpoints
from gradveil.models.training import evaluate, train
from gradveil.record import Network
from gradveil.spec import build_defenses
from gradveil.storage import TensorFolder, cannot_write, content_hash, write_atomically

if TYPE_CHECKING:
    from gradveil.data import Dataset
    from gradveil.defenses import Defense
    from gradveil.grid import Settings
    from gradveil.spec import AuditSpec, Cell


_SMALL = 200_000  # parameters
_NO_DEFENSE = "no defense"
_CHECKPOINT = "checkpoint:"


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A network as the server sends it.

    Args:
        model: on the device, in eval mode, eating pixels.
        accuracy: on the clean test split, from 0 to 1.
        accuracy_of: what that accuracy belongs to.
        training: what the record beside a checkpoint says; empty if there is none.
        sha256: of the checkpoint; empty for others.
    """

    model: nn.Module
    accuracy: float
    accuracy_of: str
    training: dict[str, Any] = field(default_factory=dict)
    sha256: str = ""

    def describe(self, cell: Cell, spec: AuditSpec) -> Network:
        """Write the network down."""
        return Network(
            spec=cell.model,
            state=cell.state,
            mode=spec.mode,
            parameters=sum(p.numel() for p in self.model.parameters()),
            accuracy=self.accuracy,
            accuracy_of=self.accuracy_of,
            training=self.training,
            sha256=self.sha256,
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
    model, kept = model.to(device).eval(), settings.networks or folder / "models"
    if cell.state.startswith(_CHECKPOINT):
        return _stored(_file_of(cell.state), dataset, model, kept)
    if cell.state == "untrained":
        return Prepared(model=model, accuracy=_accuracy(model, dataset, kept), accuracy_of="the untrained network")
    return _trained(spec, cell, dataset, model, folder=folder, settings=settings)


def checkpoint_hash(state: str) -> str:
    """Return the SHA-256 of the checkpoint that a state names; empty if it names none, or none is there.

    Example:
        >>> checkpoint_hash("untrained")
        ''
    """
    if not state.startswith(_CHECKPOINT) or not _file_of(state).is_file():
        return ""
    return hashlib.sha256(_file_of(state).read_bytes()).hexdigest()


def _file_of(state: str) -> Path:
    return Path(state.removeprefix(_CHECKPOINT)).expanduser()


def _accuracy(model: nn.Module, dataset: Dataset, kept: Path) -> float:
    """Measure the accuracy of a network once for all cells that attack it, which it may take longer than they do."""
    split, weights = dataset.test, model.state_dict()
    made_of = content_hash(repr(model), *weights, *weights.values(), split.images, split.labels)
    file = kept / f"accuracy-{made_of}.txt"
    try:
        return float(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):  # not measured yet, or not to the end
        accuracy = evaluate(model, split)
    write_atomically(file, repr(accuracy).encode())
    return accuracy


def _stored(path: Path, dataset: Dataset, model: nn.Module, kept: Path) -> Prepared:
    """Load a checkpoint, and cite the record beside it."""
    words = checkpoints.read_about(path).get("defenses", "")
    made_with = words or "an unknown training"
    model, _ = _load(path, model, build_defenses("none" if words in {"", _NO_DEFENSE} else words))
    record = training_record.find(path)
    cited = "" if record is None else f"; its training: {training_record.beside(path).name}"
    return Prepared(
        model=model,
        accuracy=_accuracy(model, dataset, kept),
        accuracy_of=f"the checkpoint ({made_with}){cited}",
        training={} if record is None else asdict(record),
        sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
    )


def _trained(
    spec: AuditSpec, cell: Cell, dataset: Dataset, model: nn.Module, *, folder: Path, settings: Settings
) -> Prepared:
    defended = cell.state == "trained-with-defense"
    defenses = cell.build_defenses() if defended else ()
    words = cell.defenses if defended and defenses else _NO_DEFENSE
    kept, pool = settings.networks or folder / "models", _pool(spec, defenses, dataset, settings)
    path = kept / f"{_key(spec, cell, words, pooled=pool is not None)}.safetensors"
    store = TensorFolder(path.with_suffix(".unfinished"))
    if path.exists():
        model, about = _load(path, model, defenses)
        store.clear()
        return Prepared(model=model, accuracy=float(about["accuracy"]), accuracy_of=about["accuracy_of"])

    training = replace(spec.training, seed=spec.seed)
    with Runtime(threads=threads_for(model, settings.place()), deterministic=spec.deterministic).numerics():
        done = train(
            model,
            dataset.train,
            training=training,
            defenses=defenses,
            test=dataset.test,
            pool=pool,
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


def _load(path: Path, model: nn.Module, defenses: tuple[Defense, ...]) -> tuple[nn.Module, dict[str, str]]:
    """Fill the network as the server sends it under some defenses; the plain one if that is what was stored."""
    sent = sent_model(Client(model=model, loss=F.cross_entropy, defenses=defenses))
    try:
        return sent, checkpoints.load(path, sent)
    except checkpoints.CheckpointError:
        if sent is model:
            raise
        return model, checkpoints.load(path, model)


def _pool(spec: AuditSpec, defenses: tuple[Defense, ...], dataset: Dataset, settings: Settings) -> Tensor | None:
    """Return what defenses of the data or the step draw from while training: the spec's pool, or else own images."""
    if not any(isinstance(defense, DataDefense | StepDefense) for defense in defenses):
        return None
    return client_pool(spec if spec.pool else replace(spec, pool="train"), dataset, data_dir=settings.data_dir)


def _key(spec: AuditSpec, cell: Cell, defenses: str, *, pooled: bool) -> str:
    parts = [spec.dataset, cell.model, defenses, spec.seed, spec.model_seed, spec.normalize, asdict(spec.training)]
    parts += [spec.pool or "train"] if pooled else []
    return hashlib.sha256(json.dumps(parts, default=str).encode()).hexdigest()[:16]
