"""Batch-norm statistics: what the client's images did to them, and what a trial's images do."""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Self, TypeAlias

import torch
from torch import Tensor, nn
from torch.func import functional_call

from gradveil.engine import over_victims
from gradveil.errors import KnowledgeError, UnsupportedModelError
from gradveil.types import Observation, State

Statistics: TypeAlias = Literal["best", "running", "shared", "inferred"]
Moments: TypeAlias = tuple[tuple[Tensor, Tensor], ...]
"""The mean and the variance, (V, C) each, of what enters every batch norm."""


@dataclass(frozen=True, slots=True)
class BatchNorms:
    """The batch norms of an observed network, ready to be measured.

    Args:
        model: a copy whose batch norms write nothing.
        paths: of its batch norms, in the order in which they run.
        own: parameters and buffers that differ between victims.
    """

    model: nn.Module
    paths: tuple[str, ...]
    own: State

    @classmethod
    def of(cls, observation: Observation) -> Self:
        """Find the batch norms with running statistics."""
        model = copy.deepcopy(observation.model).train(observation.mode == "train")
        found = [(path, layer) for path, layer in model.named_modules() if _tracks(layer)]
        if not found:
            raise UnsupportedModelError(
                f"see-through-gradients matches batch-norm statistics, but {type(observation.model).__name__} has no "
                "batch norm; set bn=0, or use inverting-gradients"
            )
        own = {**(observation.parameters or {}), **(observation.buffers or {})}
        if observation.mode == "train":
            for path, layer in found:
                _forget(layer)
                own = {name: tensor for name, tensor in own.items() if not name.startswith(f"{path}.running_")}
        kept = {*dict(model.named_parameters()), *dict(model.named_buffers())}
        own = {name: tensor for name, tensor in own.items() if name in kept}
        return cls(model, tuple(path for path, _ in found), own)

    def measure(self, images: Tensor) -> Moments:
        """Return the moments of what enters each batch norm when the networks run on pixels (V, B, C, H, W)."""

        def of_victim(state: State, inputs: Tensor) -> Moments:
            return _moments(self.model, state, inputs, self.paths)

        return over_victims(of_victim, self.own, images)


def target_moments(observation: Observation, norms: BatchNorms, source: Statistics) -> Moments:
    """Return the moments that the client's images are believed to have had.

    Args:
        observation: of the network.
        norms: its batch norms.
        source: `running` takes the statistics of the network as it was sent; `shared` those that the client sent back;
            `inferred` undoes the momentum by which the client moved the one to the other, which is exact after one
            step in train mode; `best` is `inferred` where the client sent statistics back, else `running`.
    """
    if source == "best":
        source = "inferred" if observation.buffers_after else "running"
    if source != "running" and observation.buffers_after is None:
        raise KnowledgeError(f"statistics={source} needs the buffers that clients send back; grant buffers")
    return tuple(
        (_moment(observation, path, "running_mean", source), _moment(observation, path, "running_var", source))
        for path in norms.paths
    )


def statistics_distance(found: Moments, target: Moments, *, first: float) -> Tensor:
    """Return (V,) the L2 distances of means and of variances, added over the layers; the first one counts more."""
    pairs = zip(found, target, strict=True)
    parts = torch.stack([(m - t).norm(dim=1) + (v - u).norm(dim=1) for (m, v), (t, u) in pairs])
    return first * parts[0] + parts[1:].sum(0)


def _moment(observation: Observation, path: str, kind: str, source: Statistics) -> Tensor:
    """Return (V, C), one statistic of one layer."""
    name = f"{path}.{kind}"
    before = (observation.buffers or {}).get(name, observation.model.get_buffer(name))
    before = before.to(observation.dtype).expand(observation.victims, -1)
    if source == "running":
        return before
    assert observation.buffers_after is not None
    after = observation.buffers_after.get(name, before).to(observation.dtype).expand(observation.victims, -1)
    if source == "shared":
        return after
    momentum = _momentum(observation, path)
    inferred = (after - (1 - momentum) * before) / momentum
    return inferred.clamp_min(0) if kind == "running_var" else inferred


def _momentum(observation: Observation, path: str) -> float:
    """Return the share of new images in the statistics after all local steps, as far as the adversary knows them."""
    layer = observation.model.get_submodule(path)
    assert isinstance(layer, nn.modules.batchnorm._BatchNorm)
    if layer.momentum is None:
        raise UnsupportedModelError(
            f"'{path}' averages over all batches, which cannot be undone; use statistics=shared"
        )
    steps = 1 if observation.local is None else observation.local.steps
    return float(1 - (1 - layer.momentum) ** steps)


def _moments(model: nn.Module, state: State, inputs: Tensor, paths: tuple[str, ...]) -> Moments:
    """Run one victim's network on (B, ...), and read what enters its batch norms."""
    entered: dict[str, Tensor] = {}

    def read(path: str) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
        return lambda _layer, arguments: entered.update({path: arguments[0]})

    handles = [model.get_submodule(path).register_forward_pre_hook(read(path)) for path in paths]
    try:
        functional_call(model, dict(state), (inputs,))
    finally:
        for handle in handles:
            handle.remove()
    return tuple(_mean_and_variance(entered[path]) for path in paths)


def _mean_and_variance(values: Tensor) -> tuple[Tensor, Tensor]:
    """Return (C,) each of (B, C, ...); running variances are those of a sample, which one value does not have."""
    rows = values.transpose(0, 1).flatten(1)
    return rows.mean(1), rows.var(1, correction=min(1, rows.shape[1] - 1))


def _tracks(layer: nn.Module) -> bool:
    return isinstance(layer, nn.modules.batchnorm._BatchNorm) and layer.running_mean is not None


def _forget(layer: nn.Module) -> None:
    """Let a batch norm use the statistics of its batch and keep none."""
    assert isinstance(layer, nn.modules.batchnorm._BatchNorm)
    layer.track_running_stats = False
    layer.running_mean = layer.running_var = layer.num_batches_tracked = None
