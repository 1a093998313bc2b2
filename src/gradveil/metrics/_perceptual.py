"""The networks behind LPIPS: their layers, their weights, their features."""

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from gradveil.errors import DataError

Backbone: TypeAlias = Literal["alex", "vgg"]
_TORCHVISION = {"alex": "alexnet", "vgg": "vgg16"}


@dataclass(frozen=True, slots=True)
class Convolution:
    """One convolution and its ReLU.

    Args:
        index: its number in torchvision's `features`.
        shape: (out, in, kernel, kernel) of its weight.
        stride: of the convolution.
        pool: side of the max pooling (stride 2) before it, 0 for none.
        tapped: whether LPIPS compares its output.
    """

    index: int
    shape: tuple[int, int, int, int]
    stride: int = 1
    pool: int = 0
    tapped: bool = True

    @property
    def padding(self) -> int:
        """Zeros on each side; the strided first layer of AlexNet has 2 where 5 would keep the size."""
        return self.shape[-1] // 2 if self.stride == 1 else 2


def layers(backbone: Backbone) -> tuple[Convolution, ...]:
    """List the convolutions of a backbone in order.

    Example:
        >>> [layer.index for layer in layers("vgg") if layer.tapped]
        [2, 7, 14, 21, 28]
    """
    if backbone == "alex":
        return (
            Convolution(0, (64, 3, 11, 11), stride=4),
            Convolution(3, (192, 64, 5, 5), pool=3),
            Convolution(6, (384, 192, 3, 3), pool=3),
            Convolution(8, (256, 384, 3, 3)),
            Convolution(10, (256, 256, 3, 3)),
        )
    found: list[Convolution] = []
    index, channels = 0, 3
    for block, (depth, width) in enumerate([(2, 64), (2, 128), (3, 256), (3, 512), (3, 512)]):
        for place in range(depth):
            pool = 2 if place == 0 and block > 0 else 0
            found.append(Convolution(index, (width, channels, 3, 3), pool=pool, tapped=place == depth - 1))
            index, channels = index + 2, width
        index += 1
    return tuple(found)


def expected_shapes(backbone: Backbone) -> dict[str, tuple[int, ...]]:
    """Return the name and shape of every tensor that a weights file must hold.

    Names are those of torchvision (`features.0.weight`, `features.0.bias`, ...) and of the published LPIPS heads
    (`lin0.model.1.weight`, ...), so that the two state dicts saved as one safetensors file will do.

    Example:
        >>> expected_shapes("alex")["lin0.model.1.weight"]
        (1, 64, 1, 1)
    """
    shapes: dict[str, tuple[int, ...]] = {}
    for layer in layers(backbone):
        shapes[f"features.{layer.index}.weight"] = layer.shape
        shapes[f"features.{layer.index}.bias"] = layer.shape[:1]
    for head, layer in enumerate(layer for layer in layers(backbone) if layer.tapped):
        shapes[f"lin{head}.model.1.weight"] = (1, layer.shape[0], 1, 1)
    return shapes


@lru_cache(maxsize=2)
def load(backbone: Backbone, path: str | None) -> Mapping[str, Tensor]:
    """Read the weights from a safetensors file, or without one from torchvision and torchmetrics."""
    weights = _from_packages(backbone) if path is None else _from_file(path)
    for name, shape in expected_shapes(backbone).items():
        came = tuple(weights[name].shape) if name in weights else "nothing"
        if came != shape:
            raise DataError(f"LPIPS weights of {backbone} need {name} of shape {shape}, got {came}; see metrics.LPIPS")
        if name.startswith("lin") and weights[name].min() < 0:
            raise DataError(f"LPIPS heads are nonnegative, but {name} has entries below 0; take the published heads")
    return weights


def features(images: Tensor, weights: Mapping[str, Tensor], backbone: Backbone) -> list[Tensor]:
    """Return what LPIPS compares: one (N, channels, h, w) per tapped layer, for scaled (N, 3, H, W)."""
    tapped = []
    for layer in layers(backbone):
        images = F.max_pool2d(images, layer.pool, stride=2) if layer.pool else images
        weight, bias = (weights[f"features.{layer.index}.{part}"].to(images) for part in ("weight", "bias"))
        images = F.conv2d(images, weight, bias, stride=layer.stride, padding=layer.padding).relu()
        if layer.tapped:
            tapped.append(images)
    return tapped


def _from_file(path: str) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise DataError(f"cannot read LPIPS weights from {path}: {error}; give a safetensors file") from None


def _from_packages(backbone: Backbone) -> dict[str, Tensor]:
    """Take the backbone of torchvision (fetched by it if need be) and the heads that torchmetrics carries."""
    try:
        import torchvision

        model = torchvision.models.get_model(_TORCHVISION[backbone], weights="IMAGENET1K_V1", progress=False)
        return {**model.state_dict(), **torch.load(_heads_path(backbone), map_location="cpu", weights_only=True)}
    except (ImportError, OSError, RuntimeError) as error:
        raise DataError(
            f"LPIPS has no weights for {backbone} ({type(error).__name__}: {error}); install torchvision and "
            "torchmetrics with access to their weights, or pass weights=FILE.safetensors as metrics.LPIPS describes"
        ) from None


def _heads_path(backbone: Backbone) -> Path:
    found = importlib.util.find_spec("torchmetrics")
    if found is None or found.origin is None:
        raise ImportError("torchmetrics, which carries the LPIPS heads, is not installed")
    return Path(found.origin).parent / "functional" / "image" / "lpips_models" / f"{backbone}.pth"
