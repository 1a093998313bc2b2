"""Whole data sets obscured once, before training: extractor, generation, studies, and a sheet to look at."""

from gradveil.defenses._obscuring import Descent, gradient, objective, obscure
from gradveil.defenses._obscuring_features import Extractor, LayerFeatures, layer_set
from gradveil.obscuring._extractor import (
    PUBLISHED,
    TrainedExtractor,
    bound,
    load_extractor,
    mark_of,
    save_extractor,
    train_extractor,
)
from gradveil.obscuring._generation import fingerprint, obscure_images, obscure_split
from gradveil.obscuring._measuring import Obscured, obscure_and_measure
from gradveil.obscuring._sheet import sheet
from gradveil.obscuring._study import RETRAINING, Study, StudyRow, study_architectures, study_weights

__all__ = [
    "PUBLISHED",
    "RETRAINING",
    "Descent",
    "Extractor",
    "LayerFeatures",
    "Obscured",
    "Study",
    "StudyRow",
    "TrainedExtractor",
    "bound",
    "fingerprint",
    "gradient",
    "layer_set",
    "load_extractor",
    "mark_of",
    "objective",
    "obscure",
    "obscure_and_measure",
    "obscure_images",
    "obscure_split",
    "save_extractor",
    "sheet",
    "study_architectures",
    "study_weights",
    "train_extractor",
]
