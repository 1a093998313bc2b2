"""Handwritten digits of 8x8 pixels that come with scikit-learn: the embedded default."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, final

import numpy as np
from typing_extensions import override

from gradveil.data._base import Dataset, Source
from gradveil.data._reading import make_split
from gradveil.data._stratified import channel_moments, stratified


@final
@dataclass(frozen=True)
class Digits(Source):
    """1,438 training and 359 test images (1, 8, 8) of ten digits, the same on every machine."""

    summary: ClassVar[str] = (
        "1,797 handwritten digits of 8x8 pixels (UCI), 10 classes; comes with scikit-learn, needs no files."
    )

    @override
    def load(self, root: Path) -> Dataset:
        from sklearn.datasets import load_digits

        digits = load_digits()
        where = Path("scikit-learn")
        # The digits have 17 grey levels, 0 to 16.
        images = np.rint(digits.images * 255 / 16).astype(np.uint8)[:, None]
        labels = digits.target.astype(np.int64)
        train, test = (
            make_split(images[part], labels[part], where=where) for part in stratified(labels, test_fraction=0.2)
        )
        mean, std = channel_moments(train.images)
        return Dataset(name="digits", train=train, test=test, classes=tuple("0123456789"), mean=mean, std=std)
