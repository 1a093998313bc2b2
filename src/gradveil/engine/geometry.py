"""How a convolution moves over its input."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class Geometry:
    """How a two-dimensional convolution moves over its input."""

    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    groups: int

    @classmethod
    def of(
        cls,
        weight: Tensor,
        stride: int | Sequence[int],
        padding: str | int | Sequence[int],
        dilation: int | Sequence[int],
        groups: int,
    ) -> "Geometry | None":
        """Read the arguments of a call; None where padding differs between the two sides."""
        kernel, spread = (int(weight.shape[-2]), int(weight.shape[-1])), _pair(dilation)
        if padding == "valid":
            padding = 0
        elif padding == "same":
            total = [d * (k - 1) for d, k in zip(spread, kernel, strict=True)]
            if any(t % 2 for t in total):
                return None
            padding = [t // 2 for t in total]
        assert not isinstance(padding, str)
        return cls(kernel, _pair(stride), _pair(padding), spread, groups)

    @property
    def pointwise(self) -> bool:
        """Whether each output pixel sees one input pixel."""
        return self.kernel == (1, 1) and self.padding == (0, 0)

    def output_size(self, height: int, width: int) -> tuple[int, int]:
        """Return height and width of the output."""
        sizes = zip((height, width), self.kernel, self.stride, self.padding, self.dilation, strict=True)
        down, right = ((size + 2 * p - d * (k - 1) - 1) // s + 1 for size, k, s, p, d in sizes)
        return down, right

    def windows(self, height: int, width: int) -> Iterator[tuple[slice, ...]]:
        """Yield for each offset of the kernel which pixels of a padded (V, B, H, W, C) input the outputs see."""
        everything = slice(None)
        for i in range(self.kernel[0]):
            for j in range(self.kernel[1]):
                top, left = i * self.dilation[0], j * self.dilation[1]
                rows = slice(top, top + self.stride[0] * (height - 1) + 1, self.stride[0])
                columns = slice(left, left + self.stride[1] * (width - 1) + 1, self.stride[1])
                yield everything, everything, rows, columns


def _pair(value: int | Sequence[int]) -> tuple[int, int]:
    values = (value,) * 2 if isinstance(value, int) else tuple(value) * (2 if len(value) == 1 else 1)
    return int(values[0]), int(values[1])
