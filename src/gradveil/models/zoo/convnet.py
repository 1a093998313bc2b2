"""The ConvNet of eight convolutions."""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal, final

from torch import nn
from typing_extensions import override

from gradveil.models._base import Architecture, Shape
from gradveil.models._init import Init
from gradveil.models.zoo._parts import chain, perceptron, pooled, window
from gradveil.types import Paper


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ConvNet(Architecture):
    """Eight convolutions with batch norm, a max pool of 3 after the sixth and the eighth, one linear layer.

    An image of 32×32 shrinks to 10×10 and 3×3. Where a feature map is smaller than 3, the pool takes all of it.

    Args:
        width: channels of the first convolution, of which the others have two and four times as many; 64 in ATS,
            Soteria and Inverting Gradients, 32 in DCS².
        kernel: of all convolutions; Table 9 of DCS² says 5.
        init: of the weights.
    """

    paper: ClassVar[Paper] = Paper(
        title="Privacy-preserving Collaborative Learning with Automatic Transformation Search",
        authors="Wei Gao, Shangwei Guo, Tianwei Zhang, Han Qiu, Yonggang Wen, Yang Liu",
        year=2021,
        url="https://arxiv.org/abs/2011.12505",
    )

    width: int = 64
    kernel: Literal[3, 5] = 3
    init: Init = "default"

    @override
    def network(self, *, input_shape: Shape, num_classes: int) -> nn.Module:
        inside, size = input_shape[0], input_shape[1:]
        layers: dict[str, nn.Module] = {}
        for number, multiple in enumerate((1, 2, 2, 4, 4, 4, 4, 4), start=1):
            outside = multiple * self.width
            layers[f"conv{number}"] = nn.Conv2d(inside, outside, self.kernel, padding=self.kernel // 2)
            layers[f"bn{number}"] = nn.BatchNorm2d(outside)
            layers[f"relu{number}"] = nn.ReLU()
            inside = outside
            if number in {6, 8}:
                layers[f"pool{number}"] = nn.MaxPool2d(window(size, 3))
                size = pooled(size, 3)

        return chain({**layers, **perceptron(inside * math.prod(size), (), num_classes)})
