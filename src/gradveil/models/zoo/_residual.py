"""Residual networks of basic blocks; parameters are named as torchvision names them."""

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor, nn
from typing_extensions import override

from gradveil.models.zoo._parts import Stem, chain, stem_convolution, stem_pool


def residual_network(
    blocks: Sequence[int], *, channels: int, num_classes: int, stem: Stem = "cifar", width: int = 64
) -> nn.Sequential:
    """Lay out a residual network.

    Args:
        blocks: basic blocks of each stage; a stage has twice the channels and half the size of the one before.
        channels: of the image.
        num_classes: length of the output.
        stem: first layers.
        width: channels of the stem and the first stage.
    """
    layers: dict[str, nn.Module] = {
        "conv1": stem_convolution(stem, channels, width),
        "bn1": nn.BatchNorm2d(width),
        "relu": nn.ReLU(),
    }
    if stem == "imagenet":
        layers["maxpool"] = stem_pool()

    inside = width
    for stage, count in enumerate(blocks):
        outside = width * 2**stage
        first = BasicBlock(inside, outside, stride=1 if stage == 0 else 2)
        rest = [BasicBlock(outside, outside, stride=1) for _ in range(count - 1)]
        layers[f"layer{stage + 1}"] = nn.Sequential(first, *rest)
        inside = outside

    layers |= {"avgpool": nn.AdaptiveAvgPool2d(1), "flatten": nn.Flatten(), "fc": nn.Linear(inside, num_classes)}
    return chain(layers)


class BasicBlock(nn.Module):
    """Two 3×3 convolutions beside a shortcut, which is a 1×1 convolution where the shape changes."""

    def __init__(self, inside: int, outside: int, *, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, kernel_size=3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outside)
        self.conv2 = nn.Conv2d(outside, outside, kernel_size=3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outside)
        self.downsample = nn.Sequential()
        if stride != 1 or inside != outside:
            self.downsample.append(nn.Conv2d(inside, outside, kernel_size=1, stride=stride, bias=False))
            self.downsample.append(nn.BatchNorm2d(outside))

    @override
    def forward(self, inputs: Tensor) -> Tensor:
        hidden = F.relu(self.bn1(self.conv1(inputs)))
        return F.relu(self.bn2(self.conv2(hidden)) + self.downsample(inputs))
