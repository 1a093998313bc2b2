"""The adversaries, one file each."""

from gradveil.attacks._active import ActiveAttack
from gradveil.attacks._base import Attack
from gradveil.attacks._labels import recover as recover_labels
from gradveil.attacks._noisy_system import Certificate
from gradveil.attacks.analytic import Analytic
from gradveil.attacks.dlg import DLG
from gradveil.attacks.gradient_matching import GradientMatching
from gradveil.attacks.idlg import IDLG
from gradveil.attacks.imprint import Imprint, expected_singletons
from gradveil.attacks.inverting_gradients import InvertingGradients
from gradveil.attacks.spear import SPEAR
from gradveil.attacks.trap_weights import TrapWeights
from gradveil.registry import Registry

attacks: Registry[Attack] = Registry("attack", "gradveil.attacks", Attack)  # type: ignore[type-abstract]

__all__ = [
    "DLG",
    "IDLG",
    "SPEAR",
    "ActiveAttack",
    "Analytic",
    "Attack",
    "Certificate",
    "GradientMatching",
    "Imprint",
    "InvertingGradients",
    "TrapWeights",
    "attacks",
    "expected_singletons",
    "recover_labels",
]
