"""PRECODE: a variational bottleneck in the network."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor, nn
from typing_extensions import override

from gradveil.defenses._base import Adversary, ModelDefense
from gradveil.defenses._bottleneck import Bottleneck, find_bottleneck
from gradveil.defenses._columns import take_off
from gradveil.defenses._layers import find_linear, insert_before, linear
from gradveil.defenses._start import fill_like_torch
from gradveil.streams import Streams
from gradveil.types import Card, Gradients, LossFn, Paper, State


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
        attack="bayes-optimal",
        reason="who knows of the bottleneck leaves it and what follows out of the matching, and reads what entered it",
    )
    off: ClassVar[Mapping[str, object] | None] = None
    card: ClassVar[Card] = Card(
        fails="against who leaves the bottleneck and what follows it out of the comparison; on networks that begin "
        "with a linear layer, which give inputs away exactly",
        costs="two linear layers that all participants train; the noise slows training",
        suggested="size=256, beta=1e-3, a bottleneck as early as a linear layer allows",
        interacts="soteria must defend another layer than the one behind the bottleneck to add anything; the "
        "server must send the network with the bottleneck in it",
    )
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

    @override
    def visible(self, update: Gradients) -> Gradients:
        """Hide the bottleneck and all that comes after it, where gradients depend on the noise most."""
        first = find_bottleneck(update, self.size)
        return tuple(torch.full_like(tensor, i < first, dtype=torch.bool) for i, tensor in enumerate(update))

    def _name(self, model: nn.Module) -> str:
        """Return the path of the bottleneck, which stands beside the layer."""
        above, dot, _ = find_linear(model, self.layer).rpartition(".")
        return f"{above}{dot}precode"
