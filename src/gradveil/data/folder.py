"""A user's own images: one folder per class."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from typing import ClassVar, Final, TypeAlias, final

import numpy as np
import torch
from PIL import Image, ImageOps
from typing_extensions import override

from gradveil.data._base import Dataset, Source, Split
from gradveil.data._reading import Bytes, make_split, reading
from gradveil.data._stratified import channel_moments, stratified
from gradveil.errors import DataError

_SUFFIXES: Final = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".webp"})
# Named, so that a file that lies about its suffix cannot reach a rarer parser.
_FORMATS: Final = ("PNG", "JPEG", "BMP", "WEBP")
_KINDS: Final = "PNG, JPEG, BMP or WebP"
_LISTING: Final = "sensitive.txt"
_DEEP_MODES: Final = frozenset({"I", "F", "I;16", "I;16L", "I;16B", "I;16N"})

Marked: TypeAlias = frozenset[Path] | None
"""Images that are sensitive; None where nobody said so."""


@final
@dataclass(frozen=True)
class Folder(Source):
    """Images in `PATH/CLASS/`, or in `PATH/train/CLASS/` and `PATH/test/CLASS/`.

    Each split has a fixed, shuffled order, so that images that follow each other are of mixed classes. A file
    `PATH/sensitive.txt` marks the images that defenses of some samples protect, one path below PATH in a line.

    Args:
        path: of the folder.
        size: shorter sides become this long and the centre is cut out as a square; None takes the images as they
            are, if all have one size.
        test_fraction: of each class, where the folder has no test part.
        grey: read one channel instead of three.
    """

    summary: ClassVar[str] = (
        f"Your own images ({_KINDS}), one folder per class, written folder:PATH or folder:PATH,size=32.\n"
        "PATH holds the class folders, or train/ and test/ with the class folders in each."
    )

    path: str = ""
    size: int | None = None
    test_fraction: float = 0.2
    grey: bool = False

    def __post_init__(self) -> None:
        if not self.path:
            raise DataError("folder needs the path of your images; write folder:PATH")
        if self.size is not None and self.size < 1:
            raise DataError(f"size must be at least 1, got {self.size}")
        if not 0 < self.test_fraction < 1:
            raise DataError(f"test_fraction must be above 0 and below 1, got {self.test_fraction}")

    @override
    def load(self, root: Path) -> Dataset:
        top = Path(self.path).expanduser()
        if not top.is_dir():
            raise DataError(f"{top} is not a folder; give the folder that holds one folder of images per class")

        divided = (top / "train").is_dir() and (top / "test").is_dir()
        classes = _classes(top / "train" if divided else top)
        if len(classes) == 1:
            raise DataError(f"{top} must hold the folders of at least two classes, got only {classes[0]}")
        marked = _marked(top, parts=[top / "train", top / "test"] if divided else [top], classes=classes)
        train, test = self._load_divided(top, classes, marked) if divided else self._divide(top, classes, marked)
        mean, std = channel_moments(train.images)
        return Dataset(name=f"folder:{top.resolve().name}", train=train, test=test, classes=classes, mean=mean, std=std)

    def _load_divided(self, top: Path, classes: tuple[str, ...], marked: Marked) -> tuple[Split, Split]:
        extra = sorted(set(_classes(top / "test")) - set(classes))
        if extra:
            raise DataError(f"{top / 'test'} has the class {extra[0]}, which {top / 'train'} does not have")
        train, test = (self._load_split(top / part, classes, marked) for part in ("train", "test"))
        _check_one_size([train, test], top)
        return _shuffled(train), _shuffled(test)

    def _divide(self, top: Path, classes: tuple[str, ...], marked: Marked) -> tuple[Split, Split]:
        everything = self._load_split(top, classes, marked)
        train, test = stratified(everything.labels.numpy(), test_fraction=self.test_fraction)
        if not len(test):
            raise DataError(f"{top} holds one image per class; a test part needs at least two of some class")
        return _shuffled(everything.select(train.tolist())), _shuffled(everything.select(test.tolist()))

    def _load_split(self, folder: Path, classes: tuple[str, ...], marked: Marked) -> Split:
        files = [(path, label) for label, name in enumerate(classes) for path in _images(folder / name)]
        first = files[0][0]
        arrays: list[Bytes] = []
        for path, _ in files:
            array = self._read(path)
            if arrays and array.shape != arrays[0].shape:
                sizes = f"{first} is {_size(arrays[0])} and {path} is {_size(array)}"
                raise DataError(f"images must have one size, but {sizes}; give a size, as in folder:PATH,size=32")
            arrays.append(array)
        split = make_split(np.stack(arrays), [label for _, label in files], where=folder)
        sensitive = None if marked is None else torch.tensor([path in marked for path, _ in files])
        return replace(split, sensitive=sensitive)

    def _read(self, path: Path) -> Bytes:
        """Return an image as (C, H, W) bytes."""
        with reading(path, "an image", advice="replace or remove it"), Image.open(path, formats=_FORMATS) as file:
            if file.mode in _DEEP_MODES:
                raise DataError(f"{path} has more than 8 bits per channel (mode {file.mode}); save it with 8 bits")
            image = ImageOps.exif_transpose(file).convert("L" if self.grey else "RGB")
            if self.size is not None:
                image = ImageOps.fit(image, (self.size, self.size), method=Image.Resampling.BILINEAR)
            array = np.asarray(image, dtype=np.uint8)
        return array[None] if self.grey else array.transpose(2, 0, 1)


def _classes(folder: Path) -> tuple[str, ...]:
    """List the class folders by name; hidden ones do not count."""
    names = sorted(p.name for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))
    if not names:
        raise DataError(f"{folder} holds no class folders; put your images into one folder per class")
    empty = [name for name in names if not _images(folder / name)]
    if empty:
        raise DataError(f"{folder / empty[0]} holds no images; put {_KINDS} files there or remove the folder")
    return tuple(names)


def _marked(top: Path, *, parts: Sequence[Path], classes: Sequence[str]) -> Marked:
    """Read which images are sensitive."""
    listing = top / _LISTING
    if not listing.is_file():
        return None
    known = {path for part in parts for name in classes for path in _images(part / name)}
    with reading(listing, "a list of images", advice="save it as plain text"):
        lines = listing.read_text(encoding="utf-8").splitlines()
    named = [line.strip() for line in lines if line.strip()]
    for name in named:
        if top / name not in known:
            raise DataError(f"{listing} names {name}, which is no image here; write paths below {top}, one in a line")
    return frozenset(top / name for name in named)


def _images(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    found = {p.relative_to(folder): p for p in folder.rglob("*") if p.suffix.lower() in _SUFFIXES and p.is_file()}
    seen = [name for name in found if not any(part.startswith(".") for part in name.parts)]
    return [found[name] for name in sorted(seen, key=PurePath.as_posix)]


def _shuffled(split: Split) -> Split:
    return split.select(np.random.default_rng(0).permutation(len(split)).tolist())


def _check_one_size(splits: list[Split], top: Path) -> None:
    train, test = (_size(split.images.numpy()[0]) for split in splits)
    if train != test:
        raise DataError(f"images in {top} must have one size, but train is {train} and test {test}; give a size")


def _size(image: Bytes) -> str:
    return f"{image.shape[2]}x{image.shape[1]}"
