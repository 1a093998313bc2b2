"""A contact sheet: what a policy does to images, for people."""

import io
from typing import Final

import numpy as np
import torch
from PIL import Image, ImageDraw
from torch import Tensor

from gradveil.errors import DataError
from gradveil.streams import Streams
from gradveil.transforms import (
    OPERATIONS,
    Hybrid,
    Variants,
    Views,
    all_variants,
    crop_flip,
    draw_variants,
    draw_views,
    transform_bytes,
)

_CELL: Final = 72  # pixels of the smallest shown image
_GAP: Final = 4
_LABEL: Final = 260
_INK: Final = (20, 20, 20)


def contact_sheet(policy: Hybrid, images: Tensor, *, seed: int = 0) -> bytes:
    """Draw images above everything that a policy may make of them, and below what a client would draw.

    Args:
        policy: to show.
        images: (N, C, H, W) bytes, a column each.
        seed: of the last row, which is cropped and mirrored too.

    Returns:
        A PNG file.

    Example:
        >>> from gradveil.transforms import parse_policy
        >>> sheet = contact_sheet(parse_policy("3-1-7"), torch.zeros(2, 3, 32, 32, dtype=torch.uint8))
        >>> sheet[1:4]
        b'PNG'
    """
    if images.ndim != 4 or images.dtype != torch.uint8 or not len(images):
        raise DataError(f"a contact sheet shows bytes (N, C, H, W), got {tuple(images.shape)} of {images.dtype}")
    rows = {"private": images}
    for codes, signs in zip(*all_variants(policy), strict=True):
        shape = (len(images), -1)
        rows[_name(codes, signs)] = transform_bytes(images, Variants(codes.expand(shape), signs.expand(shape)))
    rows["as drawn, cropped and mirrored"] = _drawn(policy, images, seed)
    return _png(_sheet(rows))


def _name(codes: Tensor, signs: Tensor) -> str:
    steps = [(OPERATIONS[code], sign) for code, sign in zip(codes.tolist(), signs.tolist(), strict=True) if code >= 0]
    return "\n".join(f"{step} {'+' if sign > 0 else '-'}" if step.signed else str(step) for step, sign in steps)


def _drawn(policy: Hybrid, images: Tensor, seed: int) -> Tensor:
    streams = Streams(seed=seed, purpose="client").bind(1)
    views = draw_views(size=len(images), streams=streams)
    variants = draw_variants(policy, size=len(images), streams=streams)
    cropped = crop_flip(images, Views(*(drawn[0] for drawn in views)))
    return transform_bytes(cropped, Variants(*(drawn[0] for drawn in variants)))


def _sheet(rows: dict[str, Tensor]) -> Image.Image:
    count, _, height, width = next(iter(rows.values())).shape
    zoom = max(1, -(-_CELL // max(height, width)))
    across, down = zoom * width + _GAP, zoom * height + _GAP
    sheet = Image.new("RGB", (_LABEL + count * across, len(rows) * down), (255, 255, 255))
    draw = ImageDraw.Draw(sheet)
    for row, (name, images) in enumerate(rows.items()):
        draw.multiline_text((_GAP, row * down + _GAP), name, fill=_INK)
        for column, image in enumerate(images):
            tile = Image.fromarray(_colour(image)).resize((zoom * width, zoom * height), Image.Resampling.NEAREST)
            sheet.paste(tile, (_LABEL + column * across, row * down))
    return sheet


def _colour(image: Tensor) -> "np.typing.NDArray[np.uint8]":
    pixels: np.typing.NDArray[np.uint8] = image.expand(3, -1, -1).permute(1, 2, 0).contiguous().cpu().numpy()
    return pixels


def _png(sheet: Image.Image) -> bytes:
    buffer = io.BytesIO()
    sheet.save(buffer, format="PNG")
    return buffer.getvalue()
