"""DenseNet121."""

from dataclasses import dataclass
from typing import ClassVar, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from typing_extensions import override

from gradveil.models._base import Architecture, Shape
from gradveil.models._init import Init
from gradveil.models.zoo._parts import Size, Stem, chain, pooled, stem_convolution, stem_pool, window
from gradveil.types import Paper

BLOCKS = (6, 12, 24, 16)
"""Layers of each dense block."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class DenseNet121(Architecture):
    """Four dense blocks of 6, 12, 24 and 16 layers; a transition between two blocks halves channels and size.

    LODA trains it with the `cifar` stem, which has no normalization of its own. A feature map of one pixel is left
    as it is.

    Args:
        stem: `cifar` or `imagenet`.
        growth: channels that each layer adds.
        init: of the weights.
    """

    paper: ClassVar[Paper] = Paper(
        title="Densely Connected Convolutional Networks",
        authors="Gao Huang, Zhuang Liu, Laurens van der Maaten, Kilian Q. Weinberger",
        year=2017,
        url="https://arxiv.org/abs/1608.06993",
    )

    stem: Stem = "cifar"
    growth: int = 32
    init: Init = "kaiming"

    @override
    def network(self, *, input_shape: Shape, num_classes: int) -> nn.Module:
        channels, size = 2 * self.growth, input_shape[1:]
        layers: dict[str, nn.Module] = {"conv1": stem_convolution(self.stem, input_shape[0], channels)}
        if self.stem == "imagenet":
            layers |= {"bn1": nn.BatchNorm2d(channels), "relu1": nn.ReLU(), "maxpool": stem_pool()}
            size = -(-size[0] // 4), -(-size[1] // 4)

        for number, count in enumerate(BLOCKS, start=1):
            steps = [_DenseLayer(channels + step * self.growth, growth=self.growth) for step in range(count)]
            layers[f"block{number}"] = nn.Sequential(*steps)
            channels += count * self.growth
            if number < len(BLOCKS):
                layers[f"transition{number}"] = _transition(channels, size)
                channels, size = channels // 2, pooled(size, 2)

        layers |= {"bn": nn.BatchNorm2d(channels), "relu": nn.ReLU(), "avgpool": nn.AdaptiveAvgPool2d(1)}
        return chain({**layers, "flatten": nn.Flatten(), "fc": nn.Linear(channels, num_classes)})


class _DenseLayer(nn.Module):
    """Append `growth` channels, made by a 1×1 and a 3×3 convolution, to the inputs."""

    def __init__(self, inside: int, *, growth: int) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(inside)
        self.conv1 = nn.Conv2d(inside, 4 * growth, kernel_size=1, bias=False)
        self.bn2 = nn.BatchNorm2d(4 * growth)
        self.conv2 = nn.Conv2d(4 * growth, growth, kernel_size=3, padding=1, bias=False)

    @override
    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.conv1(F.relu(self.bn1(inputs)))
        return torch.cat([inputs, self.conv2(F.relu(self.bn2(hidden)))], dim=1)


def _transition(channels: int, size: Size) -> nn.Sequential:
    """Halve the channels and the size of a feature map."""
    return chain(
        {
            "bn": nn.BatchNorm2d(channels),
            "relu": nn.ReLU(),
            "conv": nn.Conv2d(channels, channels // 2, kernel_size=1, bias=False),
            "pool": nn.AvgPool2d(window(size, 2)),
        }
    )
