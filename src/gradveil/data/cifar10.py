"""CIFAR-10: small photographs of ten classes (Krizhevsky)."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final, final

import numpy as np
from typing_extensions import override

from gradveil.data._base import Dataset, PublishedFile, Source
from gradveil.data._pickles import read_pickle
from gradveil.data._reading import make_split

_FOLDER: Final = "cifar-10-batches-py"
_TRAIN: Final = tuple(f"{_FOLDER}/data_batch_{k}" for k in range(1, 6))
_TEST: Final = f"{_FOLDER}/test_batch"
_META: Final = f"{_FOLDER}/batches.meta"


@final
@dataclass(frozen=True)
class Cifar10(Source):
    """50,000 training and 10,000 test images (3, 32, 32)."""

    summary: ClassVar[str] = "CIFAR-10: 50,000 / 10,000 photographs, colour, 32x32 pixels, 10 classes."
    files: ClassVar[tuple[PublishedFile, ...]] = (
        PublishedFile(
            path="cifar-10-python.tar.gz",
            url="https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
            sha256="6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce",
            size=170498071,
            members=(*_TRAIN, _TEST, _META),
        ),
    )

    @override
    def load(self, root: Path) -> Dataset:
        batches = [read_pickle(self.locate(root, path)) for path in _TRAIN]
        images = np.concatenate([batch.images() for batch in batches])
        labels = [label for batch in batches for label in batch.labels("labels")]
        test = read_pickle(self.locate(root, _TEST))
        return Dataset(
            name="cifar10",
            train=make_split(images, labels, where=root / _FOLDER),
            test=make_split(test.images(), test.labels("labels"), where=test.path),
            classes=read_pickle(self.locate(root, _META)).names("label_names"),
            mean=(0.4914672, 0.4822617, 0.4467701),
            std=(0.2470322, 0.2434851, 0.2615879),
        )
