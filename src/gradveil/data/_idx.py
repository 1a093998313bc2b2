"""The idx format of MNIST and its relatives."""

import gzip
import math
from pathlib import Path
from typing import Final

import numpy as np

from gradveil.data._base import PublishedFile, Source, Split
from gradveil.data._reading import Bytes, make_split, reading
from gradveil.errors import DataError

_STEMS: Final = {"train": "train", "test": "t10k"}
_UNSIGNED_BYTE: Final = 0x08


def idx_files(
    folder: str, url: str, *, sizes: tuple[int, int, int, int], checksums: tuple[str, str, str, str]
) -> tuple[PublishedFile, ...]:
    """List the four files: images and labels of the training part, then of the test part.

    Args:
        folder: relative to the data folder.
        url: of the folder they are published in.
        sizes: in bytes.
        checksums: SHA-256.
    """
    names = [f"{stem}-{kind}-ubyte.gz" for stem in _STEMS.values() for kind in ("images-idx3", "labels-idx1")]
    return tuple(
        PublishedFile(path=f"{folder}/{name}", url=f"{url}/{name}", sha256=checksum, size=size)
        for name, size, checksum in zip(names, sizes, checksums, strict=True)
    )


def read_idx_split(source: Source, root: Path, *, folder: str, part: str) -> Split:
    """Read images and labels of the `train` or `test` part."""
    stem = f"{folder}/{_STEMS[part]}"
    path = source.locate(root, f"{stem}-images-idx3-ubyte.gz")
    images = read_idx(path, ndim=3)
    labels = read_idx(source.locate(root, f"{stem}-labels-idx1-ubyte.gz"), ndim=1)
    return make_split(images[:, None], labels, where=path)


def read_idx(path: Path, *, ndim: int) -> Bytes:
    """Read an array of bytes with `ndim` axes from a plain or gzipped idx file."""
    with reading(path, "a gzip file" if path.suffix == ".gz" else "a file"):
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()

    header = 4 + 4 * ndim
    magic = bytes([0, 0, _UNSIGNED_BYTE, ndim])
    if content[:4] != magic:
        came = content[:4].hex() or "an empty file"
        mark = f"{magic.hex()}, the mark of an idx file with {ndim} axes"
        raise DataError(f"{path} must begin with {mark}, got {came}; get the published file again")
    shape = tuple(int(n) for n in np.frombuffer(content[4:header].ljust(4 * ndim, b"\xff"), dtype=">u4"))
    if len(content) != header + math.prod(shape):
        form = " x ".join(map(str, shape))
        raise DataError(
            f"{path} announces {form} bytes but holds {max(len(content) - header, 0)}; get the published file again"
        )
    return np.frombuffer(content, dtype=np.uint8, offset=header).reshape(shape)
