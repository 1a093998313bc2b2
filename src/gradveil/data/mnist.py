"""MNIST: handwritten digits (LeCun, Cortes and Burges)."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final, final

from typing_extensions import override

from gradveil.data._base import Dataset, PublishedFile, Source
from gradveil.data._idx import idx_files, read_idx_split

_FOLDER: Final = "MNIST/raw"


@final
@dataclass(frozen=True)
class Mnist(Source):
    """60,000 training and 10,000 test images (1, 28, 28) of ten digits."""

    summary: ClassVar[str] = "MNIST: 60,000 / 10,000 handwritten digits, grey, 28x28 pixels, 10 classes."
    files: ClassVar[tuple[PublishedFile, ...]] = idx_files(
        _FOLDER,
        "https://ossci-datasets.s3.amazonaws.com/mnist",
        sizes=(9912422, 28881, 1648877, 4542),
        checksums=(
            "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
            "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
            "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
            "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
        ),
    )

    @override
    def load(self, root: Path) -> Dataset:
        return Dataset(
            name="mnist",
            train=read_idx_split(self, root, folder=_FOLDER, part="train"),
            test=read_idx_split(self, root, folder=_FOLDER, part="test"),
            classes=tuple("0123456789"),
            mean=(0.1307,),
            std=(0.3081,),
        )
