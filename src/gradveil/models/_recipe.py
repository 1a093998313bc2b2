"""The settings of a training, checked, and those that have a name."""

import math
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal, TypeAlias

from gradveil.engine import Precision
from gradveil.models._loader import Augment
from gradveil.models._schedules import Schedule

OptimizerName: TypeAlias = Literal["sgd", "adam"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """How a network is trained.

    Args:
        epochs: passes over the training set.
        batch_size: images of one step, or all where there are fewer. Images that do not fill a last batch are left
            out of an epoch; as every epoch has an order of its own, they are others each time.
        optimizer: `sgd` or `adam`.
        lr: highest learning rate.
        momentum: of SGD, from 0 to below 1.
        nesterov: use Nesterov momentum in SGD.
        weight_decay: times the weights, is added to the gradient.
        schedule: `one-cycle`, `steps` (a tenth after 3/8, 5/8 and 7/8), `cosine` or `constant`, step by step.
        augment: `none`, or `crop-flip`: random crops after padding by 4, and mirror images.
        precision: `float32`, `tf32` or `bf16` (autocast; weights stay as they are).
        channels_last: lay images out with channels last, which suits the matrix units of a GPU.
        compile: use `torch.compile` on CUDA, for steps without a step defense; elsewhere nothing is compiled.
        label_smoothing: share of each label that is spread over all classes; needs a loss that takes soft labels.
        seed: of order, augmentation, random layers and defenses.
    """

    epochs: int = 60
    batch_size: int = 128
    optimizer: OptimizerName = "sgd"
    lr: float = 0.1
    momentum: float = 0.9
    nesterov: bool = True
    weight_decay: float = 5e-4
    schedule: Schedule = "one-cycle"
    augment: Augment = "none"
    precision: Precision = "float32"
    channels_last: bool = False
    compile: bool = False
    label_smoothing: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name, kind in _NAMED.items():
            if getattr(self, name) not in typing.get_args(kind):
                options = ", ".join(typing.get_args(kind))
                raise ValueError(f"{name} must be one of {options}, got {getattr(self, name)!r}")
        for name in ("epochs", "batch_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not 0 < self.lr < math.inf:
            raise ValueError(f"lr must be above 0, got {self.lr}")
        if not 0 <= self.weight_decay < math.inf:
            raise ValueError(f"weight_decay must be at least 0, got {self.weight_decay}")
        for name in ("momentum", "label_smoothing"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 0 and below 1, got {getattr(self, name)}")
        if self.optimizer == "sgd" and self.nesterov and self.momentum == 0:
            raise ValueError("nesterov needs a momentum above 0, got 0; set a momentum or nesterov=False")


_NAMED: Final[Mapping[str, object]] = {
    "optimizer": OptimizerName,
    "schedule": Schedule,
    "augment": Augment,
    "precision": Precision,
}

PRESETS: Final[Mapping[str, Training]] = MappingProxyType(
    {
        "fast": Training(
            epochs=60,
            batch_size=512,
            lr=0.4,
            schedule="one-cycle",
            augment="crop-flip",
            precision="bf16",
            channels_last=True,
        ),
        "conservative": Training(epochs=200, batch_size=128, lr=0.1, schedule="steps", augment="crop-flip"),
    }
)
"""Settings by name.

`fast`: 60 epochs with large batches for one GPU, meant for ResNet20-4 on CIFAR-100. `conservative`: that of the
transformation search (ATS) and of Inverting Gradients, which takes 120 epochs; their code drops the rate at the end of
an epoch, up to one epoch before 3/8 and 5/8 of the training.
"""
