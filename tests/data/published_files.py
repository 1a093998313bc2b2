"""Tiny files in the layouts that the data sets are published in."""

import gzip
import io
import pickle
import struct
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
from scipy.io import savemat

Array = npt.NDArray[np.uint8]
Entry = Array | list[int] | list[str]


def pixels(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).integers(256, size=shape, dtype=np.uint8)


def idx(array: Array) -> bytes:
    header = bytes([0, 0, 8, array.ndim]) + b"".join(struct.pack(">I", n) for n in array.shape)
    return header + array.tobytes()


def python2_pickle(entries: Mapping[str, Entry]) -> bytes:
    """Write what Python 2 wrote: strings of bytes, numpy.core, protocol 2."""
    items = b"".join(_string(key) + _value(value) + b"s" for key, value in entries.items())
    return b"\x80\x02}" + items + b"."


def python3_pickle(entries: Mapping[str, Entry]) -> bytes:
    return pickle.dumps(dict(entries), protocol=2)


def write(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def write_mnist(root: Path, folder: str = "MNIST") -> None:
    for stem, count in (("train", 6), ("t10k", 3)):
        raw = root / folder / "raw"
        write(raw / f"{stem}-images-idx3-ubyte.gz", gzip.compress(idx(pixels(count, 28, 28))))
        write(raw / f"{stem}-labels-idx1-ubyte.gz", gzip.compress(idx(np.arange(count, dtype=np.uint8))))


def write_fashion_mnist(root: Path) -> None:
    write_mnist(root, "FashionMNIST")


def write_cifar10(root: Path) -> None:
    folder = root / "cifar-10-batches-py"
    for k in range(1, 6):
        write(folder / f"data_batch_{k}", python2_pickle({"data": pixels(2, 3072, seed=k), "labels": [k, 0]}))
    write(folder / "test_batch", python2_pickle({"data": pixels(3, 3072), "labels": [7, 8, 9]}))
    write(folder / "batches.meta", python2_pickle({"label_names": [f"class {k}" for k in range(10)]}))


def write_cifar100(root: Path) -> None:
    for part, count in (("train", 4), ("test", 2)):
        labels = [99 - k for k in range(count)]
        content = python2_pickle({"data": pixels(count, 3072), "fine_labels": labels, "coarse_labels": [0] * count})
        write(root / "cifar-100-python" / part, content)
    write(root / "cifar-100-python" / "meta", python2_pickle({"fine_label_names": [f"class {k}" for k in range(100)]}))


def write_svhn(root: Path) -> None:
    for part, labels in (("train", [1, 2, 10, 4]), ("test", [10, 9])):
        buffer = io.BytesIO()
        savemat(buffer, {"X": pixels(32, 32, 3, len(labels)), "y": np.array(labels, dtype=np.uint8)[:, None]})
        write(root / "svhn" / f"{part}_32x32.mat", buffer.getvalue())


def write_ham10000(root: Path) -> None:
    arrays: dict[str, Array] = {}
    for part, count in (("train", 5), ("val", 0), ("test", 3)):
        arrays[f"{part}_images"] = pixels(count, 28, 28, 3)
        arrays[f"{part}_labels"] = np.arange(count, dtype=np.uint8)[:, None]
    write_npz(root / "dermamnist.npz", arrays)


def write_celeba(root: Path) -> None:
    arrays: dict[str, Array] = {}
    for part, count in (("train", 4), ("test", 2)):
        arrays[f"{part}_images"] = pixels(count, 32, 32, 3)
        arrays[f"{part}_male"] = np.arange(count, dtype=np.uint8) % 2
        arrays[f"{part}_identity"] = np.arange(count, dtype=np.uint8) + 100
    write_npz(root / "celeba_32.npz", arrays)


def write_npz(path: Path, arrays: Mapping[str, npt.NDArray[np.generic]]) -> None:
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)  # type: ignore[arg-type]
    write(path, buffer.getvalue())


WRITERS: dict[str, Callable[[Path], None]] = {
    "mnist": write_mnist,
    "fashion-mnist": write_fashion_mnist,
    "cifar10": write_cifar10,
    "cifar100": write_cifar100,
    "svhn": write_svhn,
    "ham10000": write_ham10000,
    "celeba": write_celeba,
}


def tar_gz(files: Mapping[str, bytes], links: Mapping[str, str] | None = None) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, target in (links or {}).items():
            link = tarfile.TarInfo(name)
            link.type, link.linkname = tarfile.SYMTYPE, target
            tar.addfile(link)
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def _value(value: Entry) -> bytes:
    if isinstance(value, np.ndarray):
        return _array(value)
    return b"](" + b"".join(_string(v) if isinstance(v, str) else b"J" + struct.pack("<i", v) for v in value) + b"e"


def _string(text: str) -> bytes:
    return b"U" + bytes([len(text)]) + text.encode()


def _array(array: Array) -> bytes:
    shape = b"(" + b"".join(b"J" + struct.pack("<i", n) for n in array.shape) + b"t"
    kind = b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    raw = b"T" + struct.pack("<i", array.size) + array.tobytes()
    return (
        b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R(K\x01"
        + shape
        + kind
        + b"\x89"
        + raw
        + b"tb"
    )
