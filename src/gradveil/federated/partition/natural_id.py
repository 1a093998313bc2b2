"""One client per person."""

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
class NaturalId(Partitioner):
    """Give every client the samples of one person, lesion or writer, as the data set's identities say.

    Clients are in the order of the sorted identities; asking for fewer clients than there are takes the first ones.
    """

    @override
    def count(self, split: Split, clients: int | None) -> int:
        if split.identity is None:
            raise DataError("natural-id needs to know whose image each is, but this data set does not say; use iid")
        people = len(split.identity.unique())
        if clients is not None and not 1 <= clients <= people:
            raise SpecError(f"the samples belong to {people} identities, but {clients} clients are asked for")
        return clients or people

    @override
    def assign(self, split: Split, *, clients: int, generator: np.random.Generator) -> Sequence[Indices]:
        assert split.identity is not None
        identity = split.identity.numpy()
        return [shuffled(np.flatnonzero(identity == person), generator) for person in np.unique(identity)[:clients]]
