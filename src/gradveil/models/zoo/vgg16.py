"""VGG16 for small images, with batch norm or group norm."""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal, final

from torch import nn
from typing_extensions import override

from gradveil.models._base import Architecture, Shape
from gradveil.models._init import Init
from gradveil.models.zoo._parts import chain, perceptron, pooled, window
from gradveil.types import Paper

STAGES = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))
"""Channels and convolutions of each stage."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class VGG16(Architecture):
    """Thirteen 3×3 convolutions in five stages, each of which ends in a max pool of 2, then linear layers.

    LODA trains the default. SPN's is `vgg16:norm=group,hidden=256,init=kaiming-uniform`. Its Table 5 prints a pool
    after every stage, but sizes and a linear layer that do not follow from them; here each pool halves the size, so
    that 32×32 gives 512 features. A feature map of one pixel is left as it is.

    Args:
        norm: after every convolution.
        groups: of group norm. SPN does not say how many; 32 is the customary number and divides all widths. For
            another number, each layer takes the greatest common divisor with its channels.
        hidden: widths of the linear layers before the last.
        init: of the weights.
    """

    paper: ClassVar[Paper] = Paper(
        title="Very Deep Convolutional Networks for Large-Scale Image Recognition",
        authors="Karen Simonyan, Andrew Zisserman",
        year=2015,
        url="https://arxiv.org/abs/1409.1556",
    )

    norm: Literal["batch", "group"] = "batch"
    groups: int = 32
    hidden: tuple[int, ...] = ()
    init: Init = "kaiming"

    @override
    def network(self, *, input_shape: Shape, num_classes: int) -> nn.Module:
        inside, size = input_shape[0], input_shape[1:]
        layers: dict[str, nn.Module] = {}
        for stage, (outside, convolutions) in enumerate(STAGES, start=1):
            for number in range(1, convolutions + 1):
                layers[f"conv{stage}_{number}"] = nn.Conv2d(inside, outside, kernel_size=3, padding=1)
                layers[f"norm{stage}_{number}"] = self._normalization(outside)
                layers[f"relu{stage}_{number}"] = nn.ReLU()
                inside = outside
            layers[f"pool{stage}"] = nn.MaxPool2d(window(size, 2))
            size = pooled(size, 2)

        return chain({**layers, **perceptron(inside * math.prod(size), self.hidden, num_classes)})

    def _normalization(self, channels: int) -> nn.Module:
        if self.norm == "batch":
            return nn.BatchNorm2d(channels)
        return nn.GroupNorm(math.gcd(self.groups, channels), channels)
