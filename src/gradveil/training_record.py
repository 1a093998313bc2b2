"""The record beside a checkpoint: how the network was trained, and what came of it."""

import hashlib
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from gradveil.data import Dataset
from gradveil.models import checkpoints
from gradveil.models.training import Trained, Training
from gradveil.record import about_this_run
from gradveil.storage import cannot_write, write_atomically

FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRecord:
    """How a network was trained.

    Args:
        model: spec string.
        dataset: spec string.
        defenses: that it was trained under, in words.
        recipe: every setting of the training.
        seed: of the training.
        accuracy: on the clean test split, from 0 to 1.
        history: loss and accuracy of every epoch.
        seconds: of training and testing.
        device: name.
        date: UTC, ISO format.
        versions: of packages.
        checkpoint: file name of the network.
        sha256: of that file.
        extractor: hash of the weights of LODA's extractor; empty without one.
        format: of this record.
    """

    model: str
    dataset: str
    defenses: str
    recipe: dict[str, Any]
    seed: int
    accuracy: float | None
    history: list[dict[str, float | None]] = field(default_factory=list)
    seconds: float
    device: str
    date: str
    versions: dict[str, str]
    checkpoint: str
    sha256: str
    extractor: str = ""
    format: int = FORMAT


def keep(
    done: Trained,
    path: Path,
    *,
    model: str,
    dataset: str,
    loaded: Dataset,
    defenses: str,
    training: Training,
    extractor: str = "",
) -> TrainingRecord:
    """Write a trained network to a checkpoint, and its record beside it as JSON, each whole or not at all.

    Args:
        done: the training.
        path: of the checkpoint; the record has the same name and ends in `.json`.
        model: spec string.
        dataset: spec string.
        loaded: the data set.
        defenses: in words.
        training: the settings.
        extractor: hash of the weights of LODA's extractor; empty without one.
    """
    about = {
        "model": model,
        "dataset": dataset,
        "defenses": defenses,
        "accuracy": repr(done.accuracy),
        "training": json.dumps(asdict(training)),
        "torch": torch.__version__,
        "input_shape": json.dumps(loaded.input_shape),
        "num_classes": str(loaded.num_classes),
        "mean": json.dumps(loaded.mean),
        "std": json.dumps(loaded.std),
    }
    try:
        checkpoints.save(done.model, path, about=about)
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise cannot_write(path, error) from error
    run = about_this_run(seconds={}, chunk=0, device=next(done.model.parameters()).device)
    record = TrainingRecord(
        model=model,
        dataset=dataset,
        defenses=defenses,
        recipe=asdict(training),
        seed=training.seed,
        accuracy=done.accuracy,
        history=[{"loss": epoch.loss, "accuracy": epoch.accuracy} for epoch in done.history],
        seconds=round(done.seconds, 3),
        device=run.device,
        date=run.date,
        versions=run.versions,
        checkpoint=path.name,
        sha256=digest,
        extractor=extractor,
    )
    write_atomically(beside(path), json.dumps(asdict(record), indent=1, allow_nan=False).encode())
    return record


def beside(path: Path) -> Path:
    """Return where the record of a checkpoint lies.

    Example:
        >>> beside(Path("nets/model.safetensors")).name
        'model.json'
    """
    return path.with_suffix(".json")


def find(path: Path) -> TrainingRecord | None:
    """Read the record beside a checkpoint; None if there is none, or one of other bytes or of another program."""
    try:
        record = TrainingRecord(**json.loads(beside(path).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None
    return record if record.sha256 == hashlib.sha256(path.read_bytes()).hexdigest() else None
