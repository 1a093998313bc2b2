"""Vetting: look at the model that a server sends, before training on it."""

import hashlib
import statistics
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, TypeAlias

import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor, nn

from gradveil.errors import RecordError
from gradveil.federated._findings import Finding, Findings, Policy, VettingError
from gradveil.federated._inspections import inspect_weights
from gradveil.federated._probing import Probe, probe_model
from gradveil.federated.recorder import load_update
from gradveil.types import State

__all__ = [
    "Finding",
    "Findings",
    "Policy",
    "Probe",
    "VettingError",
    "compare_models",
    "fingerprint",
    "read_state",
    "vet",
]

Sent: TypeAlias = nn.Module | State
_JUMP: Final = 1.0
_OUTLIER: Final = 10.0


def vet(model: Sent, reference: Sent | None = None, *, probe: Probe | None = None) -> Findings:
    """Look for malicious changes in a model.

    Args:
        model: a network, or its tensors by name.
        reference: a model of the same federation that is trusted, such as the agreed initial one or the last one.
        probe: own samples to try a network on; they stay here.

    Example:
        >>> layer = nn.Linear(32, 8)
        >>> _ = nn.init.constant_(layer.weight, 0.1)
        >>> vet(layer).verdict
        'malicious'
    """
    found = list(inspect_weights(_tensors(model)))
    if reference is not None:
        found += _compare(_tensors(model), _tensors(reference))
    if probe is not None and isinstance(model, nn.Module):
        found += probe_model(model, probe)
    return Findings(tuple(sorted(found, key=lambda finding: finding.severity)))


def read_state(path: Path | str) -> State:
    """Read the tensors of a safetensors file by name, without executing anything; of a recorded update its model."""
    path = Path(path)
    if not path.is_file():
        raise RecordError(f"there is no model at {path}; give a safetensors file")
    try:
        tensors = load(path.read_bytes())
    except SafetensorError as error:
        raise RecordError(f"{path} is not a whole safetensors file ({error}); ask for it again") from error
    if any(name.startswith("before/") for name in tensors):
        recorded = load_update(path)
        return {**recorded.before, **recorded.buffers}
    return tensors


def fingerprint(model: Sent) -> str:
    """Return the SHA-256 of all names, shapes, formats and numbers; clients exchange it to see that they are equal.

    Example:
        >>> fingerprint({"w": torch.zeros(2)})[:8]
        'fde9d0ac'
    """
    digest = hashlib.sha256()
    for name, tensor in sorted(_tensors(model).items()):
        plain = tensor.detach().cpu().contiguous()
        digest.update(f"{name}|{tuple(plain.shape)}|{plain.dtype}|".encode())
        digest.update(plain.flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def compare_models(fingerprints: Mapping[str, str]) -> Findings:
    """Say whether the server sent the same model to all clients of a round.

    Args:
        fingerprints: by name of the client, from `fingerprint`.

    Example:
        >>> compare_models({"ann": "1f", "ben": "1f", "eve": "c0"}).items[0].where
        'eve'
    """
    counts = {value: list(fingerprints.values()).count(value) for value in fingerprints.values()}
    if len(counts) < 2:
        return Findings()
    common = max(counts, key=lambda value: counts[value])
    odd = sorted(name for name, value in fingerprints.items() if value != common)
    words = f"{len(counts)} different models were sent to {len(fingerprints)} clients in one round"
    return Findings((Finding(kind="different-models", severity="malicious", where=", ".join(odd), reason=words),))


def _tensors(model: Sent) -> State:
    if isinstance(model, nn.Module):
        return {**dict(model.named_parameters()), **dict(model.named_buffers())}
    return model


def _compare(state: State, reference: State) -> Iterator[Finding]:
    for name in (name for name in state if name not in reference):
        words = "the reference has no such tensor: something was inserted"
        yield Finding(kind="architecture", severity="malicious", where=name, reason=words)
    for name in (name for name in reference if name not in state):
        words = "the reference has this tensor, but the model has not: something was taken out"
        yield Finding(kind="architecture", severity="malicious", where=name, reason=words)
    same = [name for name in state if name in reference]
    for name in (name for name in same if state[name].shape != reference[name].shape):
        words = f"the shape is {tuple(state[name].shape)}, but {tuple(reference[name].shape)} in the reference"
        yield Finding(kind="architecture", severity="malicious", where=name, reason=words)
    yield from _jumps({n: _change(state[n], reference[n]) for n in same if state[n].shape == reference[n].shape})


def _change(tensor: Tensor, reference: Tensor) -> float:
    """Return the relative change of a weight; 0 for what is not one."""
    if not tensor.is_floating_point() or tensor.ndim < 2:
        return 0.0
    size = max(float(reference.detach().float().norm()), 1e-12)
    return float((tensor.detach().float() - reference.detach().float()).norm()) / size


def _jumps(changes: Mapping[str, float]) -> Iterator[Finding]:
    """Find weights that were replaced while the others only moved."""
    for name, change in changes.items():
        others = [changes[other] for other in changes if other != name and changes[other] > 0]
        usual = statistics.median(others) if others else 0.0
        if change > _JUMP and change > _OUTLIER * usual:
            words = f"it changed by {100 * change:.0f} % since the reference, the others by {100 * usual:.2g} %"
            yield Finding(kind="change", severity="suspicious", where=name, reason=words)
