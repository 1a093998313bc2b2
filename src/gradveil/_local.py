"""A client's local training, for all clients of a stack together."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from gradveil.defenses import StepDefense, StepResult
from gradveil.engine import GradientFunction, Runtime, Trial, gradient_function, in_chunks
from gradveil.errors import DataError
from gradveil.streams import Streams
from gradveil.types import Gradients, LocalTraining, LossFn, Mode, Protected, State


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """What local training gives.

    Args:
        update: the gradient, the difference (before minus after) or the weights, as `LocalTraining.shares` says.
        protected: what the model saw.
        buffers: (V, *shape) running statistics after training, in train mode.
        num_classes: K.
    """

    update: Gradients
    protected: Protected
    buffers: State
    num_classes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Network:
    """What is trained, and in which way its gradient is computed."""

    model: nn.Module
    loss: LossFn
    names: tuple[str, ...]
    mode: Mode
    step_defense: StepDefense | None
    runtime: Runtime

    def gradient(
        self, data: Protected, parameters: State, buffers: State, sensitive: Tensor | None, streams: Streams
    ) -> StepResult:
        """Compute the gradient of one step."""
        function = gradient_function(
            self.model,
            self.loss,
            names=self.names,
            mode=self.mode,
            parameters=parameters,
            buffers=buffers,
            precision=self.runtime.precision,
            trial=None if parameters or buffers else Trial.like(data.inputs[0], self.num_classes(data)),
        )
        if self.step_defense is None:
            return _plain(function, data)
        return self.step_defense.gradient(function, data, sensitive=sensitive, streams=streams)

    def num_classes(self, data: Protected) -> int:
        """Ask the model for the number of its outputs."""
        training = {module: module.training for module in self.model.modules()}
        with torch.no_grad():
            classes = int(self.model.eval()(data.inputs[0]).shape[-1])
        for module, was in training.items():
            module.training = was
        if data.labels.ndim == 2 and int(data.labels.max()) >= classes:
            raise DataError(f"labels must be below the model's {classes} outputs, got {int(data.labels.max())}")
        return classes


def local_update(
    data: Protected,
    local: LocalTraining,
    *,
    model: nn.Module,
    loss: LossFn,
    names: tuple[str, ...],
    mode: Mode,
    step_defense: StepDefense | None,
    sensitive: Tensor | None,
    parameters: State,
    buffers: State,
    streams: Streams,
    runtime: Runtime,
) -> Trained:
    """Train V clients from the model they were sent, and return what they share before update defenses."""
    summed = local.reduction == "sum"
    network = _Network(
        model=model,
        loss=_times_batch(loss) if summed else loss,
        names=names,
        mode=mode,
        step_defense=step_defense,
        runtime=runtime,
    )
    classes = network.num_classes(data)

    def run(victims: slice, _runtime: Runtime) -> Trained:
        state = {name: t[victims] for name, t in parameters.items()}, {name: t[victims] for name, t in buffers.items()}
        mask = None if sensitive is None else sensitive[victims]
        some, own = data.select(victims), streams.select(victims)
        if local.shares == "gradient":
            result = network.gradient(some, *state, mask, own)
            return Trained(
                update=result.gradients, protected=result.protected, buffers=result.buffers, num_classes=classes
            )
        return _several_steps(network, some, local, state, mask, own, classes)

    with runtime.numerics():
        parts, _ = in_chunks(run, len(data.inputs), device=data.inputs.device, runtime=runtime)
    return _join(parts)


def _plain(function: GradientFunction, data: Protected) -> StepResult:
    found = function(data.inputs, data.labels)
    return StepResult(tuple(g.detach() for g in found.gradients), data, _detached(found.buffers))


def _several_steps(
    network: _Network,
    data: Protected,
    local: LocalTraining,
    state: tuple[State, State],
    sensitive: Tensor | None,
    streams: Streams,
    classes: int,
) -> Trained:
    victims = len(data.inputs)
    shared = dict(network.model.named_parameters())
    fixed = {name: tensor for name, tensor in state[0].items() if name not in network.names}
    before = {n: state[0].get(n, shared[n].detach().expand(victims, *shared[n].shape)) for n in network.names}
    weights, buffers = dict(before), dict(state[1])
    momenta: dict[str, Tensor] = {}
    protected = data
    for number in range(local.steps):
        rows = _rows(local, data.inputs.shape[1], number, streams, data.inputs.device)
        result = network.gradient(
            _take(data, rows),
            {**fixed, **weights},
            buffers,
            _take_mask(sensitive, rows),
            streams.fork(f"step-{number}"),
        )
        buffers = {**buffers, **result.buffers}
        protected = result.protected if rows is None else protected
        gradients = dict(zip(network.names, result.gradients, strict=True))
        weights = move(weights, gradients, local, momenta, number)
    after = tuple(weights[name] for name in network.names)
    update = after
    if local.shares == "difference":
        update = tuple(b - a for b, a in zip((before[name] for name in network.names), after, strict=True))
    return Trained(update=update, protected=protected, buffers=_detached(buffers), num_classes=classes)


def move(
    weights: Mapping[str, Tensor],
    gradients: Mapping[str, Tensor],
    local: LocalTraining,
    momenta: dict[str, Tensor],
    number: int,
) -> dict[str, Tensor]:
    """Take one optimizer step without changing the weights given; `momenta` is the optimizer's state."""
    moved = {}
    for name, weight in weights.items():
        gradient = gradients[name] + local.weight_decay * weight
        moved[name] = weight - local.lr * _direction(gradient, name, local, momenta, number)
    return moved


def _direction(gradient: Tensor, name: str, local: LocalTraining, momenta: dict[str, Tensor], number: int) -> Tensor:
    if local.optimizer == "adam":
        first = momenta.get(f"{name}/1", torch.zeros_like(gradient)).lerp(gradient, 0.1)
        second = momenta.get(f"{name}/2", torch.zeros_like(gradient)).lerp(gradient.square(), 1e-3)
        momenta |= {f"{name}/1": first, f"{name}/2": second}
        count = number + 1
        return first / (1 - 0.9**count) / ((second / (1 - 0.999**count)).sqrt() + 1e-8)
    if local.momentum == 0:
        return gradient
    velocity = local.momentum * momenta[name] + gradient if name in momenta else gradient
    momenta[name] = velocity
    return gradient + local.momentum * velocity if local.nesterov else velocity


def _rows(local: LocalTraining, size: int, number: int, streams: Streams, device: torch.device) -> Tensor | None:
    """Return (V, b), the samples of a local step; None for all of them in order."""
    count = local.local_batch_size or size
    if count >= size and not local.shuffled:
        return None
    per_epoch = max(size // min(count, size), 1)
    epoch, position = divmod(number, per_epoch)
    order = torch.arange(size).expand(len(streams.keys), size)
    if local.shuffled:
        order = streams.permutation(f"order/{epoch}", size)
    return order[:, position * count : (position + 1) * count].to(device)


def _take(data: Protected, rows: Tensor | None) -> Protected:
    if rows is None:
        return data
    return Protected(*(_gather(t, rows) for t in (data.inputs, data.labels, data.origin, data.weights)))


def _take_mask(mask: Tensor | None, rows: Tensor | None) -> Tensor | None:
    return mask if mask is None or rows is None else _gather(mask, rows)


def _gather(tensor: Tensor, rows: Tensor) -> Tensor:
    victims = torch.arange(len(tensor), device=tensor.device)[:, None]
    return tensor[victims, rows]


def _times_batch(loss: LossFn) -> LossFn:
    return lambda outputs, labels: loss(outputs, labels) * len(outputs)


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
    )
