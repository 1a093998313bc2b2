"""Fashion-MNIST: articles of clothing (Xiao, Rasul and Vollgraf)."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Final, final

import torch.nn.functional as F
from typing_extensions import override

from gradveil.data._base import Dataset, PublishedFile, Source, Split
from gradveil.data._idx import idx_files, read_idx_split

_FOLDER: Final = "FashionMNIST/raw"
_SIDE: Final = 28
_MEAN: Final = 0.2860
_STD: Final = 0.3530
_CLASSES: Final = (
    *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
    *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
)


@final
@dataclass(frozen=True, kw_only=True)
class FashionMnist(Source):
    """60,000 training and 10,000 test images (1, 28, 28) of ten kinds of clothing.

    Args:
        canvas: side of the images; black is added around them, evenly. The transformation search works on 32, and one
            rule for every row of a table keeps images of different defenses comparable.
    """

    summary: ClassVar[str] = "Fashion-MNIST: 60,000 / 10,000 articles of clothing, grey, 28x28 pixels, 10 classes."
    files: ClassVar[tuple[PublishedFile, ...]] = idx_files(
        _FOLDER,
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
        sizes=(26421880, 29515, 4422102, 5148),
        checksums=(
            "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
            "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
            "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
            "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
        ),
    )

    canvas: int = _SIDE

    def __post_init__(self) -> None:
        if self.canvas < _SIDE or self.canvas % 2:
            raise ValueError(f"canvas must be an even number of at least {_SIDE} pixels, got {self.canvas}")

    @override
    def load(self, root: Path) -> Dataset:
        share = (_SIDE / self.canvas) ** 2  # of the pixels that are not border
        mean, square = _MEAN * share, (_MEAN**2 + _STD**2) * share
        return Dataset(
            name="fashion-mnist" if self.canvas == _SIDE else f"fashion-mnist:canvas={self.canvas}",
            train=self._framed(read_idx_split(self, root, folder=_FOLDER, part="train")),
            test=self._framed(read_idx_split(self, root, folder=_FOLDER, part="test")),
            classes=_CLASSES,
            mean=(mean,),
            std=((square - mean**2) ** 0.5,),
        )

    def _framed(self, split: Split) -> Split:
        return replace(split, images=F.pad(split.images, [(self.canvas - _SIDE) // 2] * 4))
