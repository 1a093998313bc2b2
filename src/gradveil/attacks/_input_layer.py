"""The linear layer that eats the image: where gradients give images away exactly."""

import copy
from dataclasses import dataclass
from math import prod
from typing import Self

import torch
from torch import Tensor, nn

from gradveil.engine import find_normalization
from gradveil.errors import KnowledgeError, UnsupportedModelError
from gradveil.types import Observation


@dataclass(frozen=True, slots=True)
class InputLayer:
    """A linear layer with bias whose input is the flattened image, in standardized pixels.

    Args:
        number: of its weight in the update.
        bias_number: of its bias in the update.
        weight: (m, d) of the network, or (V, m, d) where the victims' networks differ.
        bias: (m,) or (V, m).
    """

    number: int
    bias_number: int
    weight: Tensor
    bias: Tensor

    @classmethod
    def of(cls, observation: Observation) -> Self:
        """Find the layer in the observed network, and see that its update was shared."""
        path = find_input_linear(observation.model, observation.input_shape[1:])
        weight, bias = f"{path}.weight", f"{path}.bias"
        if weight not in observation.names or bias not in observation.names:
            raise KnowledgeError(f"the update lacks {weight} or {bias}, from which images are read; share the layer")
        own, get = observation.parameters or {}, observation.model.get_parameter
        return cls(
            observation.names.index(weight),
            observation.names.index(bias),
            own.get(weight, get(weight).detach()),
            own.get(bias, get(bias).detach()),
        )

    def gradients(self, update: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        """Return the (V, m, d) weight and (V, m) bias gradients in double precision."""
        return update[self.number].double(), update[self.bias_number].double()


def find_input_linear(model: nn.Module, image_shape: tuple[int, ...]) -> str:
    """Return the path of the first linear layer with a bias that eats the flattened image as it is.

    Args:
        model: any network of one tensor; it is left alone.
        image_shape: (C, H, W).

    Example:
        >>> find_input_linear(nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)), (1, 2, 2))
        '1'
    """
    own = copy.deepcopy(model).eval()
    first = next(own.parameters())
    size = prod(image_shape)
    probe = (torch.arange(size, dtype=first.dtype, device=first.device) / size).view(1, *image_shape)
    expected = find_normalization(own).standardize(probe).flatten(1)
    found: list[str] = []

    def watch(path: str) -> None:
        def read(_layer: nn.Module, arguments: tuple[Tensor, ...]) -> None:
            if arguments[0].shape == expected.shape and torch.allclose(arguments[0], expected, atol=1e-5):
                found.append(path)

        own.get_submodule(path).register_forward_pre_hook(read)

    for path, layer in own.named_modules():
        if path and isinstance(layer, nn.Linear) and layer.bias is not None and layer.in_features == size:
            watch(path)
    with torch.no_grad():
        own(probe)
    if not found:
        raise UnsupportedModelError(
            f"no linear layer with a bias eats the flattened image in {type(model).__name__}; "
            "use an attack that matches gradients"
        )
    return found[0]
