"""One step of training, made of the parts of the client's step with a single victim."""

from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.func import functional_call

from gradveil.client import (
    Client,
    client_loss,
    client_model,
    draw_noise,
    protect_data,
    sent_model,
    share_update,
    stacked_network,
)
from gradveil.defenses import StackedNetwork, StepDefense
from gradveil.engine import Runtime, trainable
from gradveil.engine.capture import capture
from gradveil.models._recipe import Training
from gradveil.streams import Streams
from gradveil.types import Batch, Gradients, LossFn, Protected, State

Differentiate: TypeAlias = Callable[[Protected, Tensor | None, Streams], tuple[Tensor, Gradients]]
"""What the model sees, and which of it is sensitive, to the loss () and one (1, *shape) gradient per trained
parameter; moves running statistics."""


class ProtectedStep:
    """Puts the protected gradient of a batch where the optimizer looks for it.

    Args:
        client: whose defenses protect the step.
        network: the client's network, from `client_network`; its parameters receive gradients, its buffers move.
        training: number format, layout and compilation.
    """

    def __init__(self, client: Client, network: nn.Module, *, training: Training) -> None:
        leaving = set(trainable(sent_model(client)))
        names = trainable(network)
        self._client = client
        self._parameters = [network.get_parameter(name) for name in names]
        self._shared = [i for i, name in enumerate(names) if name in leaving]
        self._differentiate = _differentiate(client, network, training)

    def __call__(self, batch: Batch, *, kept: State, streams: Streams) -> tuple[Tensor, State]:
        """Set the gradients of one step, and return the loss () and what the update defenses keep.

        Args:
            batch: of one client.
            kept: what the step before has left, empty in the first one.
            streams: of this step.
        """
        data = protect_data(batch, self._client, streams=streams)
        loss, found = self._differentiate(data, data.marked(batch.sensitive), streams)

        gradients = list(found)
        leaving = tuple(found[i] for i in self._shared)
        shared = share_update(leaving, self._client, kept=kept, streams=streams)
        for i, gradient in zip(self._shared, shared.update, strict=True):
            gradients[i] = gradient
        for parameter, gradient in zip(self._parameters, gradients, strict=True):
            parameter.grad = gradient[0]
        return loss, shared.kept


def client_network(client: Client, *, streams: Streams) -> nn.Module:
    """Make the network that the client trains, with the private tensors of its model defenses filled in."""
    network = client_model(client)
    tensors = network.state_dict()
    for defense in client.model_defenses:
        for name, private in defense.start(client.model, streams=streams).items():
            tensors[name].copy_(private[0])
    return network


def smoothed(loss: LossFn, amount: float) -> LossFn:
    """Return a loss whose labels are spread a little over all classes.

    Example:
        >>> of = smoothed(nn.functional.cross_entropy, 0.1)
        >>> outputs, labels = torch.tensor([[1.0, 2.0]]), torch.tensor([1])
        >>> of(outputs, labels) == nn.functional.cross_entropy(outputs, labels, label_smoothing=0.1)
        tensor(True)
    """
    if amount == 0:
        return loss

    def of(outputs: Tensor, labels: Tensor) -> Tensor:
        classes = outputs.shape[-1]
        hard = labels if labels.ndim > 1 else labels[:, None] == torch.arange(classes, device=labels.device)
        return loss(outputs, hard.to(outputs.dtype) * (1 - amount) + amount / classes)

    return of


def _differentiate(client: Client, network: nn.Module, training: Training) -> Differentiate:
    if client.step_defense is None:
        return _dense(client, network, training)
    return _Defended(client.step_defense, client, network, training)


def _dense(client: Client, network: nn.Module, training: Training) -> Differentiate:
    """Differentiate by plain autograd; on a GPU as a CUDA graph, where nothing is drawn or kept beside the batch."""
    loss = client_loss(client)
    parameters = [network.get_parameter(name) for name in trainable(network)]
    device = parameters[0].device.type
    run = torch.compile(network) if training.compile and device == "cuda" else network
    layout = torch.channels_last if training.channels_last else torch.preserve_format

    def differentiate(data: Protected, _: Tensor | None, streams: Streams) -> tuple[Tensor, Gradients]:
        inputs = data.inputs[0].to(memory_format=layout)
        noise = {name: drawn[0].to(inputs) for name, drawn in draw_noise(client, len(inputs), streams=streams).items()}
        with torch.autocast(device, torch.bfloat16, enabled=training.precision == "bf16"):
            outputs = functional_call(network, noise, (inputs,)) if noise else run(inputs)
        value = loss(outputs.to(inputs.dtype), data.labels[0])
        gradients = torch.autograd.grad(value, parameters, allow_unused=True, materialize_grads=True)
        return value.detach(), tuple(gradient[None] for gradient in gradients)

    if device == "cuda" and not (training.compile or client.model_defenses or client.update_defenses):
        return _Replayed(differentiate, network)
    return differentiate


class _Replayed:
    """Replays forward and backward pass as a CUDA graph, which the first batch records, for batches of its shape.

    Gradients stay valid until the next call.
    """

    def __init__(self, differentiate: Differentiate, network: nn.Module) -> None:
        self._differentiate, self._network = differentiate, network
        self._data: Protected | None = None
        self._found: tuple[Tensor, Gradients] | None = None
        self._replay: Callable[[], Tensor] | None = None

    def __call__(self, data: Protected, sensitive: Tensor | None, streams: Streams) -> tuple[Tensor, Gradients]:
        if self._data is None:
            self._data = replace(data, inputs=data.inputs.clone(), labels=data.labels.clone())
            self._record(self._data, streams)
        if self._replay is None or self._found is None or not _alike(data, self._data):
            return self._differentiate(data, sensitive, streams)
        self._data.inputs.copy_(data.inputs)
        self._data.labels.copy_(data.labels)
        self._replay()
        return self._found[0].clone(), self._found[1]

    def _record(self, data: Protected, streams: Streams) -> None:
        def step() -> Tensor:
            self._found = self._differentiate(data, None, streams)
            return self._found[0]

        # Random layers go on where they were, as if nothing had been tried.
        with torch.random.fork_rng([data.inputs.device]):
            self._replay = capture(step, dict(self._network.named_buffers()))


def _alike(data: Protected, other: Protected) -> bool:
    pairs = ((data.inputs, other.inputs), (data.labels, other.labels))
    return all(one.shape == two.shape and one.dtype == two.dtype for one, two in pairs)


class _Defended:
    """Lets a step defense compute the gradient, in a network that is made ready once for all steps."""

    def __init__(self, defense: StepDefense, client: Client, network: nn.Module, training: Training) -> None:
        self._defense, self._client, self._network = defense, client, network
        self._loss, self._names = client_loss(client), trainable(network)
        self._runtime = Runtime(precision=training.precision)
        self._stacked: StackedNetwork | None = None

    def __call__(self, data: Protected, sensitive: Tensor | None, streams: Streams) -> tuple[Tensor, Gradients]:
        stacked = replace(self._ready(data, streams), streams=streams)
        result = self._defense.gradient(stacked, data, sensitive=sensitive, streams=streams)
        value = _loss_without_traces(self._network, self._loss, result.protected)
        _move_statistics(self._network, result.buffers)
        found = dict(zip(stacked.names, result.gradients, strict=True))
        return value, tuple(found[name].detach() for name in self._names)

    def _ready(self, data: Protected, streams: Streams) -> StackedNetwork:
        if self._stacked is None:
            self._stacked = stacked_network(
                self._client,
                data,
                model=self._network,
                parameters={},
                buffers={},
                streams=streams,
                runtime=self._runtime,
            )
        return self._stacked


def _loss_without_traces(network: nn.Module, loss: LossFn, data: Protected) -> Tensor:
    """Return the loss on what the model saw, which a step defense does not tell."""
    return loss(_outputs_without_traces(network, data), data.labels[0])


@torch.no_grad()
def _outputs_without_traces(network: nn.Module, data: Protected) -> Tensor:
    """Run the network in train mode, with copies of its running statistics."""
    copies = {name: buffer.clone() for name, buffer in network.named_buffers()}
    outputs: Tensor = functional_call(network, copies, (data.inputs[0],))
    return outputs


@torch.no_grad()
def _move_statistics(network: nn.Module, buffers: State) -> None:
    """Take over the running statistics (1, *shape) of a step in place, and count it."""
    for name, buffer in buffers.items():
        network.get_buffer(name).copy_(buffer[0])
    for path in {name.rpartition(".")[0] for name in buffers}:
        counter = getattr(network.get_submodule(path), "num_batches_tracked", None)
        if isinstance(counter, Tensor):
            counter.add_(1)
