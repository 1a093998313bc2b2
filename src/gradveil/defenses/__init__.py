"""The defenses, one file each."""

from gradveil.defenses._base import (
    Adversary,
    DataDefense,
    Defense,
    ModelDefense,
    StepDefense,
    StepResult,
    UpdateDefense,
)
from gradveil.defenses.gaussian_noise import GaussianNoise
from gradveil.defenses.laplacian_noise import LaplacianNoise
from gradveil.defenses.pruning import Pruning
from gradveil.registry import Registry

defenses: Registry[Defense] = Registry("defense", "gradveil.defenses", Defense)

__all__ = [
    "Adversary",
    "DataDefense",
    "Defense",
    "GaussianNoise",
    "LaplacianNoise",
    "ModelDefense",
    "Pruning",
    "StepDefense",
    "StepResult",
    "UpdateDefense",
    "defenses",
]
