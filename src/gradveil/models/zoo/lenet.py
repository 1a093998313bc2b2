"""The LeNet of Deep Leakage from Gradients, which others call DLNet."""

from dataclasses import dataclass
from typing import ClassVar, Literal, final

from torch import nn
from typing_extensions import override

from gradveil.models._base import Architecture, Shape
from gradveil.models._init import Init
from gradveil.models.zoo._parts import Activation, activate, chain, perceptron
from gradveil.types import Paper


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class LeNet(Architecture):
    """Convolutions of 5×5 with 12 channels and one linear layer, smooth so that the attack can be.

    The first two convolutions halve the size, the others keep it: 32×32 gives 768 features, 28×28 gives 588.

    Args:
        convolutions: 3 as DLG and iDLG, or 4 as Soteria and SPN (Table 6).
        activation: after every convolution; SPN takes `tanh` for SVHN.
        init: of the weights and biases; SPN takes `uniform-0.3`.
    """

    paper: ClassVar[Paper] = Paper(
        title="Deep Leakage from Gradients",
        authors="Ligeng Zhu, Zhijian Liu, Song Han",
        year=2019,
        url="https://arxiv.org/abs/1906.08935",
    )
    smallest: ClassVar[int] = 4

    convolutions: Literal[3, 4] = 3
    activation: Activation = "sigmoid"
    init: Init = "uniform-0.5"

    @override
    def network(self, *, input_shape: Shape, num_classes: int) -> nn.Module:
        channels, height, width = input_shape
        strides = (2, 2, 1, 1)[: self.convolutions]
        layers: dict[str, nn.Module] = {}
        for number, stride in enumerate(strides, start=1):
            layers[f"conv{number}"] = nn.Conv2d(channels, 12, kernel_size=5, stride=stride, padding=2)
            layers[f"act{number}"] = activate(self.activation)
            channels, height, width = 12, -(-height // stride), -(-width // stride)

        return chain({**layers, **perceptron(channels * height * width, (), num_classes)})
