"""First weights of layers that a defense adds."""

import math

import torch
from torch import Tensor, nn

from gradveil.streams import Streams


def linear_start(streams: Streams, name: str, *, inputs: int, outputs: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """Draw the weights (V, outputs, inputs) and biases (V, outputs) of a linear layer, as torch would spread them.

    Example:
        >>> weight, bias = linear_start(Streams().bind(3), "head", inputs=4, outputs=2, like=torch.zeros(()))
        >>> weight.shape, bias.shape, bool(weight.abs().max() <= 0.5)
        (torch.Size([3, 2, 4]), torch.Size([3, 2]), True)
    """
    bound = 1 / math.sqrt(inputs)
    weight = streams.uniform(f"{name}.weight", (outputs, inputs), like=like)
    bias = streams.uniform(f"{name}.bias", (outputs,), like=like)
    return bound * (2 * weight - 1), bound * (2 * bias - 1)


@torch.no_grad()
def fill_like_torch(module: nn.Module, streams: Streams) -> None:
    """Give the linear layers of a module their first weights, from the streams of one victim."""
    for path, layer in module.named_modules():
        if isinstance(layer, nn.Linear):
            weight, bias = linear_start(
                streams, path, inputs=layer.in_features, outputs=layer.out_features, like=layer.weight
            )
            layer.weight.copy_(weight[0])
            layer.bias.copy_(bias[0])
