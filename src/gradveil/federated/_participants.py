"""The clients' side of a round: draw samples, train through the client step, share."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import torch
from torch import Tensor

from gradveil.client import Client, Step, begin, step
from gradveil.data import Split
from gradveil.engine import Runtime
from gradveil.federated._weights import Weights
from gradveil.federated.settings import Federation
from gradveil.streams import Streams
from gradveil.types import Auxiliary, Batch, Evidence, Gradients, Knowledge, LocalTraining, Observation, State

Kept: TypeAlias = Mapping[int, State]
"""What every client keeps for its next round, (1, *shape) by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """The clients and how they train.

    Args:
        client: what they have in common.
        splits: their private samples, by client; on a client of its own there is one alone.
        settings: of the federation.
        knowledge: of the adversary.
        auxiliary: public material for it.
        runtime: precision and chunk; a chunk of 1 trains one client after another.
    """

    client: Client
    splits: Mapping[int, Split]
    settings: Federation
    knowledge: Knowledge
    auxiliary: Auxiliary | None
    runtime: Runtime

    @property
    def like(self) -> Tensor:
        """A weight, whose device and number format are the model's."""
        return next(self.client.model.parameters())

    def streams(self, clients: Sequence[int]) -> Streams:
        """Of some clients, over all rounds."""
        return Streams(seed=self.settings.seed, purpose="client", keys=tuple((client,) for client in clients))


@dataclass(frozen=True, slots=True, kw_only=True)
class Returned:
    """What one client gave back.

    Args:
        client: its number.
        samples: that it holds.
        update: by name of the parameter.
        buffers: its running statistics.
        kept: what it keeps for its next round.
        step: of the stack that it was trained in.
        row: its place there.
    """

    client: int
    samples: int
    update: State
    buffers: State
    kept: State
    step: Step
    row: int

    @property
    def norm(self) -> float:
        """Length of the update."""
        return float(torch.stack([tensor.double().norm() for tensor in self.update.values()]).norm())

    @property
    def finite(self) -> bool:
        """Whether the update can be averaged."""
        return bool(torch.stack([torch.isfinite(tensor).all() for tensor in self.update.values()]).all())

    def observation(self) -> Observation:
        """Return what an adversary sees of this client alone."""
        return self.step.observation.select([self.row])

    def evidence(self) -> Evidence:
        """Return what it must not see."""
        own, found = slice(self.row, self.row + 1), self.step.evidence
        return Evidence(
            batch=found.batch.select(own),
            protected=found.protected.select(own),
            clean=_rows(found.clean, own),
            update=_rows(found.update, own),
            buffers_after={name: tensor[own] for name, tensor in found.buffers_after.items()},
        )


@dataclass(frozen=True, slots=True)
class _Task:
    """What a client trains on in a round, and how; clients with equal tasks and sizes train in one stack."""

    samples: Tensor
    local: LocalTraining


def train_clients(
    site: Site, number: int | str, clients: Sequence[int], weights: Weights, kept: Kept
) -> list[Returned]:
    """Train some clients in one round; those whose shapes agree in one stack.

    Args:
        site: the clients.
        number: of the round, which names its randomness.
        clients: who takes part.
        weights: that each was sent, stacked in that order.
        kept: from earlier rounds; clients that are not in it begin.
    """
    kept = {client: kept[client] if client in kept else _begun(site, client) for client in clients}
    tasks = {client: _task(site, number, client) for client in clients}
    groups: dict[tuple[object, ...], list[int]] = {}
    for client, task in tasks.items():
        groups.setdefault((len(task.samples), task.local, *sorted(kept[client])), []).append(client)
    returned: dict[int, Returned] = {}
    for group in groups.values():
        own = weights.select([list(clients).index(client) for client in group])
        taken = _train(site, number, [(client, tasks[client]) for client in group], own, kept)
        returned |= {client: _returned(site, client, taken, row) for row, client in enumerate(group)}
    return [returned[client] for client in clients]


def _begun(site: Site, client: int) -> State:
    return begin(site.client, streams=site.streams([client]))


def _task(site: Site, number: int | str, client: int) -> _Task:
    """Draw the samples of a round: as many as its steps use, or all of them for more than one pass."""
    settings, held = site.settings, len(site.splits[client])
    count = min(settings.batch_size or held, held)
    if settings.algorithm == "fedsgd":
        steps, shares, size = 1, "gradient", None
    else:
        steps, shares = settings.local_steps or settings.local_epochs * (held // count), "difference"
        size = count if count < held and (steps > 1) else None
    local = replace(settings.local, steps=steps, shares=shares, local_batch_size=size, shuffled=False)  # type: ignore[arg-type]
    if count == held:
        return _Task(torch.arange(held), local)
    if steps * count > held:
        return _Task(torch.arange(held), replace(local, shuffled=True))
    order = _of_round(site, number, [client]).permutation("samples", held)[0]
    return _Task(order[: steps * count], local)


def _train(site: Site, number: int | str, tasks: list[tuple[int, _Task]], weights: Weights, kept: Kept) -> Step:
    clients = [client for client, _ in tasks]
    names = kept[clients[0]]
    return step(
        _batch(site, tasks),
        replace(site.client, local=tasks[0][1].local),
        streams=_of_round(site, number, clients),
        knowledge=site.knowledge,
        auxiliary=site.auxiliary,
        parameters=weights.parameters,
        buffers=weights.buffers,
        kept={name: torch.cat([kept[client][name] for client in clients]) for name in names},
        runtime=site.runtime,
    )


def _batch(site: Site, tasks: list[tuple[int, _Task]]) -> Batch:
    """Put the samples of some clients into one stack; they travel as bytes, a quarter of the way as numbers."""
    parts = [site.splits[client].select(task.samples) for client, task in tasks]
    device, shape = site.like.device, (len(tasks), -1)
    there = Split(torch.cat([p.images for p in parts]).to(device), torch.cat([p.labels for p in parts]).to(device))
    return Batch(
        there.inputs(dtype=site.like.dtype).unflatten(0, shape),
        there.labels.unflatten(0, shape),
        _marks(parts, device),
    )


def _marks(parts: Sequence[Split], device: torch.device) -> Tensor | None:
    """Return which samples (clients, B) are sensitive; of clients that mark none, all of them."""
    if all(part.sensitive is None for part in parts):
        return None
    return torch.stack([_marked(part) for part in parts]).to(device)


def _marked(part: Split) -> Tensor:
    return torch.ones(len(part), dtype=torch.bool) if part.sensitive is None else part.sensitive


def _of_round(site: Site, number: int | str, clients: Sequence[int]) -> Streams:
    return site.streams(clients).fork(f"round-{number}")


def _returned(site: Site, client: int, taken: Step, row: int) -> Returned:
    observation = taken.observation
    return Returned(
        client=client,
        samples=len(site.splits[client]),
        update={name: tensor[row] for name, tensor in zip(observation.names, observation.update, strict=True)},
        buffers={name: tensor[row] for name, tensor in taken.evidence.buffers_after.items()},
        # Copied: a part of the stack would hold all of it until the client takes part again.
        kept={name: tensor[row : row + 1].clone() for name, tensor in taken.kept.items()},
        step=taken,
        row=row,
    )


def _rows(tensors: Gradients, rows: slice) -> Gradients:
    return tuple(tensor[rows] for tensor in tensors)
