"""What every architecture has in common: settings that are checked, and a network made from a seed."""

import typing
from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal, TypeAlias, final

import torch
from torch import nn

from gradveil.errors import SpecError
from gradveil.models._init import Init, initialize
from gradveil.registry import Registry
from gradveil.types import Paper

Shape: TypeAlias = tuple[int, int, int]
"""Channels, height and width of one image."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture(ABC):
    """A family of networks for images; a leaf is one frozen dataclass in one file of `zoo`.

    The fields of a leaf are its settings. Those of type `Literal` are checked against their options, and every whole
    number is a count of at least 1.
    """

    paper: ClassVar[Paper | None] = None
    smallest: ClassVar[int] = 8
    """Smallest height and width of an image."""

    @property
    @abstractmethod
    def init(self) -> Init:
        """How the weights start; a leaf makes it a field, with the default of its paper."""

    def __post_init__(self) -> None:
        hints = typing.get_type_hints(type(self))
        for field in fields(self):
            _check_setting(field.name, getattr(self, field.name), hints[field.name])

    @final
    def build(self, *, input_shape: Shape, num_classes: int, seed: int = 0) -> nn.Module:
        """Make the network on the CPU, in train mode.

        The global random state is neither used nor changed: the same seed gives the same bits everywhere.

        Args:
            input_shape: (C, H, W) of one image.
            num_classes: K, the length of the output.
            seed: of the weights.

        Returns:
            A network from (B, C, H, W) to (B, K) whose last layer is called `fc`.

        Example:
            >>> model = architectures.build("lenet").build(input_shape=(3, 32, 32), num_classes=100)
            >>> model.fc
            Linear(in_features=768, out_features=100, bias=True)
        """
        self._check(input_shape, num_classes)
        with torch.device("meta"):
            model = self.network(input_shape=input_shape, num_classes=num_classes)

        model = model.to_empty(device="cpu")
        initialize(model, self.init, generator=torch.Generator().manual_seed(seed))
        return model

    @abstractmethod
    def network(self, *, input_shape: Shape, num_classes: int) -> nn.Module:
        """Lay out the modules; their weights are filled in by `build`."""

    def _check(self, input_shape: Shape, num_classes: int) -> None:
        name = architectures.name_of(self)
        if len(input_shape) != 3 or min(input_shape) < 1:
            raise SpecError(f"{name} takes images of shape (channels, height, width), got {tuple(input_shape)}")
        if min(input_shape[1:]) < self.smallest:
            least, got = f"{self.smallest}x{self.smallest}", "x".join(map(str, input_shape[1:]))
            raise SpecError(f"{name} needs images of at least {least} pixels, got {got}; enlarge them or use mlp")
        if num_classes < 1:
            raise SpecError(f"{name} needs at least 1 class, got {num_classes}")


architectures: Registry[Architecture] = Registry("model", "gradveil.models.zoo", Architecture)  # type: ignore[type-abstract]


def build(spec: str, *, input_shape: Shape, num_classes: int, seed: int = 0) -> nn.Module:
    """Make the network that `name:field=value,...` describes; see `Architecture.build`.

    Example:
        >>> model = build("mlp:hidden=16+8,activation=tanh", input_shape=(1, 8, 8), num_classes=10)
        >>> [tuple(parameter.shape) for parameter in model.parameters()]
        [(16, 64), (16,), (8, 16), (8,), (10, 8), (10,)]
    """
    return architectures.build(spec).build(input_shape=input_shape, num_classes=num_classes, seed=seed)


def _check_setting(name: str, value: object, kind: Any) -> None:
    options = typing.get_args(kind)
    if typing.get_origin(kind) is Literal and value not in options:
        raise ValueError(f"{name} must be one of {', '.join(map(str, options))}, got {value!r}")

    numbers = value if isinstance(value, tuple) else (value,)
    if any(isinstance(number, int) and number < 1 for number in numbers):
        raise ValueError(f"{name} must be at least 1, got {value}")
