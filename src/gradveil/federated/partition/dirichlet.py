"""Unequal shares of every class, drawn from a Dirichlet distribution."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, final

import numpy as np
import numpy.typing as npt
from typing_extensions import override

from gradveil.data import Split
from gradveil.errors import DataError
from gradveil.federated.partition._base import Indices, Partitioner, samples_by_class, shuffled

_TRIES: Final = 10


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Dirichlet(Partitioner):
    """Give client k the share p_k of a class, p drawn from Dirichlet(alpha) for each class anew.

    Hsu, Qi and Brown 2019 (arXiv:1909.06335) and many after them. The draw is repeated up to ten times until the
    smallest client is large enough.

    Args:
        alpha: concentration; 0.1 leaves most clients with one or two classes, 100 is nearly even.
        min_partition_size: samples that every client holds at least.
        self_balancing: give no more of a class to a client that holds its fair share of samples already.
    """

    alpha: float = 0.5
    min_partition_size: int = 10
    self_balancing: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.alpha < np.inf:
            raise ValueError(f"alpha must be above 0 and finite, got {self.alpha}")
        if self.min_partition_size < 1:
            raise ValueError(f"min_partition_size must be at least 1, got {self.min_partition_size}")

    @override
    def assign(self, split: Split, *, clients: int, generator: np.random.Generator) -> Sequence[Indices]:
        smallest = 0
        for _ in range(_TRIES):
            found = self._draw(split, clients, generator)
            smallest = min(map(len, found))
            if smallest >= self.min_partition_size:
                return [shuffled(own, generator) for own in found]
        raise DataError(
            f"dirichlet with alpha {self.alpha:g} left a client of {clients} with {smallest} samples {_TRIES} times, "
            f"but min_partition_size asks for {self.min_partition_size}; raise alpha, lower it or ask for fewer clients"
        )

    def _draw(self, split: Split, clients: int, generator: np.random.Generator) -> list[Indices]:
        parts: list[list[Indices]] = [[] for _ in range(clients)]
        for samples in samples_by_class(split, generator).values():
            shares = generator.dirichlet(np.full(clients, self.alpha))
            if self.self_balancing:
                shares = _balanced(shares, [sum(map(len, own)) for own in parts], len(split) / clients)
            cuts = (np.cumsum(shares)[:-1] * len(samples)).astype(np.int64)
            for own, piece in zip(parts, np.split(samples, cuts), strict=True):
                own.append(piece)
        return [np.concatenate(own) for own in parts]


def _balanced(shares: npt.NDArray[np.float64], sizes: list[int], fair: float) -> npt.NDArray[np.float64]:
    """Take the share from clients that are full already."""
    kept = np.where(np.array(sizes) > fair, 0.0, shares)
    return kept / kept.sum() if kept.sum() > 0 else shares
