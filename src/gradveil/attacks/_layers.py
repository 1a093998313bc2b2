"""Which parameters gradient matching compares, and how much each counts."""

import re
from collections.abc import Sequence
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from gradveil.errors import unknown_name
from gradveil.types import Observation

Weighting: TypeAlias = Literal["equal", "linear", "exponential", "balanced"]
_COUNTED = re.compile(r"(first|last|top)-(\d+)")


def layer_weights(observation: Observation, layers: Sequence[str], weighting: Weighting) -> Tensor | None:
    """Return the (V, n) weight of every parameter; None if all count alike.

    Args:
        observation: whose parameters are meant.
        layers: any of `first-N`, `last-N` and `top-N` (the N largest of the victim's own update), module paths such as
            `conv1`, and paths to leave out such as `not-fc`; none means all.
        weighting: `equal`, `linear` (n, n - 1, ..., 1 over n) or `exponential` (1, 1/e, 1/e², ...): early parameters
            weigh most; `balanced`, one over the square of the parameter's norm in the victim's own update: in a cosine
            every parameter then has the same say, however large its layer's gradients are.
    """
    if not layers and weighting == "equal":
        return None
    count, like = len(observation.names), observation.update[0]
    index = torch.arange(count, device=like.device, dtype=like.dtype)
    if weighting == "balanced":
        return _chosen(observation, layers) * _balanced(observation)
    shapes = {"equal": torch.ones_like(index), "linear": (count - index) / count, "exponential": torch.exp(-index)}
    return _chosen(observation, layers) * shapes[weighting]


def _balanced(observation: Observation) -> Tensor:
    """Return (V, n), relative to the largest; a parameter whose update is zero has no say."""
    norms = torch.stack([tensor.flatten(1).norm(dim=1) for tensor in observation.update], 1)
    largest = norms.amax(1, keepdim=True)
    told = norms > 1e-6 * largest  # rounding noise is not balanced up
    return torch.where(told, (norms / largest).clamp_min(1e-6) ** -2, 0)


def _chosen(observation: Observation, layers: Sequence[str]) -> Tensor:
    """Return (V, n), 1 for parameters that some entry names and no other one leaves out."""
    names = observation.names
    wanted, left_out = [e for e in layers if not e.startswith("not-")], [e for e in layers if e.startswith("not-")]
    everything = torch.ones((observation.victims, len(names)), dtype=torch.bool, device=observation.device)
    taken = everything if not wanted else torch.stack([_entry(observation, entry) for entry in wanted]).any(0)
    for entry in left_out:
        taken = taken & ~_named(names, entry.removeprefix("not-")).to(taken.device)
    return taken.to(observation.dtype)


def _entry(observation: Observation, entry: str) -> Tensor:
    """Return the (V, n) mask of one entry."""
    counted, count = _COUNTED.fullmatch(entry), len(observation.names)
    if counted is None:
        return _named(observation.names, entry).to(observation.device).expand(observation.victims, count)
    kind, number = counted[1], min(int(counted[2]), count)
    index = torch.arange(count, device=observation.device).expand(observation.victims, count)
    if kind == "top":
        norms = torch.stack([tensor.flatten(1).norm(dim=1) for tensor in observation.update], 1)
        index = norms.argsort(dim=1, descending=True, stable=True).argsort(1)
    return index >= count - number if kind == "last" else index < number


def _named(names: Sequence[str], path: str) -> Tensor:
    """Return the (n,) mask of the parameters at or below a module."""
    mask = torch.tensor([name == path or name.startswith(f"{path}.") for name in names])
    if not bool(mask.any()):
        modules = {name.rpartition(".")[0] for name in names} - {""}
        raise unknown_name("layer with shared parameters", path, modules)
    return mask
