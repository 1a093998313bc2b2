"""A picture of who holds what, for people."""

import colorsys
import io
from collections.abc import Sequence
from typing import Final

from PIL import Image, ImageDraw
from torch import Tensor

from gradveil.errors import DataError

_BAR: Final = 480  # pixels of the largest client
_ROW: Final = 18
_MARGIN: Final = 90
_KEY: Final = 110  # pixels of one entry of the key
_INK: Final = (20, 20, 20)
_LONGEST_NAME: Final = 14


def partition_picture(counts: Tensor, *, classes: Sequence[str] = ()) -> bytes:
    """Draw one bar per client, as long as it has samples, in one colour per class.

    Args:
        counts: (clients, K), from `Partition.counts`.
        classes: their names; numbers if there are none.

    Returns:
        A PNG file.

    Example:
        >>> import torch
        >>> partition_picture(torch.tensor([[3, 1], [0, 2]]))[1:4]
        b'PNG'
    """
    if counts.ndim != 2 or 0 in counts.shape or int(counts.sum(1).max()) < 1:
        raise DataError(f"a picture needs counts of shape (clients, classes), got {tuple(counts.shape)}")
    names = list(classes) or [str(label) for label in range(counts.shape[1])]
    if len(names) != counts.shape[1]:
        raise DataError(f"the counts have {counts.shape[1]} classes, but {len(names)} names are given")
    per_row = (_MARGIN + _BAR + 60) // _KEY
    keys = -(-len(names) // per_row)
    image = Image.new("RGB", (_MARGIN + _BAR + 60, (len(counts) + keys + 1) * _ROW), "white")
    draw = ImageDraw.Draw(image)
    _bars(draw, counts)
    for number, name in enumerate(names):
        row, column = divmod(number, per_row)
        left, top = column * _KEY + 8, (len(counts) + row) * _ROW + _ROW // 2
        draw.rectangle((left, top + 3, left + 10, top + 13), fill=_color(number, len(names)))
        draw.text((left + 15, top + 2), name[:_LONGEST_NAME], fill=_INK)
    return _png(image)


def _bars(draw: ImageDraw.ImageDraw, counts: Tensor) -> None:
    """Draw the clients below each other."""
    scale = _BAR / int(counts.sum(1).max())
    for client, own in enumerate(counts.tolist()):
        top, begun = client * _ROW + 2, 0
        draw.text((8, top + 1), f"client {client}", fill=_INK)
        for label, held in enumerate(own):
            left, right = (_MARGIN + round(scale * edge) for edge in (begun, begun + held))
            begun += held
            if right > left:
                draw.rectangle((left, top, right - 1, top + _ROW - 5), fill=_color(label, len(own)))
        draw.text((_MARGIN + round(scale * begun) + 6, top + 1), str(begun), fill=_INK)


def _color(number: int, of: int) -> tuple[int, int, int]:
    """Spread hues around the circle; neighbours differ in brightness too."""
    red, green, blue = colorsys.hsv_to_rgb(number / of, 0.45 + 0.3 * (number % 2), 0.9 - 0.2 * (number % 3 == 2))
    return round(255 * red), round(255 * green), round(255 * blue)


def _png(image: Image.Image) -> bytes:
    file = io.BytesIO()
    image.save(file, format="PNG")
    return file.getvalue()
