"""What an adversary sees of a round, from where it stands."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import torch
from torch import Tensor

from gradveil.federated._participants import Returned
from gradveil.federated._weights import average
from gradveil.types import Batch, Evidence, Gradients, Knowledge, Observation, Protected, State


@dataclass(frozen=True, slots=True, kw_only=True)
class Sighting:
    """One observation of a federation, with the truth beside it for the auditor.

    Args:
        round: its number, from 1.
        clients: whose data it holds.
        observer: `server`, `participant` or `client N`.
        observation: of one victim.
        evidence: what the observer must not have.
        exact: whether the observer knows the model that the client began with; a neighbour may only estimate it.
    """

    round: int
    clients: tuple[int, ...]
    observer: str
    observation: Observation
    evidence: Evidence
    exact: bool = True


Watch: TypeAlias = Callable[[Sighting], None]
"""Called with everything that the adversary sees."""


def ignore(sighting: Sighting) -> None:
    """See nothing."""


def as_server(number: int, returned: Sequence[Returned]) -> list[Sighting]:
    """See the update of each client."""
    return [_alone(number, one, "server") for one in returned]


def as_next(number: int, one: Returned, follower: int) -> Sighting:
    """See the difference between the model that a client got and the one it passes on."""
    return _alone(number, one, f"client {follower}")


def as_aggregate(number: int, returned: Sequence[Returned], shares: Tensor, mean: State) -> Sighting:
    """See the mean of the updates alone; its batch is that of all clients together.

    Args:
        number: of the round.
        returned: by the clients.
        shares: (clients,) how much each counts.
        mean: of their updates, as the server lets others see it, by name.
    """
    first, evidence = returned[0].observation(), [one.evidence() for one in returned]
    protected = _together([found.protected for found in evidence], [found.batch.inputs.shape[1] for found in evidence])
    update = tuple(mean[name][None] for name in first.names)
    # Of clients that trained in different ways no single one is how the mean was made.
    alike = len({one.step.observation.local for one in returned}) == 1
    observation = replace(
        first,
        knowledge=first.knowledge if alike else first.knowledge & ~Knowledge.LOCAL_TRAINING,
        local=first.local if alike else None,
        update=update,
        input_shape=(protected.inputs.shape[1], *first.input_shape[1:]),
        labels=protected.labels if Knowledge.LABELS in first.knowledge else None,
        buffers_after=_mean_buffers(returned, shares) if first.buffers_after is not None else None,
    )
    batches = [found.batch for found in evidence]
    whole = Evidence(
        batch=Batch(torch.cat([b.inputs for b in batches], 1), torch.cat([b.labels for b in batches], 1)),
        protected=protected,
        clean=_mean([found.clean for found in evidence], shares),
        update=update,
        buffers_after=_mean_buffers(returned, shares),
    )
    clients = tuple(one.client for one in returned)
    return Sighting(round=number, clients=clients, observer="participant", observation=observation, evidence=whole)


def as_neighbour(number: int, one: Returned, observer: int, guess: State, *, exact: bool) -> Sighting:
    """See the model of a neighbour, and compare it with a guess of what that neighbour began with.

    Args:
        number: of the round.
        one: the neighbour that is seen.
        observer: the client that sees it.
        guess: of the weights it began with, by name.
        exact: whether the guess is right.
    """
    seen = _alone(number, one, f"client {observer}")
    before = seen.observation.parameters or {}
    update = tuple(
        tensor + (guess[name] - before[name])
        for name, tensor in zip(seen.observation.names, seen.observation.update, strict=True)
    )
    parameters = {name: guess[name][None] for name in before}
    return replace(seen, observation=replace(seen.observation, update=update, parameters=parameters), exact=exact)


def _alone(number: int, one: Returned, observer: str) -> Sighting:
    return Sighting(
        round=number,
        clients=(one.client,),
        observer=observer,
        observation=one.observation(),
        evidence=one.evidence(),
    )


def _together(parts: list[Protected], sizes: list[int]) -> Protected:
    """Put what several clients' models saw into one batch; `sizes` are those of their private batches."""
    starts = [sum(sizes[:place]) for place in range(len(sizes))]
    return Protected(
        torch.cat([part.inputs for part in parts], 1),
        torch.cat([part.labels for part in parts], 1),
        torch.cat([part.origin + start for part, start in zip(parts, starts, strict=True)], 1),
        torch.cat([part.weights for part in parts], 1),
    )


def _mean(updates: list[Gradients], shares: Tensor) -> Gradients:
    return tuple(average(torch.stack(tensors), shares) for tensors in zip(*updates, strict=True))


def _mean_buffers(returned: Sequence[Returned], shares: Tensor) -> dict[str, Tensor]:
    names = returned[0].buffers
    return {name: average(torch.stack([one.buffers[name] for one in returned]), shares)[None] for name in names}
