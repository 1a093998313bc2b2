"""Reading files that may be damaged: every failure becomes one sentence that names the file."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from gradveil.data._base import Split
from gradveil.errors import DataError, GradVeilError

Bytes = npt.NDArray[np.uint8]


@contextmanager
def reading(path: Path, form: str, *, advice: str = "delete it and get the published file again") -> Iterator[None]:
    """Turn whatever a parser raises inside the block into a `DataError` that names the file.

    Args:
        path: of the file.
        form: what it should be, such as `a MATLAB file`.
        advice: what the user can do.
    """
    try:
        yield
    except GradVeilError:
        raise
    # Parsers of damaged files raise whatever their code runs into: the list is open.
    except Exception as error:
        cause = f"{type(error).__name__}: {error}".rstrip(": ")
        raise DataError(f"{path} cannot be read as {form} ({cause}); {advice}") from error


def make_split(
    images: Bytes, labels: npt.ArrayLike, *, where: Path, identity: npt.NDArray[np.integer] | None = None
) -> Split:
    """Make a split of the arrays read from a file.

    Args:
        images: (N, C, H, W) bytes, in any memory order.
        labels: (N,) or (N, 1) whole numbers.
        where: the file, for the error message.
        identity: (N,) whole numbers.
    """
    flat = np.asarray(labels).reshape(-1)
    if len(images) != len(flat):
        raise DataError(f"{where} holds {len(images)} images but {len(flat)} labels; get the published file again")
    if flat.size and not np.issubdtype(flat.dtype, np.integer):
        raise DataError(f"labels in {where} must be whole numbers, got {flat.dtype}; get the published file again")
    who = None if identity is None else torch.from_numpy(identity.astype(np.int64))
    # A copy, because tensors must own writable memory and parsers hand out views of what they read.
    return Split(torch.from_numpy(np.array(images, order="C")), torch.from_numpy(flat.astype(np.int64)), who)


def check_images(images: npt.NDArray[np.generic], *, where: Path) -> Bytes:
    """Return images (N, H, W, 3) of bytes as (N, 3, H, W), or say what else the file holds."""
    if images.ndim != 4 or images.shape[3] != 3 or images.dtype != np.uint8:
        form = f"{images.shape} of {images.dtype}"
        raise DataError(f"images in {where} must be (N, H, W, 3) of uint8, got {form}; get the published file again")
    return images.astype(np.uint8, copy=False).transpose(0, 3, 1, 2)
