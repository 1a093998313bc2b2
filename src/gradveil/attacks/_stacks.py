"""Settings of the rows of a stack: one number where all rows share it, a tensor where they differ."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from typing import TypeVar

import torch
from torch import Tensor

from gradveil.streams import Streams

K = TypeVar("K", bound=Hashable)


def each(values: Sequence[float], like: Tensor) -> float | Tensor:
    """Return the one value that all rows share, or (V,) the value of each.

    Example:
        >>> each([0.5, 0.5], torch.zeros(())), each([0.5, 1.0], torch.zeros(()))
        (0.5, tensor([0.5000, 1.0000]))
    """
    return values[0] if len(set(values)) == 1 else like.new_tensor(values)


def groups(keys: Sequence[K]) -> dict[K, list[int]]:
    """Return the rows of each key, in order of first appearance.

    Example:
        >>> groups(["a", "b", "a"])
        {'a': [0, 2], 'b': [1]}
    """
    found: dict[K, list[int]] = {}
    for row, key in enumerate(keys):
        found.setdefault(key, []).append(row)
    return found


def assemble(keys: Sequence[K], make: Callable[[K, list[int]], Tensor]) -> Tensor:
    """Make (V, ...) group by group: `make` gets a key and its rows, and returns one entry per row.

    Example:
        >>> assemble([1, 2, 1], lambda key, rows: torch.full((len(rows),), key))
        tensor([1, 2, 1])
    """
    parts = [(rows, make(key, rows)) for key, rows in groups(keys).items()]
    order = torch.tensor([row for rows, _ in parts for row in rows]).argsort()
    return parts[0][1] if len(parts) == 1 else torch.cat([part for _, part in parts])[order.to(parts[0][1].device)]


def restarted(streams: Streams, times: Sequence[int]) -> Streams:
    """Give every row as many streams of its own as it has restarts; its first stays."""
    parts = [streams.select([row]).repeat(count) for row, count in enumerate(times)]
    return replace(streams, keys=tuple(key for part in parts for key in part.keys))
