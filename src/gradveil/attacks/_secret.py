"""The private parts of a client's network, as an adversary who knows how they are built imagines them."""

from dataclasses import dataclass
from typing import Protocol, Self, runtime_checkable

from torch import Tensor, nn

from gradveil.attacks._joint import Explain
from gradveil.engine import Runtime, Variable, patient_function, spread
from gradveil.streams import Streams
from gradveil.types import Gradients, LossFn, Observation, State


@runtime_checkable
class PrivatePart(Protocol):
    """A known defense that adds something to the client's network."""

    server_side: bool

    def wrap(self, model: nn.Module) -> nn.Module:
        """Return the changed network."""

    def trained(self, network: nn.Module) -> nn.Module:
        """Return it as the client trains it."""

    def wrap_loss(self, loss: LossFn) -> LossFn:
        """Return the changed loss."""

    def start(self, model: nn.Module, *, streams: Streams) -> State:
        """Draw private tensors, (V, *shape) by name."""


@dataclass(frozen=True, slots=True)
class Secret:
    """The client's network as the adversary imagines it.

    Args:
        seen: the observation.
        model: with private parts.
        loss: with their terms.
        private: (V, *shape) the adversary's own draw of the private tensors.
    """

    seen: Observation
    model: nn.Module
    loss: LossFn
    private: State

    @classmethod
    def of(cls, seen: Observation, streams: Streams) -> Self:
        """Add the private parts of known defenses to the network, with tensors of the adversary's own drawing."""
        model, loss, private = seen.model, seen.loss, dict[str, Tensor]()
        for defense in seen.defenses or ():
            if isinstance(defense, PrivatePart) and not defense.server_side:
                private |= defense.start(model, streams=streams)
                model, loss = defense.trained(defense.wrap(model)), defense.wrap_loss(loss)
        return cls(seen, model, loss, private)

    def unknowns(self) -> list[Variable]:
        """Start the private tensors, each victim's in units of their size."""
        variables = []
        for name, tensor in self.private.items():
            start, bound = tensor / self._size(name), None
            if not self.model.get_parameter(name).requires_grad:
                bound = spread(start.abs().flatten(1).amax(1), start)
            variables.append(Variable(start=start, low=None if bound is None else -bound, high=bound))
        return variables

    def explain(self, runtime: Runtime) -> Explain:
        """Return the gradient of the network with given private parts, for the parameters that are shared."""
        sizes = [self._size(name) for name in self.private]

        def of(images: Tensor, labels: Tensor, found: tuple[Tensor, ...]) -> Gradients:
            own = {name: value * size for name, value, size in zip(self.private, found, sizes, strict=True)}
            function = patient_function(
                self.model,
                self.loss,
                names=self.seen.names,
                mode=self.seen.mode,
                parameters={**(self.seen.parameters or {}), **own},
                buffers=self.seen.buffers,
                precision=runtime.precision,
            )
            return function(images, labels).gradients

        return of

    def _size(self, name: str) -> Tensor:
        tensor = self.private[name]
        return spread(tensor.square().flatten(1).mean(1).sqrt().clamp_min(1e-12), tensor)
