"""The changing part of a training, as tensors that a store can keep."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from gradveil.data import Split
from gradveil.defenses import Defense
from gradveil.errors import GradVeilError
from gradveil.models._recipe import Training
from gradveil.storage import content_hash, number_of
from gradveil.types import State

_NETWORK, _OPTIMIZER, _KEPT = "network.", "optimizer.", "kept."


class TrainingError(GradVeilError):
    """A training that diverged, or that cannot be continued."""


@dataclass(frozen=True, slots=True)
class Epoch:
    """What one pass over the training set gave.

    Args:
        loss: mean over the steps, each before its move.
        accuracy: on the test split after the epoch, from 0 to 1; None where it was not measured.
    """

    loss: float
    accuracy: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How often a network in training is measured and kept; the weights do not depend on it.

    Args:
        test_every: epochs between two measurements on the test split; the last epoch is always measured.
        save_every: seconds between two states in the store at least; 0 keeps the state after every epoch.
    """

    test_every: int = 1
    save_every: float = 0.0

    def __post_init__(self) -> None:
        if self.test_every < 1 or self.save_every < 0:
            came = f"{self.test_every} and {self.save_every}"
            raise ValueError(f"test_every must be at least 1 and save_every at least 0, got {came}")


@dataclass(slots=True, kw_only=True)
class Run:
    """A network in training.

    Args:
        network: as the client trains it.
        optimizer: of its parameters.
        identity: () number of what is trained and how, from `identify`.
        kept: what update defenses left of the last step, such as a residual, (1, *shape) by name.
        history: of the epochs that are done.
        seconds: spent on them.
    """

    network: nn.Module
    optimizer: torch.optim.Optimizer
    identity: Tensor
    kept: State = field(default_factory=dict)
    history: list[Epoch] = field(default_factory=list)
    seconds: float = 0.0

    def tensors(self) -> dict[str, Tensor]:
        """Name everything that the next epochs depend on; randomness depends on the number of the epoch alone."""
        named = {f"{_NETWORK}{name}": tensor.clone() for name, tensor in self.network.state_dict().items()}
        for index, state in self.optimizer.state_dict()["state"].items():
            kept = {key: value for key, value in state.items() if isinstance(value, Tensor)}
            named |= {f"{_OPTIMIZER}{index}.{key}": value.clone() for key, value in kept.items()}
        named |= {f"{_KEPT}{name}": tensor for name, tensor in self.kept.items()}
        rows = [(e.loss, math.nan if e.accuracy is None else e.accuracy) for e in self.history]
        return named | {
            "identity": self.identity,
            "history": torch.tensor(rows, dtype=torch.float64).view(-1, 2),
            "seconds": torch.tensor(self.seconds, dtype=torch.float64),
        }

    def restore(self, saved: dict[str, Tensor]) -> None:
        """Take over a saved state."""
        if int(saved["identity"]) != int(self.identity):
            raise TrainingError(
                "the store holds a training with other settings, defenses, images or layers; "
                "give an empty store, or the settings that it was begun with"
            )
        self.network.load_state_dict(_below(saved, _NETWORK))
        place = next(self.network.parameters()).device
        self.kept = {name: tensor.to(place) for name, tensor in _below(saved, _KEPT).items()}
        self.optimizer.load_state_dict({**self.optimizer.state_dict(), "state": _optimizer_state(saved)})
        self.history = [Epoch(loss, None if math.isnan(hit) else hit) for loss, hit in saved["history"].tolist()]
        self.seconds = float(saved["seconds"])


def identify(training: Training, *, defenses: Sequence[Defense], network: nn.Module, split: Split) -> Tensor:
    """Return a number that differs between trainings of different settings, defenses, layers or samples."""
    shapes = [(name, tuple(tensor.shape)) for name, tensor in network.state_dict().items()]
    return number_of(content_hash(repr((training, list(defenses), shapes)), *split.contents()))


def _optimizer_state(saved: dict[str, Tensor]) -> dict[int, dict[str, Tensor]]:
    state: dict[int, dict[str, Tensor]] = {}
    for name, tensor in _below(saved, _OPTIMIZER).items():
        index, _, key = name.partition(".")
        state.setdefault(int(index), {})[key] = tensor
    return state


def _below(saved: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in saved.items() if name.startswith(prefix)}
