"""The 50 operations of the transformation search, as data.

They come from the published list of 25 pairs for CIFAR-10, with magnitudes that the authors of the search changed. Each
has a level from 0 to 9. The published list also holds probabilities, which nothing ever reads: an operation of a policy
is always applied.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

from torch import Tensor

from gradveil.transforms import _enhance, _geometry, _tones

Function: TypeAlias = Callable[[Tensor, float, Tensor], Tensor]
"""Images (N, C, H, W), a value and signs (N,) to changed images."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A family of operations.

    Args:
        exact: on bytes, to the bit what Pillow gives.
        smooth: on numbers in [0, 1], differentiable.
        span: value at level 0 and at level 9; evenly spaced between. None where there is no value.
        signed: whether each image draws its own sign.
        whole: whether the value is rounded to a whole number.
    """

    exact: Function
    smooth: Function
    span: tuple[float, float] | None = None
    signed: bool = False
    whole: bool = False

    def value(self, level: int) -> float:
        """Return the value at a level from 0 to 9."""
        if self.span is None:
            return 0.0
        value = self.span[0] + level * (self.span[1] - self.span[0]) / 9
        return float(round(value)) if self.whole else value


KINDS: Final[dict[str, Kind]] = {
    "shear-x": Kind(_geometry.shear_x_bytes, _geometry.shear_x_smooth, (0, 0.3), signed=True),
    "shear-y": Kind(_geometry.shear_y_bytes, _geometry.shear_y_smooth, (0, 0.3), signed=True),
    "translate-x": Kind(_geometry.translate_x, _geometry.translate_x, (0, 150 / 331), signed=True),
    "translate-y": Kind(_geometry.translate_y, _geometry.translate_y, (0, 150 / 331), signed=True),
    "rotate": Kind(_geometry.rotate_bytes, _geometry.rotate_smooth, (0, 30)),
    "color": Kind(_enhance.color_bytes, _enhance.color_smooth, (0, 0.5), signed=True),
    "contrast": Kind(_enhance.contrast_bytes, _enhance.contrast_smooth, (0, 0.5), signed=True),
    "sharpness": Kind(_enhance.sharpness_bytes, _enhance.sharpness_smooth, (0, 0.5), signed=True),
    "brightness": Kind(_enhance.brightness_bytes, _enhance.brightness_smooth, (0, 0.5), signed=True),
    "posterize": Kind(_tones.posterize_bytes, _tones.posterize_smooth, (8, 4), whole=True),
    "solarize": Kind(_tones.solarize_bytes, _tones.solarize_smooth, (256, 0)),
    "autocontrast": Kind(_tones.autocontrast_bytes, _tones.autocontrast_smooth),
    "equalize": Kind(_tones.equalize_bytes, _tones.equalize_smooth),
    "invert": Kind(_tones.invert_bytes, _tones.invert_smooth),
}


@dataclass(frozen=True, slots=True)
class Operation:
    """One entry of the table.

    Args:
        kind: a key of `KINDS`.
        level: from 0 to 9.
    """

    kind: str
    level: int

    @property
    def value(self) -> float:
        """Shear coefficient, share of the side, degrees, amount, bits or threshold; 0 where there is none."""
        return KINDS[self.kind].value(self.level)

    @property
    def signed(self) -> bool:
        """Whether each image draws its own sign."""
        return KINDS[self.kind].signed

    @property
    def identity(self) -> bool:
        """Whether it changes nothing: solarizing from 256 on, or colour by a factor of 1."""
        return (self.kind == "solarize" and self.value >= 256) or (self.signed and self.value == 0)

    def idle(self, channels: int) -> bool:
        """Whether it changes nothing in images of so many channels: grey ones have no colour to blend with."""
        return self.identity or (channels == 1 and self.kind == "color")

    def __str__(self) -> str:
        return self.kind if KINDS[self.kind].span is None else f"{self.kind} {self.level}"


_ENTRIES: Final = """
    invert 7, contrast 6, rotate 2, translate-x 9, sharpness 1, sharpness 3, shear-y 2, translate-y 2, autocontrast 5,
    equalize 2, shear-y 5, posterize 5, color 3, brightness 5, sharpness 9, brightness 9, equalize 5, equalize 1,
    contrast 7, sharpness 5, color 5, translate-x 5, equalize 7, autocontrast 8, translate-y 3, sharpness 6,
    brightness 6, color 8, solarize 0, invert 0, equalize 0, autocontrast 0, equalize 8, equalize 4, color 5,
    equalize 5, autocontrast 4, solarize 4, brightness 3, color 0, solarize 1, autocontrast 0, translate-y 3,
    translate-y 3, autocontrast 1, solarize 1, equalize 5, invert 0, translate-y 3, autocontrast 1
"""

OPERATIONS: Final[tuple[Operation, ...]] = tuple(
    Operation(kind, int(level)) for kind, level in (entry.split() for entry in _ENTRIES.split(","))
)
"""The operation of each index, from 0 to 49."""


def canonical_index(index: int) -> int:
    """Return the smallest index of the same function: 29 of the 50 differ.

    Example:
        >>> canonical_index(46), len({canonical_index(i) for i in range(50)})
        (9, 29)
    """
    return _CANONICAL[index]


def _first_of_function() -> tuple[int, ...]:
    functions = [(operation.kind, operation.value) for operation in OPERATIONS]
    return tuple(functions.index(function) for function in functions)


_CANONICAL: Final = _first_of_function()
