"""Networks: the architectures of the papers, how their weights start, how their layers are named and stored."""

from gradveil.models import checkpoints, layers, zoo
from gradveil.models._base import Architecture, architectures, build
from gradveil.models._init import Init
from gradveil.models.layers import (
    LayerSummary,
    Tap,
    describe,
    find,
    first_linear,
    last_linear,
    parameters_of,
    run_with,
)

__all__ = [
    "Architecture",
    "Init",
    "LayerSummary",
    "Tap",
    "architectures",
    "build",
    "checkpoints",
    "describe",
    "find",
    "first_linear",
    "last_linear",
    "layers",
    "parameters_of",
    "run_with",
    "zoo",
]
