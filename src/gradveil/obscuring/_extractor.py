"""A feature extractor: trained on a public data set, kept in a file, and given to the defense that names it."""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TypeVar

import torch

from gradveil.data import Dataset
from gradveil.defenses import Defense, Loda
from gradveil.defenses._obscuring_features import Extractor
from gradveil.engine import Progress, Store
from gradveil.engine.runtime import silent
from gradveil.models import build, checkpoints
from gradveil.models.checkpoints import CheckpointError
from gradveil.models.training import Pace, Training, train
from gradveil.storage import content_hash

T = TypeVar("T")
PUBLISHED = Training(epochs=200, batch_size=128, lr=0.1, nesterov=False, schedule="steps", augment="crop-flip")
"""The settings of LODA's program, but for its two milestones at half and three quarters of the epochs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedExtractor:
    """What training an extractor gives.

    Args:
        extractor: called after its architecture and the data set.
        about: what its file remembers of it.
        accuracy: on public test images, from 0 to 1.
        seconds: of training.
    """

    extractor: Extractor
    about: dict[str, str]
    accuracy: float
    seconds: float


def train_extractor(
    public: Dataset,
    *,
    architecture: str = "resnet18",
    training: Training = PUBLISHED,
    progress: Progress = silent,
    store: Store | None = None,
    pace: Pace | None = None,
    device: torch.device | str | None = None,
) -> TrainedExtractor:
    """Train a network on a public set, without normalization, as LODA does.

    Args:
        public: whose training images and classes teach the features.
        architecture: any model with convolutions, as `name:field=value`.
        training: the settings.
        progress: called after every step.
        store: keeps the state after every epoch.
        pace: how often the network is measured and kept, where every epoch is too often.
        device: where to train.
    """
    shape, classes = public.input_shape, public.num_classes
    model = build(architecture, input_shape=shape, num_classes=classes, seed=training.seed)
    done = train(
        model,
        public.train,
        training=training,
        test=public.test,
        progress=progress,
        store=store,
        pace=pace,
        device=device,
    )
    about = {
        "model": architecture,
        "dataset": public.name,
        "input_shape": json.dumps(shape),
        "num_classes": str(classes),
        "mean": json.dumps([0.0] * shape[0]),
        "std": json.dumps([1.0] * shape[0]),
        "accuracy": repr(done.accuracy),
        "training": json.dumps(asdict(training)),
    }
    name = f"{architecture.partition(':')[0]}-{public.name}"
    return TrainedExtractor(
        extractor=Extractor(name, done.model.eval(), channels=shape[0]),
        about=about,
        accuracy=done.accuracy or 0.0,
        seconds=done.seconds,
    )


def save_extractor(trained: TrainedExtractor, path: Path | str) -> None:
    """Write a trained extractor to a safetensors file."""
    assert trained.extractor.model is not None
    checkpoints.save(trained.extractor.model, path, about={**trained.about, "torch": torch.__version__})


def load_extractor(path: Path | str) -> Extractor:
    """Read an extractor, on the CPU and in eval mode; its name is the path."""
    about = checkpoints.read_about(Path(path).expanduser())
    try:
        channels, height, width = json.loads(about["input_shape"])
        shape, classes = (int(channels), int(height), int(width)), int(about["num_classes"])
        plain = {*json.loads(about["mean"])} <= {0.0} and {*json.loads(about["std"])} <= {1.0}
        architecture = about["model"]
    except (KeyError, ValueError) as error:
        raise CheckpointError(f"{path} holds no extractor; make one with `gradveil train extractor`") from error
    if not plain:
        raise CheckpointError(
            f"{path} eats standardized pixels, an extractor plain ones; use `gradveil train extractor`"
        )
    model = build(architecture, input_shape=shape, num_classes=classes)
    checkpoints.load(Path(path).expanduser(), model)
    return Extractor(str(path), model.eval(), channels=shape[0])


def mark_of(defenses: Iterable[Defense]) -> str:
    """Return a hash of the extractor's weights where LODA is among some defenses; empty where nothing was trained.

    Records hold it beside the spec, which knows an extractor by its path alone.

    Example:
        >>> mark_of([Loda(steps=3)])
        ''
    """
    given = [defense.extractor for defense in defenses if isinstance(defense, Loda) and defense.extractor]
    states = [one.model.state_dict() for one in given if one.model is not None]
    return content_hash(*(part for state in states for pair in state.items() for part in pair)) if states else ""


def bound(method: T) -> T:
    """Load the extractor that a defense names by its path; everything else stays as it is.

    Example:
        >>> bound(Loda(steps=3)).steps
        3
    """
    if isinstance(method, Loda) and method.extractor is not None and method.extractor.model is None:
        return replace(method, extractor=load_extractor(method.extractor.name))
    return method
