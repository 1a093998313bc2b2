"""The variational bottleneck of PRECODE."""

import math
from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import skip_init

from gradveil.defenses._columns import carry
from gradveil.errors import UnsupportedModelError
from gradveil.types import Gradients


class Bottleneck(nn.Module):
    """Encoder, noise and decoder; the noise (B, K) is a buffer, zero unless somebody hands in another."""

    noise: Tensor

    def __init__(self, features: int, size: int, *, like: Tensor) -> None:
        super().__init__()
        place = {"device": like.device, "dtype": like.dtype}
        self.encoder = skip_init(nn.Linear, features, 2 * size, **place)
        self.decoder = skip_init(nn.Linear, size, features, **place)
        self.register_buffer("noise", like.new_zeros(1, size), persistent=False)
        self.measured = False
        self._divergence: Tensor | None = None

    def forward(self, features: Tensor) -> Tensor:
        """Pass features (B, d) through the bottleneck."""
        mean, spread = self.encoder(features).chunk(2, 1)
        spread = F.softplus(spread)
        if self.measured:
            parts = mean.square() + spread.square() - 1 - 2 * spread.log()
            self._divergence = parts.sum(1, keepdim=True) / (2 * math.log(2))
        decoded: Tensor = self.decoder(mean + spread * self.noise)
        return decoded

    def leave(self, _network: nn.Module, _arguments: tuple[Tensor, ...], outputs: Tensor) -> Tensor:
        """Let the outputs of the whole network carry the divergence."""
        divergence, self._divergence = self._divergence, None
        if divergence is None:
            raise UnsupportedModelError(
                "precode stands before a linear layer that did not run; name one that does, layer="
            )
        return carry(outputs, divergence)


def find_bottleneck(update: Gradients, size: int) -> int:
    """Return the number of the first tensor of a bottleneck of some size, told by its shapes; their count if none.

    Example:
        >>> import torch
        >>> shapes = [(2, 3), (4, 2), (4,), (2, 2), (2,), (5, 2)]
        >>> find_bottleneck(tuple(torch.zeros(1, *shape) for shape in shapes), 2)
        1
    """
    shapes = [tuple(tensor.shape[1:]) for tensor in update]
    starts = [i for i in range(len(shapes) - 3) if _is_bottleneck(shapes[i : i + 4], size)]
    return starts[-1] if starts else len(shapes)


def _is_bottleneck(shapes: Sequence[tuple[int, ...]], size: int) -> bool:
    """Tell whether four tensors are the weights and biases of an encoder and a decoder."""
    features = shapes[3][0] if len(shapes[3]) == 1 else 0
    return list(shapes) == [(2 * size, features), (2 * size,), (features, size), (features,)]
