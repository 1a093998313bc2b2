"""SVHN: house numbers from street views, cropped to one digit (Netzer et al.)."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, final

import numpy as np
from typing_extensions import override

from gradveil.data._base import Dataset, PublishedFile, Source, Split
from gradveil.data._reading import check_images, make_split, reading
from gradveil.errors import DataError


@final
@dataclass(frozen=True)
class Svhn(Source):
    """73,257 training and 26,032 test images (3, 32, 32) of ten digits."""

    summary: ClassVar[str] = (
        "SVHN: 73,257 / 26,032 house-number digits, colour, 32x32 pixels, 10 classes; non-commercial use only."
    )
    files: ClassVar[tuple[PublishedFile, ...]] = (
        PublishedFile(
            path="svhn/train_32x32.mat",
            url="http://ufldl.stanford.edu/housenumbers/train_32x32.mat",
            sha256="435e94d69a87fde4fd4d7f3dd208dfc32cb6ae8af2240d066de1df7508d083b8",
            size=182040794,
        ),
        PublishedFile(
            path="svhn/test_32x32.mat",
            url="http://ufldl.stanford.edu/housenumbers/test_32x32.mat",
            sha256="cdce80dfb2a2c4c6160906d0bd7c68ec5a99d7ca4831afa54f09182025b6a75b",
            size=64275384,
        ),
    )

    @override
    def load(self, root: Path) -> Dataset:
        return Dataset(
            name="svhn",
            train=self._read(root, "train"),
            test=self._read(root, "test"),
            classes=tuple("0123456789"),
            mean=(0.4377, 0.4438, 0.4728),
            std=(0.1980, 0.2010, 0.1970),
        )

    def _read(self, root: Path, part: str) -> Split:
        from scipy.io import loadmat

        path = self.locate(root, f"svhn/{part}_32x32.mat")
        with reading(path, "a MATLAB file"):
            content = loadmat(path, variable_names=["X", "y"])
        if not {"X", "y"} <= content.keys():
            raise DataError(f"{path} must hold the arrays X and y; get the published file again")
        if content["X"].ndim != 4:
            raise DataError(f"X in {path} must have four axes, got {content['X'].ndim}; get the published file again")
        labels = content["y"].reshape(-1)
        # The published files call the digit 0 class 10.
        return make_split(
            check_images(content["X"].transpose(3, 0, 1, 2), where=path),
            np.where(labels == 10, 0, labels),
            where=path,
        )
