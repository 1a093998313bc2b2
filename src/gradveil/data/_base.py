"""What every data set is: two splits of images kept as bytes, and a source that reads them from published files."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import ClassVar, Self

import torch
from torch import Tensor

from gradveil.errors import DataError
from gradveil.registry import Registry


@dataclass(frozen=True, slots=True, eq=False)
class Split:
    """One part of a data set.

    Args:
        images: (N, C, H, W) bytes.
        labels: (N,) int64 class indices.
        identity: (N,) int64 whose image it is, where a data set says so.
        sensitive: (N,) bool, for defenses that protect some samples; None marks all.

    Example:
        >>> split = Split(torch.full((3, 1, 2, 2), 255, dtype=torch.uint8), torch.tensor([0, 1, 0]))
        >>> len(split), split.inputs([1]).shape, split.inputs().max().item()
        (3, torch.Size([1, 1, 2, 2]), 1.0)
    """

    images: Tensor
    labels: Tensor
    identity: Tensor | None = None
    sensitive: Tensor | None = None

    def __post_init__(self) -> None:
        if self.images.ndim != 4 or self.images.dtype != torch.uint8:
            form = f"{tuple(self.images.shape)} of {self.images.dtype}"
            raise DataError(f"images must be (N, C, H, W) of torch.uint8, got {form}")
        for name, kind in (("labels", torch.int64), ("identity", torch.int64), ("sensitive", torch.bool)):
            values = getattr(self, name)
            if values is not None and (values.shape != self.images.shape[:1] or values.dtype != kind):
                form = f"{tuple(values.shape)} of {values.dtype}"
                raise DataError(f"{name} must be ({len(self.images)},) of {kind}, as many as images, got {form}")

    def __len__(self) -> int:
        return len(self.images)

    def inputs(self, indices: Sequence[int] | Tensor | None = None, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return some or all images as (n, C, H, W) numbers in [0, 1]."""
        images = self.images if indices is None else self.images[torch.as_tensor(indices, dtype=torch.int64)]
        return images.to(dtype).div_(255)

    def contents(self) -> tuple[Tensor, ...]:
        """Return everything that a training depends on, to tell one split from another."""
        return (self.images, self.labels, *(() if self.sensitive is None else (self.sensitive,)))

    def select(self, indices: Sequence[int] | Tensor) -> Self:
        """Keep some images, in the order of the indices."""
        kept = torch.as_tensor(indices, dtype=torch.int64)
        identity = None if self.identity is None else self.identity[kept]
        sensitive = None if self.sensitive is None else self.sensitive[kept]
        return type(self)(self.images[kept], self.labels[kept], identity, sensitive)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Dataset:
    """Images with labels, ready for training and for drawing victims.

    Args:
        name: as on the command line.
        train: the images a model is trained on.
        test: the images it is measured on, which the papers attack.
        classes: the name of each class.
        mean: of each channel on [0, 1], suggested for normalization.
        std: of each channel.
    """

    name: str
    train: Split
    test: Split
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __post_init__(self) -> None:
        for part, split in (("train", self.train), ("test", self.test)):
            if not len(split):
                raise DataError(f"the {part} split of {self.name} holds no images")
            low, high = int(split.labels.min()), int(split.labels.max())
            if low < 0 or high >= self.num_classes:
                wanted = f"0 to {self.num_classes - 1}"
                raise DataError(f"labels of the {part} split of {self.name} must be {wanted}, got {low} to {high}")
        if self.train.images.shape[1:] != self.test.images.shape[1:]:
            shapes = f"{self.input_shape} and {tuple(self.test.images.shape[1:])}"
            raise DataError(f"train and test images of {self.name} must have one shape, got {shapes}")
        if not len(self.mean) == len(self.std) == self.input_shape[0] or min(self.std) <= 0:
            raise ValueError(f"mean and std must hold one number per channel and std be above 0, got {self.std}")

    @property
    def num_classes(self) -> int:
        """Number of classes K."""
        return len(self.classes)

    @property
    def input_shape(self) -> tuple[int, int, int]:
        """Shape (C, H, W) of one image."""
        channels, height, width = self.train.images.shape[1:]
        return channels, height, width


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedFile:
    """A file that the authors of a data set published.

    Args:
        path: where it belongs, relative to the data folder.
        url: where it is published; empty where it cannot be fetched without a person.
        sha256: its published checksum; empty where none is known.
        size: in bytes; 0 where it is not known.
        members: what it unpacks to, relative to the data folder, if it is an archive; the archive is not kept.
    """

    path: str
    url: str = ""
    sha256: str = ""
    size: int = 0
    members: tuple[str, ...] = ()

    def present(self, root: Path) -> bool:
        """Say whether the file, or everything it unpacks to, lies in the data folder."""
        return all(_find(root, path) for path in self.members or (self.path,))


@dataclass(frozen=True)
class Source(ABC):
    """Reads one data set; a leaf is one file of this folder, and its name is the file's."""

    summary: ClassVar[str]
    """One sentence: what the images are, how many, and who may use them."""

    files: ClassVar[tuple[PublishedFile, ...]] = ()
    """The published files it reads; none where it needs nothing from the data folder."""

    @abstractmethod
    def load(self, root: Path) -> Dataset:
        """Read the data set from the data folder `root`."""

    @classmethod
    def present(cls, root: Path) -> bool:
        """Say whether every published file lies in the data folder; true where none is needed."""
        return all(file.present(root) for file in cls.files)

    @classmethod
    def explain(cls) -> str:
        """Say what the data set is and how to get its files, by command or by hand."""
        if not cls.files:
            return cls.summary
        by_command = f"Run `gradveil data download {sources.name_of(cls)}`, or place" if cls._fetchable() else "Place"
        return "\n".join([cls.summary, f"{by_command} by hand in the data folder:", *map(_describe, cls.files)])

    @classmethod
    def locate(cls, root: Path, relative: str) -> Path:
        """Return the path of a needed file, which may lie there without its `.gz`."""
        found = _find(root, relative)
        if found is None:
            name = sources.name_of(cls)
            command = f"run `gradveil data download {name}` or " if cls._fetchable() else ""
            advice = f"{command}place it there by hand (`gradveil data explain {name}` says how)"
            raise DataError(f"{name} needs the file {root / relative}, which does not exist; {advice}")
        return found

    @classmethod
    def _fetchable(cls) -> bool:
        return all(file.url for file in cls.files)


sources: Registry[Source] = Registry("data set", "gradveil.data", Source)  # type: ignore[type-abstract]


def _find(root: Path, relative: str) -> Path | None:
    path = root / relative
    return next((p for p in (path, path.with_name(path.name.removesuffix(".gz"))) if p.is_file()), None)


def _describe(file: PublishedFile) -> str:
    size = f" ({file.size / 1e3:,.0f} kB)" if file.size else ""
    origin = f" from {file.url}" if file.url else ""
    folders = sorted({str(PurePosixPath(member).parent) for member in file.members})
    unpacked = f", unpacked to {', '.join(folders)}/" if folders else ""
    return f"  {file.path}{size}{origin}{unpacked}"
