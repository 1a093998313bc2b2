"""A perceptron of several layers."""

import math
from dataclasses import dataclass
from typing import ClassVar, final

from torch import nn
from typing_extensions import override

from gradveil.models._base import Architecture, Shape
from gradveil.models._init import Init
from gradveil.models.zoo._parts import Activation, chain, perceptron


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class MLP(Architecture):
    """Linear layers on the flattened image; its first layer gives single images away exactly.

    Args:
        hidden: widths of the layers before the last, written `1024+1024`; none makes a linear classifier.
        activation: after every layer but the last.
        init: of the weights.
    """

    smallest: ClassVar[int] = 1

    hidden: tuple[int, ...] = (1024, 1024)
    activation: Activation = "relu"
    init: Init = "default"

    @override
    def network(self, *, input_shape: Shape, num_classes: int) -> nn.Module:
        return chain(perceptron(math.prod(input_shape), self.hidden, num_classes, activation=self.activation))
