"""ResNet34."""

from dataclasses import dataclass
from typing import ClassVar, final

from torch import nn
from typing_extensions import override

from gradveil.models._base import Architecture, Shape
from gradveil.models._init import Init
from gradveil.models.zoo._parts import Stem
from gradveil.models.zoo._residual import residual_network
from gradveil.types import Paper


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ResNet34(Architecture):
    """Four stages of 3, 4, 6 and 3 basic blocks with 64, 128, 256 and 512 channels.

    LODA trains it, with the `cifar` stem, on data that was obscured with a ResNet18.

    Args:
        stem: `cifar` or `imagenet`.
        init: of the weights.
    """

    paper: ClassVar[Paper] = Paper(
        title="Deep Residual Learning for Image Recognition",
        authors="Kaiming He, Xiangyu Zhang, Shaoqing Ren, Jian Sun",
        year=2016,
        url="https://arxiv.org/abs/1512.03385",
    )

    stem: Stem = "cifar"
    init: Init = "kaiming"

    @override
    def network(self, *, input_shape: Shape, num_classes: int) -> nn.Module:
        return residual_network((3, 4, 6, 3), channels=input_shape[0], num_classes=num_classes, stem=self.stem)
