"""Shares of given sizes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
from typing_extensions import override

from gradveil.data import Split
from gradveil.errors import DataError, SpecError
from gradveil.federated.partition._base import Indices, Partitioner, shuffled


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Size(Partitioner):
    """Shuffle the samples and give every client as many as asked for; what is left over stays with nobody.

    Args:
        partition_sizes: samples of each client, written `100+50+50` in a spec; as many numbers as clients.
    """

    partition_sizes: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not self.partition_sizes or min(self.partition_sizes) < 1:
            raise ValueError(
                f"partition_sizes must hold one number of at least 1 per client, got {self.partition_sizes}"
            )

    @override
    def count(self, split: Split, clients: int | None) -> int:
        if clients not in {None, len(self.partition_sizes)}:
            raise SpecError(f"partition_sizes names {len(self.partition_sizes)} clients, but {clients} are asked for")
        if sum(self.partition_sizes) > len(split):
            raise DataError(
                f"partition_sizes asks for {sum(self.partition_sizes)} samples of {len(split)}; ask for fewer"
            )
        return len(self.partition_sizes)

    @override
    def assign(self, split: Split, *, clients: int, generator: np.random.Generator) -> Sequence[Indices]:
        return np.split(shuffled(np.arange(len(split)), generator), np.cumsum(self.partition_sizes))[:clients]
