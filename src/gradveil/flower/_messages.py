"""What Flower's messages hold, as named tensors, and what a client keeps between them."""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Self

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from torch import Tensor

from gradveil.errors import RecordError
from gradveil.storage import TensorFolder
from gradveil.streams import Streams
from gradveil.types import State

BUFFERS: Final = ("running_mean", "running_var", "num_batches_tracked")
"""How the names of buffers end, where nobody says which they are."""

_SEED, _LAST, _REPEATS = "gradveil/seed", "gradveil/last", "gradveil/repeats"


def is_training(message: Message) -> bool:
    """Tell whether a client is asked to train, rather than to evaluate."""
    return str(message.metadata.message_type).partition(".")[0] == "train"


def round_of(message: Message) -> int:
    """Return the number of the round as the server says it; 0 if it says none."""
    for record in message.content.config_records.values():
        if "server-round" in record:
            return int(record["server-round"])
    return int(message.metadata.group_id) if str(message.metadata.group_id).isdecimal() else 0


def client_of(context: Context) -> int:
    """Return the number of a client: its partition where it has one, else its node."""
    return int(context.node_config.get("partition-id", context.node_id))


def read_arrays(content: RecordDict) -> dict[str, Tensor]:
    """Return the arrays of a message by name; it must hold one record of them."""
    return to_state(content[arrays_name(content)])


def replace_arrays(content: RecordDict, state: State) -> None:
    """Put other arrays into a message, under the name that they have there."""
    content[arrays_name(content)] = to_arrays(state)


def arrays_name(content: RecordDict) -> str:
    """Name the one record of arrays of a message."""
    names = list(content.array_records)
    if len(names) != 1:
        raise RecordError(f"a message must hold one record of arrays, got {len(names)}; send the model in one")
    return str(names[0])


def to_state(record: ArrayRecord) -> dict[str, Tensor]:
    """Read arrays."""
    return {str(name): torch.from_numpy(np.array(array.numpy())) for name, array in record.items()}


def to_arrays(state: State) -> ArrayRecord:
    """Write arrays, in the order of the names."""
    return ArrayRecord({name: Array(tensor.detach().cpu().numpy()) for name, tensor in state.items()})


def is_buffer(name: str) -> bool:
    """Tell by its name whether a tensor is a running statistic."""
    return name.rpartition(".")[2] in BUFFERS


@dataclass(frozen=True, slots=True)
class Memory:
    """What a client keeps for itself over the rounds of a run.

    Args:
        name: of what keeps it.
        folder: where, readable by the owner only; None keeps it in Flower's context, which a restart of the SuperNode
            forgets.
    """

    name: str
    folder: Path | None = None

    def load(self, context: Context) -> dict[str, Tensor]:
        """Return what was kept; nothing at first."""
        if self.folder is not None:
            return TensorFolder(self.folder).load(self._file(context)) or {}
        kept = context.state.get(self.name)
        return {} if kept is None else to_state(kept)

    def save(self, context: Context, tensors: Mapping[str, Tensor]) -> None:
        """Keep tensors in place of the former ones."""
        if self.folder is not None:
            TensorFolder(self.folder).save(self._file(context), dict(tensors))
        else:
            context.state[self.name] = to_arrays(tensors)

    def _file(self, context: Context) -> str:
        return f"{self.name}-run-{context.run_id}-client-{client_of(context)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Randomness:
    """A client's own randomness, of which no number is used for two updates.

    A server that sends two models under one round number would else get two updates with the same noise, and their
    difference has none.

    Args:
        seed: of this client; secret.
        last: largest round that was used.
        repeats: how often an earlier round came again.
    """

    seed: int
    last: int = 0
    repeats: int = 0

    @classmethod
    def read(cls, kept: State, *, seed: int | None) -> Self:
        """Take up what was kept; without a seed, one that nobody knows."""
        drawn = int(kept[_SEED]) if _SEED in kept else secrets.randbits(62)
        counts = {"last": int(kept[_LAST]), "repeats": int(kept[_REPEATS])} if _LAST in kept else {}
        return cls(seed=drawn if seed is None else seed, **counts)

    def write(self) -> dict[str, Tensor]:
        """Return tensors to keep."""
        values = {_SEED: self.seed, _LAST: self.last, _REPEATS: self.repeats}
        return {name: torch.tensor(value) for name, value in values.items()}

    def turn(self, number: int) -> Self:
        """Go on to a round, or to one that came before again."""
        return replace(self, last=number) if number > self.last else replace(self, repeats=self.repeats + 1)

    def label(self, number: int) -> str:
        """Name the present turn; for an honest server, by the number of the round, as the local simulation does."""
        return f"{number}" if self.repeats == 0 else f"{number}/again-{self.repeats}"

    def streams(self, client: int, number: int) -> Streams:
        """Return the streams of a client in its present turn."""
        everything = Streams(seed=self.seed, purpose="client", keys=((client,),))
        return everything.fork(f"round-{self.label(number)}")


def without_randomness(kept: State) -> dict[str, Tensor]:
    """Return what was kept beside the randomness."""
    return {name: tensor for name, tensor in kept.items() if not name.startswith("gradveil/")}
