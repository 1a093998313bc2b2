"""Federation: who holds what, training together, what the adversary sees, and what a server sends."""

from gradveil.federated.aggregating import aggregate
from gradveil.federated.checking import Check, preflight
from gradveil.federated.deployment import RecordedAudit, audit_recorded
from gradveil.federated.granting import Granted, Ledger, load_granted, save_granted
from gradveil.federated.history import History, Round
from gradveil.federated.observing import grantable, recorded_model, ruled_out, to_observation
from gradveil.federated.partition import Partition, partition_picture, partitioners
from gradveil.federated.recorder import About, Recorded, load_update, recorded_from, save_update
from gradveil.federated.replaying import Replay, replay, replay_granted
from gradveil.federated.settings import Federation, FederationError
from gradveil.federated.simulate import federate
from gradveil.federated.vetting import (
    Finding,
    Findings,
    Probe,
    VettingError,
    compare_models,
    fingerprint,
    read_state,
    vet,
)
from gradveil.federated.views import Sighting

__all__ = [
    "About",
    "Check",
    "Federation",
    "FederationError",
    "Finding",
    "Findings",
    "Granted",
    "History",
    "Ledger",
    "Partition",
    "Probe",
    "Recorded",
    "RecordedAudit",
    "Replay",
    "Round",
    "Sighting",
    "VettingError",
    "aggregate",
    "audit_recorded",
    "compare_models",
    "federate",
    "fingerprint",
    "grantable",
    "load_granted",
    "load_update",
    "partition_picture",
    "partitioners",
    "preflight",
    "read_state",
    "recorded_from",
    "recorded_model",
    "replay",
    "replay_granted",
    "ruled_out",
    "save_granted",
    "save_update",
    "to_observation",
    "vet",
]
