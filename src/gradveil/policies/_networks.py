"""The two networks of a search: one trained a little, one not at all."""

import hashlib
import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from torch import nn

from gradveil.data import Dataset, Split
from gradveil.engine import Progress, normalized
from gradveil.engine.runtime import silent
from gradveil.errors import RecordError
from gradveil.models import build, checkpoints
from gradveil.models.training import PRESETS, Training, train
from gradveil.storage import TensorFolder, content_hash
from gradveil.streams import Streams

SEMI_TRAINING = replace(PRESETS["conservative"], epochs=50)
"""The paper's: 50 epochs; with random crops and mirror images, which it does not mention."""

SHARE = 0.1
"""Of the training set."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Networks:
    """What policies are scored with.

    Args:
        semi_trained: for the privacy score, in eval mode, eating pixels.
        untrained: the same network as it began, for the accuracy score.
        accuracy: of the semi-trained network on clean test images, from 0 to 1.
    """

    semi_trained: nn.Module
    untrained: nn.Module
    accuracy: float


def make_networks(
    dataset: Dataset,
    model: str,
    *,
    seed: int,
    folder: Path | None,
    device: torch.device,
    training: Training = SEMI_TRAINING,
    progress: Progress = silent,
) -> Networks:
    """Build both networks, or take them from a folder where they were kept.

    Args:
        dataset: of which a tenth is trained on, drawn by the seed.
        model: such as `resnet20-4`.
        seed: of weights, images and training.
        folder: where networks are kept; None for nowhere.
        device: where to train, and where they lie afterwards.
        training: settings; its seed is replaced.
        progress: of training.
    """
    training = replace(training, seed=seed)
    plain = build(model, input_shape=dataset.input_shape, num_classes=dataset.num_classes, seed=seed)
    untrained = normalized(plain, dataset.mean, dataset.std).to(device).eval()
    file = folder / f"semi-trained-{_key(dataset, model, training)}.safetensors" if folder else None
    if file and file.exists():
        trained = normalized(plain, dataset.mean, dataset.std).to(device).eval()
        about = checkpoints.load(file, trained)
        if "accuracy" not in about:
            raise RecordError(f"{file} does not say its accuracy; remove it, and the search trains its network anew")
        return Networks(semi_trained=trained, untrained=untrained, accuracy=float(about["accuracy"]))

    store = TensorFolder(file.with_suffix(".unfinished")) if file else None
    part = tenth(dataset.train, seed=seed)
    done = train(untrained, part, training=training, test=dataset.test, progress=progress, store=store, device=device)
    accuracy = done.accuracy or 0.0
    if file:
        about = {
            "model": model,
            "dataset": dataset.name,
            "defenses": "no defense",
            "images": str(len(part)),
            "accuracy": repr(accuracy),
            "training": json.dumps(asdict(training)),
        }
        checkpoints.save(done.model, file, about=about)
        checkpoints.save(untrained, file.with_name(file.name.replace("semi-trained", "untrained")), about=about)
    if store:
        store.clear()
    return Networks(semi_trained=done.model, untrained=untrained, accuracy=accuracy)


def known_as(dataset: Dataset) -> str:
    """Return the name of a data set; of somebody's own images, which share a name with others, also what they are."""
    if not dataset.name.startswith("folder"):
        return dataset.name
    return f"{dataset.name}, {content_hash(*dataset.train.contents(), *dataset.test.contents())[:12]}"


def tenth(split: Split, *, seed: int) -> Split:
    """Draw a tenth of a split."""
    order = Streams(seed=seed, purpose="semi-training").bind(1).permutation("images", len(split))[0]
    return split.select(order[: max(round(len(split) * SHARE), 1)])


def _key(dataset: Dataset, model: str, training: Training) -> str:
    parts = [known_as(dataset), len(dataset.train), model, asdict(training)]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]
