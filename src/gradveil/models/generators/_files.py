"""Generators on disk."""

from collections.abc import Mapping
from pathlib import Path

import torch

from gradveil.models import checkpoints
from gradveil.models.checkpoints import CheckpointError
from gradveil.models.generators._network import Generator

_SETTINGS = ("channels", "height", "across", "latent_size", "width", "num_classes")


def save(generator: Generator, path: Path | str, *, about: Mapping[str, str]) -> None:
    """Write a generator and its settings to a safetensors file.

    Args:
        generator: to keep.
        path: of the file.
        about: what to remember beside the settings: `dataset`, `training`, ...
    """
    values = (*generator.shape, generator.latent_size, generator.width, generator.num_classes)
    settings = {f"generator.{name}": str(value) for name, value in zip(_SETTINGS, values, strict=True)}
    checkpoints.save(generator, path, about={**about, **settings})


def load(path: Path | str) -> Generator:
    """Read a generator, on the CPU, in eval mode and without gradients of its weights.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save(Generator((1, 8, 8), latent_size=4, width=8), f"{folder}/g.safetensors", about={})
        ...     load(f"{folder}/g.safetensors")(torch.zeros(2, 4)).shape
        torch.Size([2, 1, 8, 8])
    """
    about = checkpoints.read_about(path)
    try:
        channels, height, across, latent_size, width, classes = (int(about[f"generator.{name}"]) for name in _SETTINGS)
    except (KeyError, ValueError) as error:
        raise CheckpointError(f"{path} holds no generator; make one with `gradveil train generator`") from error
    with torch.device("meta"):
        shape = (channels, height, across)
        model = Generator(shape, latent_size=latent_size, width=width, num_classes=classes)
    model = model.to_empty(device="cpu")
    checkpoints.load(path, model)
    return model.eval().requires_grad_(False)
