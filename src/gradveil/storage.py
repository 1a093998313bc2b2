"""Files that are whole or not there: everything is written beside its place and then moved into it."""

import contextlib
import errno
import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from gradveil.errors import RecordError, SpecError


def write_atomically(path: Path, content: bytes, *, private: bool = False) -> None:
    """Write a file so that a crash, a full disk or a second writer never leaves half of it.

    Args:
        path: of the file; its folder is made.
        content: of the file.
        private: let the owner alone read it.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except OSError as error:
        raise cannot_write(path, error) from error
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        Path(name).chmod(0o600 if private else 0o644)
        Path(name).replace(path)
    except OSError as error:
        raise cannot_write(path, error) from error
    finally:
        Path(name).unlink(missing_ok=True)


def cannot_write(path: Path, error: OSError) -> RecordError:
    """Make the error for a file that the system did not let us write."""
    if error.errno == errno.ENOSPC:
        return RecordError(f"the disk is full, so {path} was not written; free some space and run again to resume")
    return RecordError(f"{path} cannot be written ({error.strerror}); choose another folder")


def refuse_another(file: Path, about: Mapping[str, Any]) -> None:
    """Keep a finished record, and what lies beside it, from being written over by one that is about something else.

    Args:
        file: the record, as JSON; where there is none, nothing is refused.
        about: what has to be the same, by field of the record; one that an older record lacks is taken for empty.
    """
    if not file.exists():
        return
    try:
        there = json.loads(file.read_text(encoding="utf-8"))
        different = [name for name, value in json.loads(json.dumps(about)).items() if there.get(name, "") != value]
    except (OSError, ValueError, AttributeError) as error:
        raise SpecError(f"{file} is not a record ({error}); remove it, or name another folder") from error
    if different:
        raise SpecError(f"{file} was made with another {different[0]}; remove it, or name another folder")


def content_hash(*contents: str | Tensor) -> str:
    """Return a hash of texts and tensors, their shapes and formats included, wherever they lie.

    Example:
        >>> content_hash("a", "bc") == content_hash("ab", "c")
        False
    """
    summary = hashlib.blake2b(digest_size=16)
    for content in contents:
        taken = content.encode() if isinstance(content, str) else _bytes(content)
        summary.update(len(taken).to_bytes(8, "little"))
        summary.update(taken)
    return summary.hexdigest()


def number_of(digest: str) -> Tensor:
    """Return a hash as a number that a store of tensors can keep, () int64.

    Example:
        >>> number_of("ff" * 16).item()
        -1
    """
    return torch.tensor(int.from_bytes(bytes.fromhex(digest)[:8], "little", signed=True))


def _bytes(tensor: Tensor) -> bytes:
    form = f"{tuple(tensor.shape)}{tensor.dtype}".encode()
    return form + tensor.detach().cpu().contiguous().numpy().tobytes()


@dataclass(frozen=True, slots=True)
class TensorFolder:
    """A folder of named tensor states, one safetensors file each; keeps unfinished computations for their owner.

    Args:
        path: of the folder; it is made when the first state is saved.
        mark: of what the states depend on beside their names; those of another mark are not seen.
    """

    path: Path
    mark: str = ""

    def load(self, name: str) -> dict[str, Tensor] | None:
        """Return what was saved under a name, None if nothing was or it cannot be read."""
        file = self._file(name)
        try:
            return load_tensors(file.read_bytes()) if file.exists() else None
        except SafetensorError:
            return None

    def save(self, name: str, state: dict[str, Tensor]) -> None:
        """Keep a state."""
        content = {key: tensor.detach().cpu().contiguous() for key, tensor in state.items()}
        write_atomically(self._file(name), save_tensors(content), private=True)

    def clear(self) -> None:
        """Remove all states, and the folder if nothing else is in it; another process may do so at the same time."""
        with contextlib.suppress(FileNotFoundError):
            for file in self.path.glob("*.safetensors"):
                file.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # there is something else in it, or it is gone
            self.path.rmdir()

    def _file(self, name: str) -> Path:
        return self.path / f"{self.mark[:8]}{name.replace('/', '_')}.safetensors"
