"""PRECODE: a variational bottleneck in the network."""

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, final

import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import skip_init
from typing_extensions import override

from gradveil.defenses._base import Adversary, ModelDefense
from gradveil.defenses._columns import carry, take_off
from gradveil.defenses._layers import find_linear, insert_before, linear
from gradveil.defenses._start import fill_like_torch
from gradveil.streams import Streams
from gradveil.types import LossFn, Paper, State


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Precode(ModelDefense):
    """Let the network see its own features through a random bottleneck, which all participants train.

    The server sends the network with the bottleneck in it, so that its parameters are part of the update. Noise is
    drawn in eval mode too. There is no setting at which it changes nothing.

    Protects by randomness: the same image gives another gradient every time, at the bottleneck and after it. Weakened
    by leaving the gradients of the bottleneck and of what follows it out of the comparison; a network that begins with
    a linear layer gives its inputs away exactly, whatever comes later.

    Args:
        size: K, the features inside.
        beta: weight of the bottleneck's Kullback-Leibler divergence from standard normal numbers, in bits.
        layer: module path of the linear layer that it is put before; empty for the last one.
        seed: of the bottleneck's first weights, which the server draws.
    """

    paper: ClassVar[Paper | None] = Paper(
        title="PRECODE - A Generic Model Extension to Prevent Deep Gradient Leakage",
        authors="Scheliga, Mäder, Seeland",
        year=2022,
        url="https://arxiv.org/abs/2108.04725",
    )
    adversary: ClassVar[Adversary] = Adversary(
        reason="the informed attack leaves the stochastic layers out of the matching; it is not built yet",
    )
    off: ClassVar[Mapping[str, object] | None] = None
    server_side: ClassVar[bool] = True

    size: int = 256
    beta: float = 1e-3
    layer: str = ""
    seed: int = 0

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ValueError(f"size must be at least 1, got {self.size}")
        if self.beta < 0:
            raise ValueError(f"beta must be at least 0, got {self.beta}")

    @override
    def wrap(self, model: nn.Module) -> nn.Module:
        path = find_linear(model, self.layer)
        if self._name(model) in dict(model.named_modules()):
            return model
        network = copy.deepcopy(model)
        layer = linear(network, path)
        bottleneck = Bottleneck(layer.in_features, self.size, like=layer.weight)
        fill_like_torch(bottleneck, Streams(seed=self.seed, purpose="precode").bind(1))
        insert_before(network, path, "precode", bottleneck)
        return network

    @override
    def trained(self, network: nn.Module) -> nn.Module:
        network = copy.deepcopy(network)
        bottleneck = network.get_submodule(self._name(network))
        assert isinstance(bottleneck, Bottleneck)
        bottleneck.measured = True
        network.register_forward_hook(bottleneck.leave)
        return network

    @override
    def wrap_loss(self, loss: LossFn) -> LossFn:
        def with_divergence(outputs: Tensor, labels: Tensor) -> Tensor:
            logits, divergence = take_off(outputs, 1)
            return loss(logits, labels) + self.beta * divergence.mean()

        return with_divergence

    @override
    def draw(self, model: nn.Module, size: int, *, streams: Streams) -> State:
        return {f"{self._name(model)}.noise": streams.normal("precode", (size, self.size))}

    def _name(self, model: nn.Module) -> str:
        """Return the path of the bottleneck, which stands beside the layer."""
        above, dot, _ = find_linear(model, self.layer).rpartition(".")
        return f"{above}{dot}precode"


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
        assert divergence is not None
        return carry(outputs, divergence)
