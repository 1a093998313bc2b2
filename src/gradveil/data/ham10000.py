"""HAM10000: dermatoscopic images of skin lesions (Tschandl et al.), in MedMNIST's layout (DermaMNIST)."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final, final

from typing_extensions import override

from gradveil.data._base import Dataset, PublishedFile, Source
from gradveil.data._npz import read_npz
from gradveil.data._reading import check_images, make_split

_CLASSES: Final = (
    "actinic keratosis",
    "basal cell carcinoma",
    "benign keratosis",
    "dermatofibroma",
    "melanoma",
    "melanocytic nevus",
    "vascular lesion",
)


@final
@dataclass(frozen=True)
class Ham10000(Source):
    """7,007 training and 2,005 test images (3, 28, 28); the validation part of the file is left aside."""

    summary: ClassVar[str] = (
        "HAM10000 as DermaMNIST: 7,007 / 2,005 images of skin lesions, colour, 28x28 pixels, 7 classes; "
        "non-commercial use only (CC BY-NC 4.0)."
    )
    files: ClassVar[tuple[PublishedFile, ...]] = (
        PublishedFile(
            path="dermamnist.npz",
            url="https://zenodo.org/records/10519652/files/dermamnist.npz?download=1",
            sha256="1a309fec2e33bb6aba88e7d078e5ccbb9736c84a0b415ac197eb3c8fa331e050",
        ),
    )

    @override
    def load(self, root: Path) -> Dataset:
        path = self.locate(root, "dermamnist.npz")
        arrays = read_npz(path, ("train_images", "train_labels", "test_images", "test_labels"))
        train, test = (
            make_split(check_images(arrays[f"{part}_images"], where=path), arrays[f"{part}_labels"], where=path)
            for part in ("train", "test")
        )
        return Dataset(
            name="ham10000",
            train=train,
            test=test,
            classes=_CLASSES,
            mean=(0.763, 0.546, 0.570),
            std=(0.141, 0.153, 0.170),
        )
