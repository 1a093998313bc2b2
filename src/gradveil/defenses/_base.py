"""What every defense is; the base class is the place of the client step where it acts."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor, nn

from gradveil.defenses._network import StackedNetwork
from gradveil.streams import Streams
from gradveil.types import Card, Gradients, LossFn, Paper, Protected, State


@dataclass(frozen=True, slots=True, kw_only=True)
class Adversary:
    """Who knows how to attack a defense that is in place.

    Args:
        attack: registry name of the adaptive attack, empty if none is known.
        reason: why it is the right one, or why none is known.
    """

    attack: str = ""
    reason: str = ""


class Defense(ABC):
    """Changes what a client shares; a leaf is a frozen dataclass whose fields are settings.

    Class attributes:
        paper: where the defense comes from, None for folklore.
        adversary: who attacks it with knowledge of it.
        off: settings at which it changes nothing; None if it has none.
        card: what to know before relying on it.
    """

    paper: ClassVar[Paper | None] = None
    adversary: ClassVar[Adversary]
    off: ClassVar[Mapping[str, object] | None] = None
    card: ClassVar[Card]

    def resample(self, update: Gradients, *, streams: Streams) -> Gradients:  # noqa: ARG002
        """Apply the defense again to a trial update; the identity where it does not act on updates."""
        return update

    def log_likelihood(self, observed: Gradients, clean: Gradients) -> Tensor:
        """Return (V,) log p(observed | clean)."""
        raise NotImplementedError(f"{type(self).__name__} has no likelihood")

    def visible(self, update: Gradients) -> Gradients:
        """Return a mask of the entries of an observed update that carry information."""
        return tuple(torch.ones_like(tensor, dtype=torch.bool) for tensor in update)

    def forward(self, inputs: Tensor) -> Tensor:
        """Apply the defense to images, differentiably; the identity where it does not act on images."""
        return inputs


class DataDefense(Defense):
    """Acts on the batch.

    Class attributes:
        soft_labels: whether it mixes labels, for which the client, who knows the number of classes, makes them soft.
    """

    soft_labels: ClassVar[bool] = False

    @abstractmethod
    def protect(self, data: Protected, *, pool: Tensor | None, streams: Streams) -> Protected:
        """Change what the model will see.

        Args:
            data: the batch, or what an earlier data defense made of it.
            pool: (N, C, H, W) further images to draw from, own or public.
            streams: of the client.
        """


class ModelDefense(Defense):
    """Acts on the network or its loss.

    Class attributes:
        server_side: whether the server sends the changed network; otherwise only the client has it.
    """

    server_side: ClassVar[bool] = False

    @abstractmethod
    def wrap(self, model: nn.Module) -> nn.Module:
        """Return the changed network, whose outputs are the logits; parameters of the original keep their names."""

    def trained(self, network: nn.Module) -> nn.Module:
        """Return the changed network as the client trains it; outputs after the logits are for `wrap_loss` to read."""
        return network

    def wrap_loss(self, loss: LossFn) -> LossFn:
        """Return the changed loss."""
        return loss

    def start(self, model: nn.Module, *, streams: Streams) -> State:  # noqa: ARG002
        """Make the client's private tensors, (V, *shape) by the name of a parameter of the changed network."""
        return {}

    def draw(self, model: nn.Module, size: int, *, streams: Streams) -> State:  # noqa: ARG002
        """Draw the noise of one step on `size` samples, (V, *shape) by the name of a buffer of the changed network."""
        return {}


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a step defense returns: the gradients, and what the model saw."""

    gradients: Gradients
    protected: Protected
    buffers: State = field(default_factory=dict)


class StepDefense(Defense):
    """Acts on how the gradient is computed."""

    @abstractmethod
    def gradient(
        self, network: StackedNetwork, /, data: Protected, *, sensitive: Tensor | None, streams: Streams
    ) -> StepResult:
        """Compute the gradients of V victims.

        Args:
            network: of the victims; called with inputs and labels, it gives the plain gradient.
            data: what the model would see.
            sensitive: (V, B') which of them hold samples to protect, None for all.
            streams: of the client.
        """


@dataclass(frozen=True, slots=True)
class Shared:
    """What leaves the client, and what it keeps for its next round.

    Args:
        update: one (V, *shape) tensor per parameter.
        kept: private tensors (V, *shape) by name.
    """

    update: Gradients
    kept: State = field(default_factory=dict)


class UpdateDefense(Defense):
    """Acts on what leaves the client."""

    @abstractmethod
    def apply(self, update: Gradients, *, streams: Streams) -> Gradients:
        """Change an update, one (V, *shape) tensor per parameter, in a client's first round."""

    def share(self, update: Gradients, *, kept: State, streams: Streams) -> Shared:  # noqa: ARG002
        """Change an update in a later round; `kept` is what the round before left, empty in the first one."""
        return Shared(self.apply(update, streams=streams))

    def resample(self, update: Gradients, *, streams: Streams) -> Gradients:
        """Apply the defense again to a trial update."""
        return self.apply(update, streams=streams)
