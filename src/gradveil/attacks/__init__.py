"""The adversaries, one file each."""

from gradveil.attacks._base import Attack
from gradveil.attacks.dlg import DLG
from gradveil.attacks.inverting_gradients import InvertingGradients
from gradveil.registry import Registry

attacks: Registry[Attack] = Registry("attack", "gradveil.attacks", Attack)  # type: ignore[type-abstract]

__all__ = ["DLG", "Attack", "InvertingGradients", "attacks"]
