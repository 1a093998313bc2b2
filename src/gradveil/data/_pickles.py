"""The pickles that CIFAR is published in, read without letting them call anything.

A pickle is a program. This reader hands it stand-ins for the four names that an array of bytes needs and refuses
every other name. Even numpy's own array and dtype stay out of its reach, because a forged dtype can make numpy take
bytes of the file for addresses.
"""

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO, Final, TypeVar

import numpy as np

from gradveil.data._reading import Bytes, reading
from gradveil.errors import DataError

T = TypeVar("T")


def read_pickle(path: Path) -> "PickledDict":
    """Read a pickled dictionary of arrays of bytes, lists, strings and numbers."""
    with reading(path, "a CIFAR pickle"), path.open("rb") as file:
        content = _Unpickler(file, path).load()
    if not isinstance(content, dict):
        raise DataError(f"{path} must hold a dictionary, got {type(content).__name__}; get the published file again")
    return PickledDict(path, content)


class PickledDict:
    """The entries of a CIFAR file, checked as they are taken out."""

    def __init__(self, path: Path, entries: Mapping[object, object]) -> None:
        self.path = path
        self._entries = entries

    def images(self) -> Bytes:
        """Return the entry `data`, one row of 3 x 32 x 32 bytes per image, as (N, 3, 32, 32)."""
        array = self._get("data")
        if not isinstance(array, _Array):
            raise DataError(f"'data' in {self.path} must be an array, got {type(array).__name__}")
        with reading(self.path, "an array of CIFAR images"):
            return array.build().reshape(-1, 3, 32, 32)

    def labels(self, key: str) -> list[int]:
        """Return a list of whole numbers."""
        return self._list(key, int)

    def names(self, key: str) -> tuple[str, ...]:
        """Return a list of names."""
        return tuple(self._list(key, str))

    def _list(self, key: str, kind: type[T]) -> list[T]:
        value = self._get(key)
        items = [item for item in value if isinstance(item, kind)] if isinstance(value, list) else None
        if items is None or items != value:
            raise DataError(f"'{key}' in {self.path} must be a list of {kind.__name__}; get the published file again")
        return items

    def _get(self, key: str) -> object:
        if key not in self._entries:
            raise DataError(f"{self.path} has no entry '{key}'; get the published file again")
        return self._entries[key]


class _Array:
    """What a pickle says about an array, until we build it ourselves."""

    __slots__ = ("_state",)
    _state: tuple[object, ...]

    def __init__(self, *_: object) -> None:
        self._state = ()

    def __setstate__(self, state: tuple[object, ...]) -> None:
        self._state = state

    def build(self) -> Bytes:
        _, shape, kind, fortran, raw = self._state
        if not isinstance(kind, _Type) or kind.code not in {"u1", "|u1"}:
            raise ValueError("its numbers are not bytes")
        if not isinstance(raw, bytes | str) or not isinstance(shape, tuple):
            raise TypeError("it has no content")
        content = raw.encode("latin1") if isinstance(raw, str) else raw
        return np.frombuffer(content, dtype=np.uint8).reshape(shape, order="F" if fortran else "C")


class _Type:
    """What a pickle says about the numbers of an array."""

    __slots__ = ("code",)

    def __init__(self, code: object, *_: object) -> None:
        self.code = code

    def __setstate__(self, state: object) -> None:
        """Ignore byte order and alignment: bytes have neither."""


# Python 3 writes bytes as a call of `_codecs.encode`; the method of str knows text encodings only.
_STAND_INS: Final[Mapping[tuple[str, str], object]] = {
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy._core.multiarray", "_reconstruct"): _Array,
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Type,
    ("_codecs", "encode"): str.encode,
}


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: BinaryIO, path: Path) -> None:
        super().__init__(file, encoding="latin1")
        self._path = path

    def find_class(self, module: str, name: str) -> object:
        if (module, name) not in _STAND_INS:
            raise DataError(
                f"{self._path} asks to call {module}.{name}, which the published file never does; "
                "it was not run: delete the file and get the published one"
            )
        return _STAND_INS[module, name]
