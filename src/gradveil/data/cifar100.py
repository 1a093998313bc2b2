"""CIFAR-100: small photographs of a hundred classes (Krizhevsky)."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final, final

from typing_extensions import override

from gradveil.data._base import Dataset, PublishedFile, Source, Split
from gradveil.data._pickles import read_pickle
from gradveil.data._reading import make_split

_FOLDER: Final = "cifar-100-python"


@final
@dataclass(frozen=True)
class Cifar100(Source):
    """50,000 training and 10,000 test images (3, 32, 32) with fine labels."""

    summary: ClassVar[str] = "CIFAR-100: 50,000 / 10,000 photographs, colour, 32x32 pixels, 100 classes."
    files: ClassVar[tuple[PublishedFile, ...]] = (
        PublishedFile(
            path="cifar-100-python.tar.gz",
            url="https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",
            sha256="85cd44d02ba6437773c5bbd22e183051d648de2e7d6b014e1ef29b855ba677a7",
            size=169001437,
            members=tuple(f"{_FOLDER}/{name}" for name in ("train", "test", "meta")),
        ),
    )

    @override
    def load(self, root: Path) -> Dataset:
        return Dataset(
            name="cifar100",
            train=self._read(root, "train"),
            test=self._read(root, "test"),
            classes=read_pickle(self.locate(root, f"{_FOLDER}/meta")).names("fine_label_names"),
            mean=(0.5071598, 0.4866936, 0.4412019),
            std=(0.2673343, 0.2564385, 0.2761505),
        )

    def _read(self, root: Path, part: str) -> Split:
        content = read_pickle(self.locate(root, f"{_FOLDER}/{part}"))
        return make_split(content.images(), content.labels("fine_labels"), where=content.path)
