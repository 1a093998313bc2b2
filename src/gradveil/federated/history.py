"""What a federation gave, round by round."""

import csv
import io
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Self, TypeAlias

import torch
from torch import Tensor, nn

_COLUMNS: Final = (
    "round", "clients", "samples", "loss", "accuracy", "update_norm_mean", "update_norm_max", "epsilon", "dropped",
    "seconds",
)  # fmt: skip
_ABSENT, _DROPPED = math.nan, -1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """What one round gave.

    Args:
        norms: Euclidean length of what each client shared, by client; those who took part.
        dropped: clients whose update was not finite, and was left out.
        samples: that the clients who took part hold together.
        loss: of the model on the test split after the round; None without one.
        accuracy: from 0 to 1; None without a test split.
        epsilon: largest of all clients after this round, at the settings' delta; None where no accountant gives one.
        seconds: of training and testing.
    """

    norms: Mapping[int, float]
    dropped: tuple[int, ...] = ()
    samples: int = 0
    loss: float | None = None
    accuracy: float | None = None
    epsilon: float | None = None
    seconds: float = 0.0


Log: TypeAlias = Callable[[Sequence[Round]], None]
"""Called after every round with all rounds so far."""


def log_nothing(rounds: Sequence[Round]) -> None:
    """Keep no log."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class History:
    """A finished federation.

    Args:
        model: as the server would send it next, in eval mode; of a decentralized one the mean of all clients' models.
        rounds: what each gave.
        models: (clients, *shape) the clients' own weights by name, of a decentralized federation; else empty.
    """

    model: nn.Module
    rounds: tuple[Round, ...]
    models: Mapping[str, Tensor] = field(default_factory=dict)

    def scalars(self) -> list[tuple[int, dict[str, float | None]]]:
        """List the numbers of every round by name, for TensorBoard."""
        return [(number, _scalars(one)) for number, one in enumerate(self.rounds, start=1)]

    def to_csv(self) -> str:
        """Write one line per round."""
        return csv_of(self.rounds)


def csv_of(rounds: Sequence[Round]) -> str:
    """Write one line per round, the first of them first.

    Example:
        >>> print(csv_of([Round(norms={0: 0.5}, samples=20, accuracy=0.25)]).splitlines()[1])
        1,1,20,,0.25,0.5,0.5,,,0.000
    """
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(_COLUMNS)
    writer.writerows(_line(number, one) for number, one in enumerate(rounds, start=1))
    return file.getvalue()


def _scalars(one: Round) -> dict[str, float | None]:
    norm = sum(one.norms.values()) / len(one.norms) if one.norms else None
    return {"loss": one.loss, "accuracy": one.accuracy, "update norm": norm, "epsilon": one.epsilon}


def _line(number: int, one: Round) -> list[object]:
    norms = list(one.norms.values())
    mean, largest = (sum(norms) / len(norms), max(norms)) if norms else (math.nan, math.nan)
    shown = [
        ("" if value is None else f"{value:.6g}") for value in (one.loss, one.accuracy, mean, largest, one.epsilon)
    ]
    dropped = " ".join(map(str, one.dropped))
    return [number, len(norms), one.samples, *shown, dropped, f"{one.seconds:.3f}"]


@dataclass(frozen=True, slots=True)
class StoredRounds:
    """Rounds as tensors that a store can keep.

    Args:
        rows: (R, 5) samples, loss, accuracy, seconds, epsilon.
        norms: (R, clients), with marks for clients that were not there and for those dropped.
    """

    rows: Tensor
    norms: Tensor

    @classmethod
    def of(cls, rounds: tuple[Round, ...], clients: int) -> Self:
        """Store rounds."""
        rows = [
            [one.samples, _number(one.loss), _number(one.accuracy), one.seconds, _number(one.epsilon)] for one in rounds
        ]
        norms = torch.full((len(rounds), clients), _ABSENT, dtype=torch.float64)
        for line, one in zip(norms, rounds, strict=True):
            for client, norm in [*one.norms.items(), *((client, _DROPPED) for client in one.dropped)]:
                line[client] = norm
        return cls(torch.tensor(rows, dtype=torch.float64).view(-1, 5), norms)

    def rounds(self) -> tuple[Round, ...]:
        """Bring them back."""
        made = []
        for row, norms in zip(self.rows.tolist(), self.norms.tolist(), strict=True):
            samples, loss, accuracy, seconds, epsilon = row
            there = {client: norm for client, norm in enumerate(norms) if not math.isnan(norm)}
            made.append(
                Round(
                    norms={client: norm for client, norm in there.items() if norm != _DROPPED},
                    dropped=tuple(client for client, norm in there.items() if norm == _DROPPED),
                    samples=int(samples),
                    loss=_known(loss),
                    accuracy=_known(accuracy),
                    epsilon=_known(epsilon),
                    seconds=seconds,
                )
            )
        return tuple(made)


def _number(value: float | None) -> float:
    return math.nan if value is None else value


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value
