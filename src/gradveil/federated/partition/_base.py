"""What every partition is: a rule that says which client holds which samples."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gradveil.data import Split
from gradveil.errors import DataError, SpecError
from gradveil.registry import Registry

Indices: TypeAlias = npt.NDArray[np.int64]


class Partitioner(ABC):
    """A rule; a leaf is one frozen dataclass in one file, whose fields are named as those of Flower's partitioners."""

    @abstractmethod
    def assign(self, split: Split, *, clients: int, generator: np.random.Generator) -> Sequence[Indices]:
        """Return the samples of every client; no sample twice.

        Args:
            split: what to hand out.
            clients: how many there are, from `count`.
            generator: of the run.
        """

    def count(self, split: Split, clients: int | None) -> int:  # noqa: ARG002
        """Return the number of clients; a rule that fixes it checks the one asked for."""
        if clients is None or clients < 1:
            raise SpecError(f"a partition needs at least 1 client, got {clients}; say how many there are")
        return clients


partitioners: Registry[Partitioner] = Registry("partition", "gradveil.federated.partition", Partitioner)  # type: ignore[type-abstract]


@dataclass(frozen=True, slots=True, eq=False)
class Partition:
    """Who holds what.

    Args:
        indices: of each client's samples, int64, in the order in which the client keeps them.
    """

    indices: tuple[Tensor, ...]

    def __len__(self) -> int:
        return len(self.indices)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of samples of each client."""
        return tuple(map(len, self.indices))

    def counts(self, labels: Tensor, num_classes: int) -> Tensor:
        """Return (clients, K), how many samples of each class a client holds.

        Example:
            >>> Partition((torch.tensor([0, 2]), torch.tensor([1]))).counts(torch.tensor([0, 1, 1]), 2).tolist()
            [[1, 1], [0, 1]]
        """
        return torch.stack([torch.bincount(labels[own], minlength=num_classes) for own in self.indices])

    def apply(self, split: Split) -> tuple[Split, ...]:
        """Return the samples themselves, one split per client."""
        return tuple(split.select(own) for own in self.indices)


def partition(split: Split, how: Partitioner | str, *, clients: int | None = None, seed: int = 0) -> Partition:
    """Hand the samples of a split out to clients; each goes to one of them at most.

    Args:
        split: what to hand out.
        how: a rule, or its name with settings, such as `dirichlet:alpha=0.5`.
        clients: how many; None where the rule knows it, as `size` and `natural-id` do.
        seed: the same seed gives the same partition.

    Example:
        >>> split = Split(torch.zeros(10, 1, 1, 1, dtype=torch.uint8), torch.arange(10) % 2)
        >>> partition(split, "iid", clients=3).sizes
        (4, 3, 3)
    """
    rule = _build(how) if isinstance(how, str) else how
    count = rule.count(split, clients)
    if count > len(split):
        raise DataError(f"{count} clients cannot share {len(split)} samples; ask for fewer clients")
    assigned = rule.assign(split, clients=count, generator=np.random.default_rng(seed))
    empty = [client for client, own in enumerate(assigned) if not len(own)]
    if empty:
        name = partitioners.describe(rule)
        raise DataError(f"{name} leaves client {empty[0]} without samples; ask for fewer clients or another seed")
    return Partition(tuple(torch.from_numpy(np.asarray(own, dtype=np.int64)) for own in assigned))


def _build(text: str) -> Partitioner:
    try:
        return partitioners.build(text)
    except (ValueError, TypeError) as error:
        raise SpecError(f"partition '{text}': {error}") from error


def shuffled(values: Indices, generator: np.random.Generator) -> Indices:
    """Return a permutation of the values."""
    return generator.permutation(values).astype(np.int64)


def samples_by_class(split: Split, generator: np.random.Generator) -> dict[int, Indices]:
    """List the samples of every class that occurs, in random order, by class."""
    labels = split.labels.numpy()
    return {int(label): shuffled(np.flatnonzero(labels == label), generator) for label in np.unique(labels)}
