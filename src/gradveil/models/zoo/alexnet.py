"""AlexNet for small images, as SPN trains it."""

import math
from dataclasses import dataclass
from typing import ClassVar, final

from torch import nn
from typing_extensions import override

from gradveil.models._base import Architecture, Shape
from gradveil.models._init import Init
from gradveil.models.zoo._parts import chain, perceptron, pooled, window
from gradveil.types import Paper


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class AlexNet(Architecture):
    """Five convolutions, three max pools and two linear layers (Table 4): 32×32 gives 4096 features, then 256.

    The table lists neither activations nor dropout: ReLU follows every layer but the last, and nothing is dropped.

    Args:
        init: of the weights.
    """

    paper: ClassVar[Paper] = Paper(
        title="Rethinking Privacy Preserving Deep Learning: How to Evaluate and Thwart Privacy Attacks",
        authors="Lixin Fan, Kam Woh Ng, Ce Ju, Tianyu Zhang, Chang Liu, Chee Seng Chan, Qiang Yang",
        year=2020,
        url="https://arxiv.org/abs/2006.11601",
    )

    init: Init = "kaiming-uniform"

    @override
    def network(self, *, input_shape: Shape, num_classes: int) -> nn.Module:
        inside, size = input_shape[0], input_shape[1:]
        layers: dict[str, nn.Module] = {}
        for number, (outside, kernel) in enumerate(((64, 5), (192, 5), (384, 3), (256, 3), (256, 3)), start=1):
            layers[f"conv{number}"] = nn.Conv2d(inside, outside, kernel, padding=kernel // 2)
            layers[f"relu{number}"] = nn.ReLU()
            inside = outside
            if number in {1, 2, 5}:
                layers[f"pool{number}"] = nn.MaxPool2d(window(size, 2))
                size = pooled(size, 2)

        return chain({**layers, **perceptron(inside * math.prod(size), (256,), num_classes)})
