"""A client's local training, for all clients of a stack together."""

import copy
import functools
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _NormBase

from gradveil._captured import Graphed, can_be_graphed, graphed_steps
from gradveil.defenses import StackedNetwork, StepDefense, StepResult
from gradveil.defenses._network import Functions
from gradveil.engine import Runtime, in_chunks
from gradveil.engine._unrolled import move
from gradveil.engine.looped import looped_function
from gradveil.errors import UnsupportedModelError
from gradveil.streams import Streams
from gradveil.types import Gradients, LocalTraining, Protected, State

_log = logging.getLogger(__name__)
_RowsOf: TypeAlias = Callable[[int], Tensor | slice | None]
"""From the number of a step to the (V, b) samples it takes; a slice for those of everybody, None for all in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """What local training gives.

    Args:
        update: the gradient, the difference (before minus after) or the weights, as `LocalTraining.shares` says.
        protected: what the model saw.
        buffers: (V, *shape) running statistics after training, in train mode.
        private: (V, *shape) the client's own parameters after training, by name.
    """

    update: Gradients
    protected: Protected
    buffers: State
    private: State


def local_update(
    data: Protected,
    local: LocalTraining,
    *,
    network: StackedNetwork,
    step_defense: StepDefense | None,
    sensitive: Tensor | None,
) -> Trained:
    """Train V clients from the model they were sent, and return what they share before update defenses.

    Clients whose model cannot be mapped over a stack train one after another, with the same result; only there the
    random layers of torch may run, from a seed of each client's own.
    """

    def run(victims: slice, runtime: Runtime) -> Trained:
        return train(replace(network.select(victims), runtime=runtime), victims)

    def run_alone(victims: slice, runtime: Runtime) -> Trained:
        own = replace(network.select(victims), runtime=runtime, make=looped_function, functions=Functions())
        _seed_random_layers(own.streams, device)
        return train(own, victims)

    def train(own: StackedNetwork, victims: slice) -> Trained:
        mask = None if sensitive is None else sensitive[victims]
        work = _one_gradient if local.shares == "gradient" else _several_steps
        return work(own, data.select(victims), local, step_defense, mask)

    count, device = len(data.inputs), data.inputs.device
    # Random layers draw from the global state: it is put back, also after a stack that was only tried.
    with network.runtime.numerics(), torch.random.fork_rng([device] if device.type == "cuda" else []):
        try:
            parts, _ = in_chunks(run, count, device=device, runtime=network.runtime)
        except UnsupportedModelError as error:
            _log.info("the clients train one after another: %s", error)
            parts, _ = in_chunks(run_alone, count, device=device, runtime=replace(network.runtime, chunk=1))
    return _join(parts)


def _seed_random_layers(streams: Streams, device: torch.device) -> None:
    """Let the random layers of one client draw from its own seed."""
    seed = int(streams.integers("random-layers", 2**62, ()))
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.default_generators[device.index or 0].manual_seed(seed)


def _gradient(
    network: StackedNetwork, data: Protected, step_defense: StepDefense | None, sensitive: Tensor | None
) -> StepResult:
    """Compute the gradient of one step, in the way of the step defense if there is one."""
    if step_defense is not None:
        return step_defense.gradient(network, data, sensitive=sensitive, streams=network.streams)
    found = network(data.inputs, data.labels)
    return StepResult(tuple(g.detach() for g in found.gradients), data, _detached(found.buffers))


def _one_gradient(
    network: StackedNetwork,
    data: Protected,
    local: LocalTraining,
    step_defense: StepDefense | None,
    sensitive: Tensor | None,
) -> Trained:
    """Share the gradient; the private parameters, which the server does not move, take the client's own step."""
    counted = _cumulative_norms(network)
    result = _gradient(_weighing(network, counted, 0), data, step_defense, sensitive)
    gradients = dict(zip(network.names, result.gradients, strict=True))
    before = _weights(network, len(data.inputs))
    own = {name: before[name] for name in network.names if name not in network.shared}
    return Trained(
        update=tuple(gradients[name] for name in network.shared),
        protected=result.protected,
        buffers={**result.buffers, **_counters(counted, 1, data.inputs)},
        private=move(own, gradients, local, {}, 0),
    )


def _several_steps(
    network: StackedNetwork,
    data: Protected,
    local: LocalTraining,
    step_defense: StepDefense | None,
    sensitive: Tensor | None,
) -> Trained:
    before, held = _weights(network, len(data.inputs)), data.inputs.shape[1]
    counted = _cumulative_norms(network)
    rows_of = _rows(local, held, network.streams, data.inputs.device)
    if not counted and can_be_graphed(network, local, step_defense, min(local.local_batch_size or held, held)):
        ended = graphed_steps(
            network,
            local,
            lambda number: (_some(data.inputs, rows_of(number)), _some(data.labels, rows_of(number))),
            Graphed.begin(before, network.buffers, local),
        )
        went = _Went(ended.weights, ended.buffers, data)
    else:
        went = _step_by_step(network, data, local, step_defense, sensitive, rows_of, counted)
    update = tuple(went.weights[name] for name in network.shared)
    if local.shares == "difference":
        update = tuple(before[name] - went.weights[name] for name in network.shared)
    private = {name: went.weights[name] for name in network.names if name not in network.shared}
    buffers = {**went.buffers, **_counters(counted, local.steps, data.inputs)}
    return Trained(update=update, protected=went.protected, buffers=_detached(buffers), private=private)


@dataclass(frozen=True, slots=True)
class _Went:
    """Where some local steps led."""

    weights: State
    buffers: State
    protected: Protected


def _step_by_step(
    network: StackedNetwork,
    data: Protected,
    local: LocalTraining,
    step_defense: StepDefense | None,
    sensitive: Tensor | None,
    rows_of: _RowsOf,
    counted: Mapping[str, int],
) -> _Went:
    weights, buffers = _weights(network, len(data.inputs)), dict(network.buffers)
    momenta: dict[str, Tensor] = {}
    protected = data
    for number in range(min(local.steps, network.runtime.probe or local.steps)):
        rows = rows_of(number)
        current = replace(
            network,
            parameters={**network.parameters, **weights},
            buffers=buffers,
            streams=network.streams.fork(f"step-{number}"),
        )
        current = _weighing(current, counted, number)
        result = _gradient(current, _take(data, rows), step_defense, _take_mask(sensitive, rows))
        buffers = {**buffers, **result.buffers}
        protected = result.protected if rows is None else protected
        gradients = dict(zip(network.names, result.gradients, strict=True))
        weights = move(weights, gradients, local, momenta, number)
    return _Went(weights, buffers, protected)


def _cumulative_norms(network: StackedNetwork) -> dict[str, int]:
    """Return the batches seen so far by the norms that average over all of them (`momentum=None`), by path."""
    layers = network.model.named_modules() if network.mode == "train" else ()
    found = {path: layer for path, layer in layers if isinstance(layer, _NormBase) and layer.momentum is None}
    counts = {}
    for name in (f"{path}.num_batches_tracked" for path, layer in found.items() if layer.track_running_stats):
        own = network.buffers.get(name, network.model.get_buffer(name)).unique()
        if len(own) > 1:
            raise UnsupportedModelError(
                f"clients of one stack must have seen equally many batches, but '{name}' holds {own.tolist()}; "
                "train one client at a time, or give the norm a momentum"
            )
        counts[name.removesuffix(".num_batches_tracked")] = int(own)
    return counts


def _weighing(network: StackedNetwork, counted: Mapping[str, int], number: int) -> StackedNetwork:
    """Let norms that average over all batches give this step's batch its share, since nobody counts inside a step."""
    if not counted:
        return network
    model = copy.deepcopy(network.model)
    for path, count in counted.items():
        layer = model.get_submodule(path)
        assert isinstance(layer, _NormBase)
        layer.momentum = 1 / (count + number + 1)
    return replace(network, model=model)


def _counters(counted: Mapping[str, int], steps: int, like: Tensor) -> dict[str, Tensor]:
    """Return the (V,) counters after training."""
    return {
        f"{path}.num_batches_tracked": torch.full((len(like),), count + steps, device=like.device)
        for path, count in counted.items()
    }


def _weights(network: StackedNetwork, victims: int) -> dict[str, Tensor]:
    """Return the (V, *shape) weights by which the network is differentiated."""
    shared = {name: network.model.get_parameter(name).detach() for name in network.names}
    return {n: network.parameters.get(n, tensor.expand(victims, *tensor.shape)) for n, tensor in shared.items()}


def _rows(local: LocalTraining, size: int, streams: Streams, device: torch.device) -> _RowsOf:
    """Return what says which samples a local step takes."""
    count = local.local_batch_size or size
    per_epoch = max(size // min(count, size), 1)

    @functools.lru_cache(1)  # an order is drawn and moved to the device once for all steps of its epoch
    def order(epoch: int) -> Tensor:
        return streams.permutation(f"order/{epoch}", size).to(device)

    def rows(number: int) -> Tensor | slice | None:
        if count >= size and not local.shuffled:
            return None
        epoch, position = divmod(number, per_epoch)
        part = slice(position * count, (position + 1) * count)
        return order(epoch)[:, part] if local.shuffled else part

    return rows


def _take(data: Protected, rows: Tensor | slice | None) -> Protected:
    return Protected(*(_some(t, rows) for t in (data.inputs, data.labels, data.origin, data.weights)))


def _take_mask(mask: Tensor | None, rows: Tensor | slice | None) -> Tensor | None:
    return None if mask is None else _some(mask, rows)


def _some(tensor: Tensor, rows: Tensor | slice | None) -> Tensor:
    """Take (V, b) samples of (V, B, ...), or those of everybody, or all."""
    if rows is None:
        return tensor
    if isinstance(rows, slice):
        return tensor[:, rows]
    victims = torch.arange(len(tensor), device=tensor.device)[:, None]
    return tensor[victims, rows]


def _detached(state: State) -> dict[str, Tensor]:
    return {name: tensor.detach() for name, tensor in state.items()}


def _join(parts: list[Trained]) -> Trained:
    if len(parts) == 1:
        return parts[0]
    seen = [part.protected for part in parts]
    return replace(
        parts[0],
        update=tuple(torch.cat(tensors) for tensors in zip(*(part.update for part in parts), strict=True)),
        protected=Protected(
            *(torch.cat([getattr(s, name) for s in seen]) for name in ("inputs", "labels", "origin", "weights"))
        ),
        buffers={name: torch.cat([part.buffers[name] for part in parts]) for name in parts[0].buffers},
        private={name: torch.cat([part.private[name] for part in parts]) for name in parts[0].private},
    )
