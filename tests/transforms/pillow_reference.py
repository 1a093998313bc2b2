"""The operations by Pillow itself, one image at a time."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image, ImageEnhance, ImageOps
from torch import Tensor

from gradveil.transforms import OPERATIONS, Operation

ENHANCERS: dict[str, Callable[[Image.Image], ImageEnhance._Enhance]] = {
    "color": ImageEnhance.Color,
    "contrast": ImageEnhance.Contrast,
    "sharpness": ImageEnhance.Sharpness,
    "brightness": ImageEnhance.Brightness,
}
PLAIN: dict[str, Callable[[Image.Image], Image.Image]] = {
    "autocontrast": ImageOps.autocontrast,
    "equalize": ImageOps.equalize,
    "invert": ImageOps.invert,
}


def by_pillow(images: Tensor, codes: list[int], signs: list[int]) -> Tensor:
    """Apply operations in order to every image of (N, C, H, W) bytes."""
    return torch.stack([_one(image, codes, signs) for image in images])


def _one(image: Tensor, codes: list[int], signs: list[int]) -> Tensor:
    pixels: npt.NDArray[np.uint8] = image.permute(1, 2, 0).numpy()
    picture = Image.fromarray(pixels if len(image) == 3 else pixels[..., 0])
    for code, sign in zip(codes, signs, strict=True):
        picture = _apply(picture, OPERATIONS[code], sign)
    return torch.from_numpy(np.array(picture)).view(*image.shape[1:], -1).permute(2, 0, 1)


def _apply(picture: Image.Image, operation: Operation, sign: int) -> Image.Image:
    kind, value = operation.kind, operation.value * sign
    if kind in ENHANCERS:
        return ENHANCERS[kind](picture).enhance(1 + value)
    if kind in PLAIN:
        return PLAIN[kind](picture)
    if kind == "posterize":
        return ImageOps.posterize(picture, int(operation.value))
    if kind == "solarize":
        return ImageOps.solarize(picture, operation.value)  # type: ignore[arg-type]
    return _move(picture, kind, value, operation.value)


def _move(picture: Image.Image, kind: str, value: float, degrees: float) -> Image.Image:
    black = 0 if picture.mode == "L" else (0, 0, 0)
    width, height = picture.size
    affine, bicubic = Image.Transform.AFFINE, Image.Resampling.BICUBIC
    if kind == "rotate":
        turned = picture.convert("RGBA").rotate(degrees)
        grey = Image.new("RGBA", turned.size, (128, 128, 128, 128))
        return Image.composite(turned, grey, turned).convert(picture.mode)
    if kind == "translate-x":
        return picture.transform(picture.size, affine, (1, 0, value * width, 0, 1, 0), fillcolor=black)
    if kind == "translate-y":
        return picture.transform(picture.size, affine, (1, 0, 0, 0, 1, value * height), fillcolor=black)
    shear = (1, value, 0, 0, 1, 0) if kind == "shear-x" else (1, 0, 0, value, 1, 0)
    return picture.transform(picture.size, affine, shear, bicubic, fillcolor=black)
