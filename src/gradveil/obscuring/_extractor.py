"""A feature extractor, trained on a public data set."""

import torch

from gradveil.data import Dataset
from gradveil.defenses._obscuring_features import Extractor
from gradveil.engine import Progress, Store
from gradveil.engine.runtime import silent
from gradveil.models import build
from gradveil.models.training import Training, train

PUBLISHED = Training(epochs=200, batch_size=128, lr=0.1, nesterov=False, schedule="steps", augment="crop-flip")
"""The settings of LODA's program, but for its two milestones at half and three quarters of the epochs."""


def train_extractor(
    public: Dataset,
    *,
    architecture: str = "resnet18",
    training: Training = PUBLISHED,
    progress: Progress = silent,
    store: Store | None = None,
    device: torch.device | str | None = None,
) -> Extractor:
    """Train a network on a public set, without normalization, as LODA does.

    Args:
        public: whose training images and classes teach the features.
        architecture: any model with convolutions, as `name:field=value`.
        training: the settings.
        progress: called after every step.
        store: keeps the state after every epoch.
        device: where to train.

    Returns:
        The network, called after its architecture and the data set.
    """
    shape, classes = public.input_shape, public.num_classes
    model = build(architecture, input_shape=shape, num_classes=classes, seed=training.seed)
    trained = train(
        model, public.train, training=training, test=public.test, progress=progress, store=store, device=device
    )
    return Extractor(f"{architecture.partition(':')[0]}-{public.name}", trained.model.eval())
