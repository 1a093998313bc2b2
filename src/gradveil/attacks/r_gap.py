"""R-GAP: recursive gradient attack on privacy."""

from dataclasses import dataclass, replace
from typing import ClassVar, final

import torch
from torch import Tensor, nn
from typing_extensions import override

from gradveil.attacks._base import Attack
from gradveil.attacks._labels import with_labels
from gradveil.attacks._readout import pixels, reconstruction
from gradveil.attacks._recursion import Solved, derivative, enter_convolution, enter_linear, slope_before, undo
from gradveil.engine import Runtime
from gradveil.errors import KnowledgeError, UnsupportedModelError
from gradveil.streams import Streams
from gradveil.types import Card, Observation, Paper, Reconstruction


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class RGAP(Attack):
    """Go back through the network layer by layer, solving linear equations for what entered each.

    The bias gradient of the last layer is the slope of the loss at its outputs. With it, the weight gradient of a layer
    is linear in what entered the layer, and so are the outputs, which the layer after it has given; the two systems
    together determine the inputs, and these the slope at the layer before. The paper guesses the first slope for a
    binary loss; reading it off the bias is exact for any loss.
    """

    paper: ClassVar[Paper] = Paper(
        title="R-GAP: Recursive Gradient Attack on Privacy",
        authors="Zhu, Blaschko",
        year=2021,
        url="https://arxiv.org/abs/2010.07733",
    )
    batches: ClassVar[str] = "1"
    card: ClassVar[Card] = Card(
        fails="on batches of more than one image; on ReLU, pooling, batch norm and skip connections, which cannot be "
        "undone; where a layer narrows so much that equations are missing, which the residual does not show",
        costs="one dense system of C·H·W unknowns per convolution and victim, in double precision: small images only",
        suggested="nothing to set; look at `residuals` among the details, one per layer, from the last to the first",
        interacts="errors grow from layer to layer: noise, pruning or quantization of any one of them spoils the image",
    )

    @override
    def run(self, observation: Observation, *, streams: Streams, runtime: Runtime) -> Reconstruction:
        if observation.input_shape[0] != 1:
            raise UnsupportedModelError(f"r-gap reads batches of one image, got {observation.input_shape[0]}")
        layers = _chain(observation.model)
        shapes = _shapes(layers, observation)
        trained = [i for i, (_, layer) in enumerate(layers) if isinstance(layer, nn.Linear | nn.Conv2d)]
        if not trained or trained[-1] != len(layers) - 1 or not isinstance(layers[-1][1], nn.Linear):
            raise UnsupportedModelError("r-gap begins at a linear last layer, and the network ends otherwise")
        values = slope = _gradient(observation, f"{layers[-1][0]}.bias")

        residuals: list[Tensor] = []
        for number in range(len(layers) - 1, -1, -1):
            path, layer = layers[number]
            if isinstance(layer, nn.Linear | nn.Conv2d):
                solved, slope = _through(observation, path, layer, values, slope, shapes[number])
                values = solved.inputs
                residuals.append(solved.residual)
            elif isinstance(layer, nn.Flatten):
                values, slope = (t.reshape(len(t), *shapes[number]) for t in (values, slope))
            else:
                values = undo(layer, values)
                slope = slope * derivative(layer, values)
        return self._guess(observation, values, torch.stack(residuals, 1))

    def _guess(self, observation: Observation, standardized: Tensor, residuals: Tensor) -> Reconstruction:
        images = pixels(observation, standardized.flatten(1)[:, None])
        labels = with_labels(observation, "idlg").labels
        guess = reconstruction(observation, images, objective=residuals.amax(1), labels=labels)
        return replace(guess, details={"residuals": residuals.to(observation.dtype)})


def _through(
    observation: Observation,
    path: str,
    layer: nn.Linear | nn.Conv2d,
    values: Tensor,
    slope: Tensor,
    shape: tuple[int, ...],
) -> tuple[Solved, Tensor]:
    """Return what entered a layer, and the slope of the loss there."""
    weight, gradient = _parameter(observation, f"{path}.weight"), _gradient(observation, f"{path}.weight")
    if isinstance(layer, nn.Linear):
        return enter_linear(gradient, slope), (slope[:, None] @ weight).squeeze(1)
    outputs = values.flatten(2)
    if layer.bias is not None:
        outputs = outputs - _parameter(observation, f"{path}.bias")[:, :, None]
    solved = enter_convolution(layer, weight, gradient, outputs, slope.flatten(2), shape)
    return solved, slope_before(layer, weight, slope.flatten(2), shape)


def _chain(model: nn.Module, prefix: str = "") -> list[tuple[str, nn.Module]]:
    """List the layers of nested sequences, in the order in which they run."""
    if not isinstance(model, nn.Sequential):
        raise UnsupportedModelError(f"r-gap takes an nn.Sequential of layers, got {type(model).__name__}")
    layers: list[tuple[str, nn.Module]] = []
    for name, child in model.named_children():
        path = f"{prefix}{name}"
        layers += _chain(child, f"{path}.") if isinstance(child, nn.Sequential) else [(path, child)]
    return layers


def _shapes(layers: list[tuple[str, nn.Module]], observation: Observation) -> list[tuple[int, ...]]:
    """Run the layers once, and return the shape of what enters each, without the batch."""
    values = torch.zeros(observation.input_shape, dtype=observation.dtype, device=observation.device)
    shapes = []
    with torch.no_grad():
        for _, layer in layers:
            shapes.append(tuple(values.shape[1:]))
            values = layer.eval()(values)
    return shapes


def _parameter(observation: Observation, name: str) -> Tensor:
    """Return (V, *shape) of a parameter, in double precision."""
    own = observation.parameters or {}
    shared = observation.model.get_parameter(name).detach()
    return own.get(name, shared.expand(observation.victims, *shared.shape)).double()


def _gradient(observation: Observation, name: str) -> Tensor:
    if name not in observation.names:
        raise KnowledgeError(f"r-gap reads the gradient of {name}, which the update lacks; share the layer")
    return torch.nan_to_num(observation.update[observation.names.index(name)].double())
