"""CelebA: faces of celebrities (Liu et al.), reduced to 32x32, with gender and identity."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, final

import numpy as np
from typing_extensions import override

from gradveil.data._base import Dataset, PublishedFile, Source, Split
from gradveil.data._npz import read_npz
from gradveil.data._reading import check_images, make_split
from gradveil.errors import DataError


@final
@dataclass(frozen=True)
class Celeba(Source):
    """Faces (3, 32, 32) labelled female or male, with the identity of each; nobody is in both splits."""

    summary: ClassVar[str] = (
        "CelebA: faces, colour, 32x32 pixels, 2 classes (gender), with identities; research use only.\n"
        "Its terms ask you to get it from the authors (mmlab.ie.cuhk.edu.hk/projects/CelebA.html) and reduce it "
        "yourself to one npz file of the arrays {train,test}_images (N, 32, 32, 3) uint8, {train,test}_male (N,) and "
        "{train,test}_identity (N,)."
    )
    files: ClassVar[tuple[PublishedFile, ...]] = (PublishedFile(path="celeba_32.npz"),)

    @override
    def load(self, root: Path) -> Dataset:
        return Dataset(
            name="celeba",
            train=self._read(root, "train"),
            test=self._read(root, "test"),
            classes=("female", "male"),
            mean=(0.5, 0.5, 0.5),
            std=(0.5, 0.5, 0.5),
        )

    def _read(self, root: Path, part: str) -> Split:
        path = self.locate(root, "celeba_32.npz")
        arrays = read_npz(path, (f"{part}_images", f"{part}_male", f"{part}_identity"))
        images, male, identity = arrays.values()
        if identity.shape != (len(images),) or not np.issubdtype(identity.dtype, np.integer):
            form = f"{identity.shape} of {identity.dtype}"
            raise DataError(f"{part}_identity in {path} must be ({len(images)},) whole numbers, got {form}")
        return make_split(check_images(images, where=path), male, where=path, identity=identity.astype(np.int64))
