"""The network of many clients, as a step defense may use it."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol, Self, TypeAlias

from torch import Tensor, nn

from gradveil.engine import Evaluation, GradientFunction, Precision, Runtime, Trial, gradient_function
from gradveil.streams import Streams
from gradveil.types import LossFn, Mode, State

Draw: TypeAlias = Callable[[int, Streams], State]
"""From the number of samples of a step to the random buffers that the network needs for it, (V, *shape) by name."""


class MakeFunction(Protocol):
    """Makes a gradient function of a network; see `engine.gradient_function` for the arguments."""

    def __call__(
        self,
        model: nn.Module,
        loss: LossFn,
        *,
        names: tuple[str, ...],
        mode: Mode,
        parameters: State,
        buffers: State,
        precision: Precision,
        trial: Trial | None,
    ) -> GradientFunction:
        """Return the function from inputs and labels of V victims to their gradients."""


def draw_nothing(size: int, streams: Streams) -> State:  # noqa: ARG001
    """Leave a network without random layers as it is."""
    return {}


class Functions:
    """Gradient functions that were made before, so that all steps of a training try the fast path once."""

    def __init__(self) -> None:
        self._made: dict[Hashable, GradientFunction] = {}

    def get(self, key: Hashable, make: Callable[[], GradientFunction]) -> GradientFunction:
        """Return what was made under a key, or make it."""
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]


@dataclass(frozen=True, slots=True, kw_only=True)
class StackedNetwork:
    """The network of V clients: one architecture, whose tensors are shared or stacked.

    Args:
        model: eats (B, ...) of one client.
        loss: of the outputs and labels of one client.
        names: of the parameters to differentiate by.
        shared: those of them that leave the client; the others are private.
        num_classes: K.
        mode: of batch norm.
        parameters: (V, *shape) weights by name, where they differ between clients.
        buffers: (V, *shape) buffers by name, where they differ.
        streams: of the clients.
        draw: makes the noise of random layers.
        reduction: how the loss of a step comes from its samples.
        pool: (N, C, H, W) further images that a defense may draw from.
        runtime: precision and memory probe.
        make: makes the gradient function.
        functions: made before; a network that is replaced part by part keeps them.
    """

    model: nn.Module
    loss: LossFn
    names: tuple[str, ...]
    shared: tuple[str, ...]
    num_classes: int
    streams: Streams
    mode: Mode = "eval"
    parameters: State = field(default_factory=dict)
    buffers: State = field(default_factory=dict)
    draw: Draw = draw_nothing
    reduction: Literal["mean", "sum"] = "mean"
    pool: Tensor | None = None
    runtime: Runtime = field(default_factory=lambda: Runtime(precision="float32"))
    make: MakeFunction = gradient_function
    functions: Functions = field(default_factory=Functions, repr=False, compare=False)

    def __call__(self, inputs: Tensor, labels: Tensor) -> Evaluation:
        """Compute the plain gradients of inputs (V, B, ...) and labels (V, B) or (V, B, K)."""
        return self.function(inputs)(inputs, labels)

    def function(self, like: Tensor) -> GradientFunction:
        """Make the function from inputs of the shape of `like`, (V, B, ...), and labels to plain gradients.

        Weights and buffers that belong to the model are read when the function is called.
        """
        noise = {name: tensor.to(like) for name, tensor in self.draw(like.shape[1], self.streams).items()}
        buffers = {**self.buffers, **noise}
        if self.parameters or buffers:
            return self._make(buffers, None)
        # The functions hold the model and the loss, so that no other one gets their identity.
        key = (id(self.model), id(self.loss), self.names, self.mode, self.runtime.precision)
        trial = (like.shape[1:], like.dtype, like.device)
        return self.functions.get((key, trial), lambda: self._make({}, Trial.like(like[0], self.num_classes)))

    def _make(self, buffers: State, trial: Trial | None) -> GradientFunction:
        return self.make(
            self.model,
            self.loss,
            names=self.names,
            mode=self.mode,
            parameters=self.parameters,
            buffers=buffers,
            precision=self.runtime.precision,
            trial=trial,
        )

    def select(self, victims: Sequence[int] | slice) -> Self:
        """Keep some clients."""
        rows = victims if isinstance(victims, slice) else list(victims)
        return replace(
            self,
            parameters={name: tensor[rows] for name, tensor in self.parameters.items()},
            buffers={name: tensor[rows] for name, tensor in self.buffers.items()},
            streams=self.streams.select(victims),
        )

    def samples(self, owners: Sequence[int], numbers: Sequence[int]) -> Self:
        """Make every sample a client of its own: sample `numbers[i]` of client `owners[i]`."""
        keys = tuple((*self.streams.keys[owner], number) for owner, number in zip(owners, numbers, strict=True))
        chosen = self.select(owners)
        return replace(chosen, streams=replace(chosen.streams, keys=keys))
