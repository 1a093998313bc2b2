"""A client's local training as a function of its data, differentiable in it."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gradveil.engine.gradients import GradientFunction
from gradveil.engine.looped_fallback import PatientGradients
from gradveil.engine.runtime import Precision
from gradveil.streams import Streams
from gradveil.types import Gradients, LocalTraining, Observation


@dataclass(frozen=True, slots=True)
class Unrolled:
    """The difference of weights, before minus after, that local training on trial data makes.

    Args:
        observation: of the clients.
        local: how they train, known or guessed.
        first: gradients at the weights they were sent, on the samples of one step.
        rows: for every step the (V, b) samples it takes, None for all in order.
        precision: of the networks.
    """

    observation: Observation
    local: LocalTraining
    first: GradientFunction
    rows: tuple[Tensor | None, ...]
    precision: Precision

    def __call__(self, inputs: Tensor, labels: Tensor) -> Gradients:
        """Train V victims on inputs (V, B, ...) and labels (V, B) or (V, B, K)."""
        before = sent_weights(self.observation, len(inputs))
        weights, momenta = before, dict[str, Tensor]()
        for number, rows in enumerate(self.rows):
            some, own = _take(inputs, rows), _take(labels, rows)
            gradients = (self.first if number == 0 else self._at(weights))(some, own).gradients
            factor = some.shape[1] if self.local.reduction == "sum" else 1
            named = {name: factor * g for name, g in zip(self.observation.names, gradients, strict=True)}
            weights = move(weights, named, self.local, momenta, number)
        return tuple(before[name] - weights[name] for name in self.observation.names)

    def _at(self, weights: Mapping[str, Tensor]) -> PatientGradients:
        """Return the gradients at weights that differ between victims and depend on the data.

        Running statistics stay as sent: in eval mode no step moves them, in train mode no gradient feels them.
        """
        seen = self.observation
        parameters = {**(seen.parameters or {}), **weights}
        return PatientGradients(
            seen.model, seen.loss, seen.names, seen.mode, parameters, seen.buffers or {}, self.precision
        )


def sent_weights(observation: Observation, victims: int) -> dict[str, Tensor]:
    """Return the (V, *shape) weights that the clients were sent, by name of a shared parameter."""
    own = observation.parameters or {}
    shared = {name: observation.model.get_parameter(name).detach() for name in observation.names}
    return {name: own.get(name, tensor.expand(victims, *tensor.shape)) for name, tensor in shared.items()}


def local_rows(
    local: LocalTraining, size: int, *, streams: Streams | None, device: torch.device
) -> tuple[Tensor | None, ...]:
    """Return which samples each local step takes, as far as an adversary can tell.

    Args:
        local: known or guessed.
        size: samples of a client.
        streams: of the adversary, which draws an order of its own where the client shuffles; None takes the announced
            one, so that every further restart can try another.
        device: where the rows are needed.
    """
    count = min(local.local_batch_size or size, size)
    if count == size:  # the order within a step does not matter
        return (None,) * local.steps
    found, per_epoch = [], size // count
    for number in range(local.steps):
        epoch, position = divmod(number, per_epoch)
        order = torch.arange(size)[None]
        if local.shuffled and streams is not None:
            order = streams.permutation(f"order/{epoch}", size)
        found.append(order[:, position * count : (position + 1) * count].to(device))
    return tuple(found)


def total_step(local: LocalTraining, samples: int) -> float:
    """Return how far local training moves a weight whose mean gradient is always 1; a shared gradient counts as moved.

    Example:
        >>> total_step(LocalTraining(lr=0.1, steps=4, shares="difference"), 1)
        0.4
    """
    local = replace(local, weight_decay=0.0)
    weights, momenta = {"": torch.zeros((), dtype=torch.float64)}, dict[str, Tensor]()
    count = min(local.local_batch_size or samples, samples) if local.reduction == "sum" else 1
    if local.shares == "gradient":
        return float(count)
    plain = {"": torch.tensor(float(count), dtype=torch.float64)}
    for number in range(local.steps):
        weights = move(weights, plain, local, momenta, number)
    return -float(weights[""])


def move(
    weights: Mapping[str, Tensor],
    gradients: Mapping[str, Tensor],
    local: LocalTraining,
    momenta: dict[str, Tensor],
    number: int | Tensor,
) -> dict[str, Tensor]:
    """Take one optimizer step without changing the weights given.

    Args:
        weights: (V, *shape) by name.
        gradients: likewise.
        local: the optimizer.
        momenta: its state, which is changed.
        number: steps taken before, as a tensor where a recorded step shall count for itself.
    """
    moved = {}
    for name, weight in weights.items():
        gradient = gradients[name] + local.weight_decay * weight if local.weight_decay else gradients[name]
        moved[name] = weight - local.lr * _direction(gradient, name, local, momenta, number)
    return moved


def _direction(
    gradient: Tensor, name: str, local: LocalTraining, momenta: dict[str, Tensor], number: int | Tensor
) -> Tensor:
    if local.optimizer == "adam":
        first = momenta.get(f"{name}/1", torch.zeros_like(gradient)).lerp(gradient, 0.1)
        second = momenta.get(f"{name}/2", torch.zeros_like(gradient)).lerp(gradient.square(), 1e-3)
        momenta |= {f"{name}/1": first, f"{name}/2": second}
        count = number + 1
        return first / (1 - 0.9**count) / (_root(second / (1 - 0.999**count)) + 1e-8)
    if local.momentum == 0:
        return gradient
    velocity = local.momentum * momenta[name] + gradient if name in momenta else gradient
    momenta[name] = velocity
    return gradient + local.momentum * velocity if local.nesterov else velocity


def _root(squares: Tensor) -> Tensor:
    """Return roots whose slope at 0 is 0: a weight that no sample moves must not make every slope undefined."""
    positive = squares > 0
    return torch.where(positive, torch.where(positive, squares, 1).sqrt(), 0)


def _take(tensor: Tensor, rows: Tensor | None) -> Tensor:
    """Take (V, b) or (1, b) samples of (V, B, ...)."""
    if rows is None:
        return tensor
    own = rows.expand(len(tensor), -1)
    index = own.view(*own.shape, *[1] * (tensor.ndim - 2)).expand(*own.shape, *tensor.shape[2:])
    return tensor.gather(1, index)
