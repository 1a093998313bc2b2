"""The adversaries, one file each."""

from gradveil.attacks._active import ActiveAttack
from gradveil.attacks._base import Attack
from gradveil.attacks._decoders import Decoder, Decoding, Encodings, decoders
from gradveil.attacks._labels import recover as recover_labels
from gradveil.attacks._noisy_system import Certificate
from gradveil.attacks._settings import attack_each
from gradveil.attacks.analytic import Analytic
from gradveil.attacks.bayes_optimal import BayesOptimal
from gradveil.attacks.dlg import DLG
from gradveil.attacks.extra_image import ExtraImage
from gradveil.attacks.fishing import Fishing
from gradveil.attacks.generative import Generative
from gradveil.attacks.gradient_matching import GradientMatching
from gradveil.attacks.idlg import IDLG
from gradveil.attacks.imprint import Imprint, expected_singletons
from gradveil.attacks.inverting_gradients import InvertingGradients
from gradveil.attacks.loda_aware import LodaAware
from gradveil.attacks.policy_aware import PolicyAware
from gradveil.attacks.r_gap import RGAP
from gradveil.attacks.see_through_gradients import SeeThroughGradients
from gradveil.attacks.spear import SPEAR
from gradveil.attacks.surrogate_head import SurrogateHead
from gradveil.attacks.trap_weights import TrapWeights
from gradveil.registry import Registry

attacks: Registry[Attack] = Registry("attack", "gradveil.attacks", Attack)  # type: ignore[type-abstract]

__all__ = [
    "DLG",
    "IDLG",
    "RGAP",
    "SPEAR",
    "ActiveAttack",
    "Analytic",
    "Attack",
    "BayesOptimal",
    "Certificate",
    "Decoder",
    "Decoding",
    "Encodings",
    "ExtraImage",
    "Fishing",
    "Generative",
    "GradientMatching",
    "Imprint",
    "InvertingGradients",
    "LodaAware",
    "PolicyAware",
    "SeeThroughGradients",
    "SurrogateHead",
    "TrapWeights",
    "attack_each",
    "attacks",
    "decoders",
    "expected_singletons",
    "recover_labels",
]
