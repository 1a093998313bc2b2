"""GradVeil: what do shared gradients give away, and what should we do about it?

The three things to know: `audit` attacks the protected updates of clients and scores what came out; `observe` makes
what an adversary sees; attacks, defenses, metrics, data and models are folders of methods, each one file.
"""

from gradveil import attacks, data, defenses, metrics, models
from gradveil._scoring import Reference
from gradveil._version import VERSION
from gradveil.auditing import Audit, audit
from gradveil.client import Client, Step, observe, step
from gradveil.decoding import audit_decoding
from gradveil.engine import Runtime, normalized
from gradveil.errors import GradVeilError
from gradveil.federated import Federation, audit_recorded, federate, vet
from gradveil.policies import accuracy_score, privacy_score, search_policies
from gradveil.streams import Streams
from gradveil.tuning import Search, tune
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
    "Federation",
    "GradVeilError",
    "Knowledge",
    "LocalTraining",
    "Observation",
    "Protected",
    "Reconstruction",
    "Reference",
    "Runtime",
    "Search",
    "Step",
    "Streams",
    "accuracy_score",
    "attacks",
    "audit",
    "audit_decoding",
    "audit_recorded",
    "data",
    "defenses",
    "federate",
    "metrics",
    "models",
    "normalized",
    "observe",
    "privacy_score",
    "search_policies",
    "step",
    "tune",
    "vet",
]
