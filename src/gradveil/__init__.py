"""GradVeil: what do shared gradients give away, and what should we do about it?

The three things to know: `audit` attacks the protected updates of clients and scores what came out; `observe` makes
what an adversary sees; attacks, defenses, metrics, data and models are folders of methods, each one file.
"""

from gradveil import attacks, data, defenses, metrics, models
from gradveil._scoring import Reference
from gradveil._version import VERSION
from gradveil.auditing import Audit, audit
from gradveil.client import Client, Step, observe, step
from gradveil.engine import Runtime, normalized
from gradveil.errors import GradVeilError
from gradveil.streams import Streams
from gradveil.types import (
    Auxiliary,
    Batch,
    Evidence,
    Knowledge,
    LocalTraining,
    Observation,
    Protected,
    Reconstruction,
)

__version__ = VERSION

__all__ = [
    "Audit",
    "Auxiliary",
    "Batch",
    "Client",
    "Evidence",
    "GradVeilError",
    "Knowledge",
    "LocalTraining",
    "Observation",
    "Protected",
    "Reconstruction",
    "Reference",
    "Runtime",
    "Step",
    "Streams",
    "attacks",
    "audit",
    "data",
    "defenses",
    "metrics",
    "models",
    "normalized",
    "observe",
    "step",
]
