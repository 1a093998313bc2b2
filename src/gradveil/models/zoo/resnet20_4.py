"""ResNet20-4, the "ResNet20" of the automatic transformation search."""

from dataclasses import dataclass
from typing import ClassVar, final

from torch import nn
from typing_extensions import override

from gradveil.models._base import Architecture, Shape
from gradveil.models._init import Init
from gradveil.models.zoo._residual import residual_network
from gradveil.types import Paper


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ResNet20x4(Architecture):
    """Three stages of three basic blocks with 64, 128 and 256 channels: four times the width of ResNet20.

    Args:
        init: of the weights.
    """

    paper: ClassVar[Paper] = Paper(
        title="Privacy-preserving Collaborative Learning with Automatic Transformation Search",
        authors="Wei Gao, Shangwei Guo, Tianwei Zhang, Han Qiu, Yonggang Wen, Yang Liu",
        year=2021,
        url="https://arxiv.org/abs/2011.12505",
    )

    init: Init = "kaiming"

    @override
    def network(self, *, input_shape: Shape, num_classes: int) -> nn.Module:
        return residual_network((3, 3, 3), channels=input_shape[0], num_classes=num_classes)
