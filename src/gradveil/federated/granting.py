"""What a client grants its own auditor: the samples of a round in the order of use, and what else replaying needs."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from gradveil.errors import RecordError
from gradveil.storage import TensorFolder
from gradveil.types import State

_CLEAN: Final = "clean/"
_PARTS: Final = ("inputs", "labels", "sizes", "order", "random_states")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Granted:
    """The private side of one recorded update; it never leaves the client.

    Args:
        inputs: (N, C, H, W) in [0, 1], the samples of all local steps, one step after another.
        labels: (N,) or (N, K).
        sizes: (S,) samples of each step, which add up to N.
        order: (N,) their rows in the client's own data; empty if the client did not say.
        random_states: (S, n) bytes, the state of torch's generator before the forward pass of each step.
        clean: the update before noise and other update defenses, before minus after, by name.
    """

    inputs: Tensor
    labels: Tensor
    sizes: Tensor
    order: Tensor
    random_states: Tensor
    clean: State = field(default_factory=dict)

    @property
    def steps(self) -> int:
        """Local steps that were taken."""
        return len(self.sizes)


@dataclass(slots=True)
class Ledger:
    """Notes what a client trains on; an app calls `saw` before the forward pass of every local step.

    Example:
        >>> ledger = Ledger()
        >>> for rows in torch.arange(6).split(4):
        ...     ledger.saw(torch.rand(len(rows), 1, 2, 2), torch.zeros(len(rows)), rows=rows)
        >>> found = ledger.close({"w": torch.ones(2)})
        >>> found.sizes.tolist(), found.order.tolist(), found.steps
        ([4, 2], [0, 1, 2, 3, 4, 5], 2)
    """

    _inputs: list[Tensor] = field(default_factory=list)
    _labels: list[Tensor] = field(default_factory=list)
    _rows: list[Tensor] = field(default_factory=list)
    _states: list[Tensor] = field(default_factory=list)

    def saw(self, inputs: Tensor, labels: Tensor, *, rows: Tensor | None = None) -> None:
        """Note the samples of one local step, and the random state that its forward pass begins with.

        Args:
            inputs: (B, C, H, W) in [0, 1], before any normalization that is stated for the recording.
            labels: (B,) or (B, K).
            rows: (B,) which of the client's samples they are.
        """
        on_cuda = inputs.is_cuda
        self._states.append(torch.cuda.get_rng_state(inputs.device) if on_cuda else torch.get_rng_state())
        self._inputs.append(inputs.detach().cpu().clone())
        self._labels.append(labels.detach().cpu().clone())
        if rows is not None:
            self._rows.append(rows.detach().cpu().clone())

    def open(self) -> None:
        """Begin a round: forget the one before."""
        for notes in (self._inputs, self._labels, self._rows, self._states):
            notes.clear()

    def close(self, clean: State) -> Granted | None:
        """Return what was noted in a round, with the update before noise; None if the app noted nothing."""
        if not self._inputs:
            return None
        return Granted(
            inputs=torch.cat(self._inputs),
            labels=torch.cat(self._labels),
            sizes=torch.tensor([len(step) for step in self._inputs]),
            order=torch.cat(self._rows) if len(self._rows) == len(self._inputs) else torch.zeros(0, dtype=torch.long),
            random_states=torch.stack(self._states),
            clean=dict(clean),
        )


def save_granted(granted: Granted, path: Path | str) -> None:
    """Write what a client grants, for its owner alone."""
    path = Path(path)
    tensors = {name: getattr(granted, name) for name in _PARTS}
    clean = {f"{_CLEAN}{name}": tensor for name, tensor in granted.clean.items()}
    TensorFolder(path.parent).save(path.stem, {**tensors, **clean})


def load_granted(path: Path | str) -> Granted:
    """Read what a client granted; nothing in the file is executed."""
    path = Path(path)
    tensors: Mapping[str, Tensor] | None = TensorFolder(path.parent).load(path.stem)
    if tensors is None or not set(_PARTS) <= set(tensors):
        raise RecordError(f"{path} does not hold what a client granted; give a file that the witness mod wrote")
    clean = {name.removeprefix(_CLEAN): t for name, t in tensors.items() if name.startswith(_CLEAN)}
    return Granted(**{name: tensors[name] for name in _PARTS}, clean=clean)
