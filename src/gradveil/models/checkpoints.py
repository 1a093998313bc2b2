"""Trained networks on disk: safetensors, with what is known about them in the header."""

import os
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
from torch import Tensor, nn

from gradveil.errors import GradVeilError

_SHOWN = 3


class CheckpointError(GradVeilError):
    """A stored network that is missing, damaged or made for another architecture."""


def save(model: nn.Module, path: Path | str, *, about: Mapping[str, str]) -> None:
    """Write parameters and buffers to a file; an interrupted write leaves an older file as it was.

    Args:
        model: any network.
        path: of the file, customarily `.safetensors`; missing folders are made.
        about: what to remember: `model`, `input_shape`, `num_classes`, `dataset`, `epochs`, `defenses`, `accuracy`, ...
    """
    for key, value in about.items():
        if not isinstance(value, str):
            raise CheckpointError(f"'{key}' about a checkpoint must be text, got {value!r}; convert it first")

    tensors = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in model.state_dict().items()}
    content = safetensors.torch.save(tensors, metadata=dict(about))
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with _replacing(path) as unfinished, unfinished.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def load(path: Path | str, model: nn.Module) -> dict[str, str]:
    """Fill a network with the parameters and buffers of a file, all of them or none.

    Args:
        path: of the file.
        model: of the architecture that was stored; keeps its device and number format.

    Returns:
        What the file says about itself.

    Example:
        >>> import tempfile
        >>> folder, model = tempfile.TemporaryDirectory(), nn.Linear(2, 1)
        >>> save(model, f"{folder.name}/linear.safetensors", about={"epochs": "0"})
        >>> load(f"{folder.name}/linear.safetensors", model)
        {'epochs': '0'}
        >>> folder.cleanup()
    """
    with _opened(path) as file:
        tensors: dict[str, Tensor] = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        known: dict[str, str] = file.metadata() or {}
    _compare(tensors, model.state_dict(), path)
    model.load_state_dict(tensors)
    return known


def read_about(path: Path | str) -> dict[str, str]:
    """Return what a file says about itself, without reading the tensors; empty for files of other programs."""
    with _opened(path) as file:
        known: dict[str, str] = file.metadata() or {}
    return known


def refuse_another(path: Path | str, about: Mapping[str, str]) -> None:
    """Keep a stored network from being written over by one that is about something else.

    Args:
        path: of the file; where there is none, nothing is refused.
        about: what the file must say about itself.
    """
    if not Path(path).exists():
        return
    known = read_about(path)
    different = [name for name, value in about.items() if known.get(name) != value]
    if different:
        raise CheckpointError(f"{path} holds a network of another {different[0]}; remove it, or name another file")


@contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    """Give a new name in the same folder, which takes the place of `path` once the block is done."""
    unfinished = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        yield unfinished
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


@contextmanager
def _opened(path: Path | str) -> Iterator[Any]:
    if not Path(path).is_file():
        raise CheckpointError(f"there is no checkpoint at {path}; train one first or correct the path")
    try:
        with safetensors.safe_open(str(path), framework="pt", device="cpu") as file:
            yield file
    except safetensors.SafetensorError as error:
        raise CheckpointError(f"{path} is not a whole safetensors file ({error}); store it again") from error


def _compare(stored: Mapping[str, Tensor], wanted: Mapping[str, Tensor], path: Path | str) -> None:
    problems = [f"'{name}' is missing" for name in wanted if name not in stored]
    problems += [f"'{name}' is unknown to the model" for name in stored if name not in wanted]
    for name in (name for name in wanted if name in stored):
        here, there = tuple(wanted[name].shape), tuple(stored[name].shape)
        if here != there:
            problems.append(f"'{name}' has shape {there} instead of {here}")
    if problems:
        more = f" and {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
        shown = ", ".join(problems[:_SHOWN])
        raise CheckpointError(f"{path} does not fit the model: {shown}{more}; build the model it was stored from")
