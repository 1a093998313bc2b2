"""The defenses, one file each."""

from gradveil.defenses._base import (
    Adversary,
    DataDefense,
    Defense,
    ModelDefense,
    Shared,
    StepDefense,
    StepResult,
    UpdateDefense,
)
from gradveil.defenses._combining import check_combination
from gradveil.defenses._network import StackedNetwork
from gradveil.defenses._polarization import polarization_cosines
from gradveil.defenses.central_dp import CentralDP
from gradveil.defenses.clipping import Clipping
from gradveil.defenses.dcs2 import DCS2
from gradveil.defenses.dp_sgd import DPSGD
from gradveil.defenses.gaussian_noise import GaussianNoise
from gradveil.defenses.instahide import InstaHide
from gradveil.defenses.laplacian_noise import LaplacianNoise
from gradveil.defenses.local_dp import LocalDP
from gradveil.defenses.loda import Loda
from gradveil.defenses.mixup import Mixup
from gradveil.defenses.ppdl import PPDL
from gradveil.defenses.precode import Precode
from gradveil.defenses.pruning import Pruning
from gradveil.defenses.quantization import Quantization
from gradveil.defenses.random_policy import RandomPolicy
from gradveil.defenses.sign import Sign
from gradveil.defenses.soteria import Soteria
from gradveil.defenses.spn import SPN
from gradveil.defenses.top_k import TopK
from gradveil.defenses.transform_policy import TransformPolicy
from gradveil.registry import Registry

defenses: Registry[Defense] = Registry("defense", "gradveil.defenses", Defense)

__all__ = [
    "DCS2",
    "DPSGD",
    "PPDL",
    "SPN",
    "Adversary",
    "CentralDP",
    "Clipping",
    "DataDefense",
    "Defense",
    "GaussianNoise",
    "InstaHide",
    "LaplacianNoise",
    "LocalDP",
    "Loda",
    "Mixup",
    "ModelDefense",
    "Precode",
    "Pruning",
    "Quantization",
    "RandomPolicy",
    "Shared",
    "Sign",
    "Soteria",
    "StackedNetwork",
    "StepDefense",
    "StepResult",
    "TopK",
    "TransformPolicy",
    "UpdateDefense",
    "check_combination",
    "defenses",
    "polarization_cosines",
]
