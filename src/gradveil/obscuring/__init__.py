"""Whole data sets obscured once, before training: extractor, generation, and a sheet to look at."""

from gradveil.defenses._obscuring import Descent, gradient, objective, obscure
from gradveil.defenses._obscuring_features import Extractor, LayerFeatures, layer_set
from gradveil.obscuring._extractor import PUBLISHED, train_extractor
from gradveil.obscuring._generation import fingerprint, obscure_images, obscure_split
from gradveil.obscuring._sheet import sheet

__all__ = [
    "PUBLISHED",
    "Descent",
    "Extractor",
    "LayerFeatures",
    "fingerprint",
    "gradient",
    "layer_set",
    "objective",
    "obscure",
    "obscure_images",
    "obscure_split",
    "sheet",
    "train_extractor",
]
