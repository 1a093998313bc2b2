"""Learned perceptual image patch similarity (Zhang, Isola, Efros, Shechtman and Wang, 2018)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, final

import torch
import torch.nn.functional as F
from torch import Tensor
from typing_extensions import override

from gradveil.errors import DataError
from gradveil.metrics._base import Metric
from gradveil.metrics._perceptual import Backbone, features, load

SMALLEST_SIDE = 32
_SHIFT, _SCALE = (-0.030, -0.088, -0.188), (0.458, 0.448, 0.450)
_CHUNK = 64


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class LPIPS(Metric):
    """Distance between the features that a trained network sees in two images; 0 for an exact copy.

    Grey images are taken as three equal channels, and images with a side below 32 are first enlarged to 32 there
    (bilinear), because the networks cannot see less. Papers differ in the network: name it beside the number.

    Without a file, the backbone comes from torchvision and the heads from torchmetrics, where both are installed. A
    file is in safetensors format and holds, under torchvision's and the published heads' own names,

    - `features.N.weight`, `features.N.bias` of the convolutions (AlexNet 0, 3, 6, 8, 10; VGG16 0, 2, 5, ..., 28);
    - `lin0.model.1.weight` .. `lin4.model.1.weight`, each (1, channels, 1, 1) and nonnegative.

    `safetensors.torch.save_file({**backbone.state_dict(), **heads}, path)` writes one; other entries are ignored.

    Args:
        network: `alex` or `vgg`.
        weights: path of the safetensors file; None takes the installed packages.
    """

    title: ClassVar[str] = "LPIPS"
    unit: ClassVar[str] = ""
    higher_is_better: ClassVar[bool] = False

    network: Backbone = "alex"
    weights: str | None = None

    def __post_init__(self) -> None:
        if self.network not in ("alex", "vgg"):
            raise ValueError(f"network must be alex or vgg, got {self.network}")

    @override
    def score(self, guess: Tensor, truth: Tensor) -> Tensor:
        weights = load(self.network, self.weights)
        pairs = zip(guess.split(_CHUNK), truth.split(_CHUNK), strict=True)
        return torch.cat([lpips(g, t, weights=weights, network=self.network) for g, t in pairs])


def lpips(guess: Tensor, truth: Tensor, *, weights: Mapping[str, Tensor], network: Backbone) -> Tensor:
    """Return (N,) distances of (N, C, H, W) images in [0, 1], with C = 1 or 3.

    Args:
        guess: (N, C, H, W).
        truth: (N, C, H, W).
        weights: backbone and heads by name, see `LPIPS`.
        network: whose weights they are.
    """
    seen = [features(_scaled(images), weights, network) for images in (guess, truth)]
    distance = torch.zeros(len(truth), dtype=truth.dtype, device=truth.device)
    for head, (g, t) in enumerate(zip(*seen, strict=True)):
        weight = weights[f"lin{head}.model.1.weight"].to(truth)
        distance = distance + ((_unit(g) - _unit(t)).square() * weight).sum(1).mean((1, 2))
    return distance


def _scaled(images: Tensor) -> Tensor:
    """Bring [0, 1] images to three channels, the smallest side and the range of the backbone."""
    if images.shape[1] not in (1, 3):
        raise DataError(f"LPIPS sees images of 1 or 3 channels, got {images.shape[1]}; leave it out for these data")
    side = [max(length, SMALLEST_SIDE) for length in images.shape[-2:]]
    if list(images.shape[-2:]) != side:
        images = F.interpolate(images, size=side, mode="bilinear", align_corners=False)
    shift, scale = (images.new_tensor(values).reshape(1, 3, 1, 1) for values in (_SHIFT, _SCALE))
    return (2 * images.expand(-1, 3, -1, -1) - 1 - shift) / scale


def _unit(maps: Tensor) -> Tensor:
    """Give the channels at each place length 1."""
    length: Tensor = torch.linalg.vector_norm(maps, dim=1, keepdim=True)
    return maps / (length + 1e-10)
