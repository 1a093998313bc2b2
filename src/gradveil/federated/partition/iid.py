"""Equal shares, drawn at random."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
from typing_extensions import override

from gradveil.data import Split
from gradveil.federated.partition._base import Indices, Partitioner, shuffled


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Iid(Partitioner):
    """Shuffle the samples and cut them into equal parts; the first clients hold one more where it does not come out."""

    @override
    def assign(self, split: Split, *, clients: int, generator: np.random.Generator) -> Sequence[Indices]:
        return np.array_split(shuffled(np.arange(len(split)), generator), clients)
