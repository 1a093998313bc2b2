"""What obscuring costs in accuracy and hides in pixels: over its weight c, and over architectures."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from gradveil.data import Dataset, Split
from gradveil.defenses import Loda
from gradveil.engine import Progress, Runtime, Store, normalized
from gradveil.engine.runtime import silent
from gradveil.models import build
from gradveil.models.training import Training, train
from gradveil.obscuring._extractor import PUBLISHED
from gradveil.obscuring._generation import obscure_split
from gradveil.storage import TensorFolder

RETRAINING = replace(PUBLISHED, lr=0.05)
"""As LODA's program trains on obscured images."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyRow:
    """One setting of a study.

    Args:
        architecture: that was trained.
        c: weight of looking different; None where images were not obscured.
        accuracy: on clean test images, from 0 to 1.
        mean_psnr: of obscured against private images, in decibels; None where images were not obscured.
        worst_psnr: of the image that is hidden least.
        seconds: of training.
    """

    architecture: str
    c: float | None
    accuracy: float
    mean_psnr: float | None
    worst_psnr: float | None
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """What all settings of a study have in common.

    Args:
        private: whose training images are obscured, and whose test images stay as they are.
        defense: extractor, layers, weight and steps.
        pool: (M, C, H, W) public images to start from.
        training: on obscured images.
        seed: of obscuring.
        runtime: of obscuring; its `store` keeps obscured stacks by their content.
        device: where to compute.
        progress: of training.
        folder: keeps the state of every training after every epoch; None for nowhere.
    """

    private: Dataset
    defense: Loda
    pool: Tensor | None
    training: Training = RETRAINING
    seed: int = 0
    runtime: Runtime | None = None
    device: torch.device | str = "cpu"
    progress: Progress = silent
    folder: Path | None = None

    def obscured(self, c: float | None = None) -> Split:
        """Return the obscured training images, for another weight if one is given."""
        defense = self.defense if c is None else replace(self.defense, c=c)
        pool = None if self.pool is None else self.pool.to(self.device)
        return obscure_split(
            self.private.train, defense, pool=pool, seed=self.seed, runtime=self.runtime, device=self.device
        )

    def check(self, architectures: Sequence[str], weights: Sequence[float] = ()) -> None:
        """Refuse what cannot be built, before any of it is trained."""
        for architecture in architectures:
            self._network(architecture)
        for c in weights:
            replace(self.defense, c=c)
        sample = self.private.train.inputs(range(1))
        self.defense.features(sample).outputs(sample)

    def train(self, seen: Split, architecture: str, *, c: float | None) -> StudyRow:
        """Train on some images in the place of the private ones, and measure on clean test images."""
        done = train(
            self._network(architecture),
            seen,
            training=self.training,
            test=self.private.test,
            progress=self.progress,
            store=self._store(architecture, c),
            device=self.device,
        )
        hidden = None if c is None else decibels(seen, self.private.train)
        return StudyRow(
            architecture=architecture,
            c=c,
            accuracy=done.accuracy or 0.0,
            mean_psnr=None if hidden is None else float(hidden.mean()),
            worst_psnr=None if hidden is None else float(hidden.max()),
            seconds=done.seconds,
        )

    def _network(self, architecture: str) -> nn.Module:
        shape, classes = self.private.input_shape, self.private.num_classes
        plain = build(architecture, input_shape=shape, num_classes=classes, seed=self.training.seed)
        return normalized(plain, self.private.mean, self.private.std)

    def _store(self, architecture: str, c: float | None) -> Store | None:
        if self.folder is None:
            return None
        setting = re.sub(r"[^a-zA-Z0-9.]+", "-", f"{architecture} {'plain' if c is None else c}")
        return TensorFolder(self.folder / f"training-{setting}")


def study_weights(study: Study, architecture: str, weights: Sequence[float]) -> list[StudyRow]:
    """Train without obscuring and with it, once for every weight c (the paper's Tables 5 and 6).

    Args:
        study: what all have in common.
        architecture: to train.
        weights: values of c.
    """
    study.check([architecture], weights)
    rows = [study.train(study.private.train, architecture, c=None)]
    return [*rows, *(study.train(study.obscured(c), architecture, c=c) for c in weights)]


def study_architectures(study: Study, architectures: Sequence[str]) -> list[StudyRow]:
    """Train several architectures without obscuring and with it, on images obscured once (the paper's Table 7).

    Args:
        study: what all have in common.
        architectures: to train, as `name:field=value`.
    """
    study.check(architectures)
    seen, c = study.obscured(), study.defense.descent.c
    return [
        study.train(images, architecture, c=weight)
        for architecture in architectures
        for images, weight in ((study.private.train, None), (seen, c))
    ]


def decibels(seen: Split, private: Split) -> Tensor:
    """Return (N,), the PSNR of every image against the private one."""
    errors = [
        (a.double() - b.double()).div(255).square().flatten(1).mean(1)
        for a, b in zip(seen.images.split(1000), private.images.split(1000), strict=True)
    ]
    return -10 * torch.cat(errors).clamp_min(1e-12).log10()
