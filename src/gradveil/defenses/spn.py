"""Secret polarization network."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import skip_init
from typing_extensions import override

from gradveil.defenses._base import Adversary, ModelDefense
from gradveil.defenses._columns import carry, take_off
from gradveil.defenses._layers import find_linear, linear
from gradveil.defenses._start import linear_start
from gradveil.errors import UnsupportedModelError
from gradveil.streams import Streams
from gradveil.types import Card, LossFn, Paper, State


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class SPN(ModelDefense):
    """Train the shared backbone with a second, private head, whose loss the adversary cannot compute.

    The head turns the features into K numbers; the polarization loss is a hinge that pulls each of them to the sign
    that the client's secret code of the class has. Head and codes never leave the client; it keeps and trains them
    over all rounds. What leaves is the gradient of both losses, for the shared parameters alone.

    Protects by a perturbation of the backbone's gradient that follows the data. Weakened by a small `alpha2`; the
    gradient of the public head is not perturbed at all, so that labels and features can be read off it; and an
    adversary who knows the construction can fit a head and codes of its own together with the image.

    Args:
        alpha2: weight of the polarization loss; the paper studies 1e-4 to 0.5, and trains with 0.1.
        alpha1: weight of the given loss.
        bits: K, length of the codes; the paper uses 64, and tries 32 to 128.
        margin: from which on a bit is good; the paper gives none, its authors' hashing networks use 1.
        depth: linear layers of the head, with ReLU between them; the paper does not say.
        width: features between them.
        layer: module path of the linear layer whose input the head reads; empty for the last one.
    """

    paper: ClassVar[Paper | None] = Paper(
        title="Rethinking Privacy Preserving Deep Learning: How to Evaluate and Thwart Privacy Attacks",
        authors="Fan, Ng, Ju, Zhang, Liu, Chan, Yang",
        year=2020,
        url="https://arxiv.org/abs/2006.11601",
    )
    adversary: ClassVar[Adversary] = Adversary(
        attack="surrogate-head",
        reason="who knows the construction fits a head and codes of its own together with the image",
    )
    off: ClassVar[Mapping[str, object] | None] = {"alpha2": 0.0}
    card: ClassVar[Card] = Card(
        fails="against who fits a head and codes of its own together with the image; labels and, for a batch of "
        "one, the features can be read off the public head, which is not perturbed",
        costs="one more linear head per client, which it trains, and keeps over all rounds and restarts",
        suggested="alpha2=0.1 for training, 0.3 and above where protection comes first; bits=64",
        interacts="dp-sgd clips the private gradient together with the shared one; pruning and top-k drop a "
        "part of the perturbation with the small entries",
    )

    alpha2: float = 0.1
    alpha1: float = 1.0
    bits: int = 64
    margin: float = 1.0
    depth: int = 1
    width: int = 256
    layer: str = ""

    def __post_init__(self) -> None:
        for name, least in (("bits", 1), ("depth", 1), ("width", 1), ("alpha1", 0), ("alpha2", 0), ("margin", 0)):
            if not least <= getattr(self, name) < torch.inf:
                raise ValueError(f"{name} must be at least {least} and finite, got {getattr(self, name)}")

    @override
    def wrap(self, model: nn.Module) -> nn.Module:
        network = copy.deepcopy(model)
        read, classes = linear(network, self.layer), linear(network, "").out_features
        head = PrivateHead(self._sizes(read.in_features), classes, self.margin, like=read.weight)
        read.add_module("spn", head)  # below a linear layer, since a chain of layers would run it
        read.register_forward_pre_hook(head.enter)
        network.register_forward_hook(head.leave)
        return network

    @override
    def wrap_loss(self, loss: LossFn) -> LossFn:
        def with_polarization(outputs: Tensor, labels: Tensor) -> Tensor:
            rest, polarization = take_off(outputs, outputs.shape[1] // 2)
            weights = labels if labels.ndim == 2 else _one_hot(labels, polarization)
            polarized = (weights * polarization[:, : weights.shape[1]]).sum(1).mean()
            return self.alpha1 * loss(rest, labels) + self.alpha2 * polarized

        return with_polarization

    @override
    def start(self, model: nn.Module, *, streams: Streams) -> State:
        path, classes = find_linear(model, self.layer), linear(model, "").out_features
        like, sizes = linear(model, path).weight, self._sizes(linear(model, path).in_features)
        private: dict[str, Tensor] = {}
        for i, (inputs, outputs) in enumerate(pairwise(sizes)):
            weight, bias = linear_start(streams, f"spn/{i}", inputs=inputs, outputs=outputs, like=like)
            private |= {f"{path}.spn.layers.{i}.weight": weight, f"{path}.spn.layers.{i}.bias": bias}
        codes = 2 * streams.integers("spn/codes", 2, (classes, self.bits)) - 1
        return {**private, f"{path}.spn.codes": codes.to(like)}

    def _sizes(self, features: int) -> list[int]:
        return [features, *[self.width] * (self.depth - 1), self.bits]


class PrivateHead(nn.Module):
    """Reads the features and lets the outputs carry the polarization loss that each class would have."""

    def __init__(self, sizes: list[int], classes: int, margin: float, *, like: Tensor) -> None:
        super().__init__()
        place = {"device": like.device, "dtype": like.dtype}
        self.layers = nn.ModuleList(skip_init(nn.Linear, a, b, **place) for a, b in pairwise(sizes))
        self.codes = nn.Parameter(like.new_ones(classes, sizes[-1]), requires_grad=False)
        self.margin = margin
        self._features: Tensor | None = None
        for parameter in self.layers.parameters():
            nn.init.zeros_(parameter)  # until the client fills in its own

    def forward(self, features: Tensor) -> Tensor:
        """Turn features (B, d) into the polarization loss (B, C) of every class."""
        for i, layer in enumerate(self.layers):
            features = layer(features if i == 0 else F.relu(features))
        return F.relu(self.margin - features[:, None] * self.codes).sum(-1)

    def enter(self, _layer: nn.Module, arguments: tuple[Tensor, ...]) -> None:
        """Read what enters the public layer."""
        self._features = arguments[0]

    def leave(self, _network: nn.Module, _arguments: tuple[Tensor, ...], outputs: Tensor) -> Tensor:
        """Double the columns of the whole network's outputs; those of no class carry zero."""
        features, self._features = self._features, None
        if features is None:
            raise UnsupportedModelError(
                "spn reads what enters a linear layer that did not run; name one that does, layer="
            )
        losses: Tensor = self(features)
        return carry(outputs, F.pad(losses, (0, outputs.shape[1] - losses.shape[1])))


def _one_hot(labels: Tensor, like: Tensor) -> Tensor:
    return (labels[:, None] == torch.arange(like.shape[1], device=labels.device)).to(like.dtype)
