"""A few classes for every client."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, final

import numpy as np
from typing_extensions import override

from gradveil.data import Split
from gradveil.errors import DataError
from gradveil.federated.partition._base import Indices, Partitioner, samples_by_class, shuffled


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Pathological(Partitioner):
    """Give every client exactly c classes, and share a class equally between the clients that have it.

    After McMahan et al. 2017. Samples of a class that no client has stay with nobody.

    Args:
        num_classes_per_partition: c.
        class_assignment_mode: classes drawn at `random`; `deterministic`, client i has classes i, i + 1, ... of the
            sorted ones, round and round; or `first-deterministic`, the first so and the others at random.
    """

    num_classes_per_partition: int = 2
    class_assignment_mode: Literal["random", "deterministic", "first-deterministic"] = "random"

    def __post_init__(self) -> None:
        if self.num_classes_per_partition < 1:
            raise ValueError(f"num_classes_per_partition must be at least 1, got {self.num_classes_per_partition}")

    @override
    def assign(self, split: Split, *, clients: int, generator: np.random.Generator) -> Sequence[Indices]:
        samples = samples_by_class(split, generator)
        if self.num_classes_per_partition > len(samples):
            raise DataError(
                f"pathological gives {self.num_classes_per_partition} classes to every client, "
                f"but the samples have {len(samples)}; lower num_classes_per_partition"
            )
        held = [self._classes(client, sorted(samples), generator) for client in range(clients)]
        parts: list[list[Indices]] = [[] for _ in range(clients)]
        for label, own in samples.items():
            holders = [client for client in range(clients) if label in held[client]]
            if len(holders) > len(own):
                raise DataError(f"{len(holders)} clients cannot share the {len(own)} samples of class {label}")
            for client, piece in zip(holders, np.array_split(own, max(len(holders), 1)), strict=False):
                parts[client].append(piece)
        return [shuffled(np.concatenate(own), generator) for own in parts]

    def _classes(self, client: int, classes: list[int], generator: np.random.Generator) -> set[int]:
        wanted = self.num_classes_per_partition
        if self.class_assignment_mode == "deterministic":
            return {classes[(client + step) % len(classes)] for step in range(wanted)}
        if self.class_assignment_mode == "random":
            return set(generator.choice(classes, wanted, replace=False).tolist())
        first = classes[client % len(classes)]
        others = [label for label in classes if label != first]
        return {first, *generator.choice(others, wanted - 1, replace=False).tolist()} if others else {first}
