"""Neighbours of a decentralized federation."""

import re

import torch
from torch import Tensor

from gradveil.errors import SpecError


def neighbours(graph: str, clients: int) -> tuple[frozenset[int], ...]:
    """Return the neighbours of every client, without itself.

    Args:
        graph: `ring`, `complete` or edges such as `0-1+1-2`.
        clients: how many there are.

    Example:
        >>> [sorted(near) for near in neighbours("ring", 4)]
        [[1, 3], [0, 2], [1, 3], [0, 2]]
    """
    near: list[set[int]] = [set() for _ in range(clients)]
    for first, second in _edges(graph, clients):
        if first != second:
            near[first].add(second)
            near[second].add(first)
    _check_connected(near)
    return tuple(map(frozenset, near))


def mixing(near: tuple[frozenset[int], ...]) -> Tensor:
    """Return the (clients, clients) float64 weights of the averaging, by Metropolis and Hastings.

    Rows and columns add up to 1, so that averaging keeps the mean of all models; in a ring or a complete graph it is
    the plain mean of a client and its neighbours.

    Example:
        >>> mixing(neighbours("complete", 2)).tolist()
        [[0.5, 0.5], [0.5, 0.5]]
    """
    weights = torch.zeros(len(near), len(near), dtype=torch.float64)
    for client, others in enumerate(near):
        for other in others:
            weights[client, other] = 1 / (1 + max(len(others), len(near[other])))
        weights[client, client] = 1 - weights[client].sum()
    return weights


def _edges(graph: str, clients: int) -> list[tuple[int, int]]:
    if graph == "ring":
        return [(client, (client + 1) % clients) for client in range(clients)]
    if graph == "complete":
        return [(first, second) for first in range(clients) for second in range(first)]
    if not re.fullmatch(r"\d+-\d+(\+\d+-\d+)*", graph):
        raise SpecError(f"graph must be ring, complete or edges such as 0-1+1-2, got '{graph}'")
    edges = [(int(a), int(b)) for a, b in (edge.split("-") for edge in graph.split("+"))]
    largest = max(max(edge) for edge in edges)
    if largest >= clients:
        raise SpecError(f"graph names client {largest}, but clients go from 0 to {clients - 1}")
    return edges


def _check_connected(near: list[set[int]]) -> None:
    reached, waiting = {0}, [0]
    while waiting:
        new = near[waiting.pop()] - reached
        reached |= new
        waiting.extend(new)
    if len(reached) < len(near):
        alone = min(set(range(len(near))) - reached)
        raise SpecError(f"graph does not join client {alone} with client 0; add an edge")
