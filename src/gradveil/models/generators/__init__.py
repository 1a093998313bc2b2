"""Small image generators that GradVeil trains itself, as the prior of an adversary who has public data."""

from gradveil.models.generators._files import load, save
from gradveil.models.generators._network import Autoencoder, Generator
from gradveil.models.generators._training import GeneratorTraining, TrainedGenerator, train_generator

__all__ = [
    "Autoencoder",
    "Generator",
    "GeneratorTraining",
    "TrainedGenerator",
    "load",
    "save",
    "train_generator",
]
