"""One round of each algorithm."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Self

import torch
from torch import Tensor

from gradveil.federated import views
from gradveil.federated._central import central_dp, finished
from gradveil.federated._graph import mixing, neighbours
from gradveil.federated._participants import Returned, Site, train_clients
from gradveil.federated._weights import Weights, average
from gradveil.federated.settings import FederationError
from gradveil.federated.views import Watch
from gradveil.types import State


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Where a federation stands between two rounds.

    Args:
        weights: of the server; of a decentralized federation (clients, *shape).
        kept: what the clients keep, by client.
        published: (clients, *shape) the models that were exchanged last, of a decentralized federation.
    """

    weights: Weights
    kept: dict[int, State] = field(default_factory=dict)
    published: State = field(default_factory=dict)

    def keeping(self, returned: Sequence[Returned]) -> Self:
        """Let the clients keep what they want to keep."""
        return replace(self, kept={**self.kept, **{one.client: one.kept for one in returned}})


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a round leaves.

    Args:
        standing: afterwards.
        returned: by the clients whose updates were used.
        dropped: clients whose updates were not finite.
    """

    standing: Standing
    returned: tuple[Returned, ...]
    dropped: tuple[int, ...]


def central_round(site: Site, number: int, clients: Sequence[int], standing: Standing, watch: Watch) -> Outcome:
    """Average the updates of clients that began with the same model: FedAvg, or FedSGD for gradients."""
    found = train_clients(site, number, clients, standing.weights.expand(len(clients)), standing.kept)
    used, dropped = _usable(found, number)
    central = central_dp(site.client.defenses)
    shares = torch.tensor([float(one.samples) if central is None else 1.0 for one in used], dtype=torch.float64)
    mean = {name: average(torch.stack([one.update[name] for one in used]), shares) for name in used[0].update}
    update = finished(mean, central, clients=len(used), seed=site.settings.seed, number=number)
    if watch is not views.ignore:
        whole = site.settings.seen_by == "aggregate"
        for seen in [views.as_aggregate(number, used, shares, update)] if whole else views.as_server(number, used):
            watch(seen)

    weights = standing.weights.moved(update, _rate(site))
    if site.settings.share_buffers:
        names = used[0].buffers
        means = {name: average(torch.stack([one.buffers[name] for one in used]), shares) for name in names}
        weights = weights.with_buffers(means)
    return Outcome(standing=replace(standing, weights=weights).keeping(used), returned=tuple(used), dropped=dropped)


def sequential_round(site: Site, number: int, clients: Sequence[int], standing: Standing, watch: Watch) -> Outcome:
    """Pass the model from client to client; each trains it further."""
    used: list[Returned] = []
    dropped: list[int] = []
    for place, client in enumerate(clients):
        (one,) = train_clients(site, number, [client], standing.weights.expand(1), standing.kept)
        if not one.finite:
            dropped.append(client)
            continue
        follower = clients[(place + 1) % len(clients)]
        if watch is not views.ignore:
            server = site.settings.seen_by == "server"
            watch(views.as_server(number, [one])[0] if server else views.as_next(number, one, follower))
        weights = standing.weights.moved(one.update, _rate(site))
        weights = weights.with_buffers(one.buffers) if site.settings.share_buffers else weights
        standing = replace(standing, weights=weights).keeping([one])
        used.append(one)
    _check_some(used, number)
    return Outcome(standing=standing, returned=tuple(used), dropped=tuple(dropped))


def decentralized_round(site: Site, number: int, clients: Sequence[int], standing: Standing, watch: Watch) -> Outcome:
    """Let every client train its own model and average it with those of its neighbours."""
    near = neighbours(site.settings.graph, len(site.splits))
    mix = mixing(near)
    found = train_clients(site, number, clients, standing.weights.select(clients), standing.kept)
    used, dropped = _usable(found, number)
    if watch is not views.ignore:
        _let_neighbours_see(number, used, near, mix, standing, watch)

    trained = {name: tensor.clone() for name, tensor in standing.weights.parameters.items()}
    buffers = {name: tensor.clone() for name, tensor in standing.weights.buffers.items()}
    for one in used:
        for name, tensor in one.update.items():
            trained[name][one.client] -= _rate(site) * tensor
        for name, tensor in one.buffers.items():
            buffers[name][one.client] = tensor
    mixed = {name: _mixed(tensor, mix) for name, tensor in trained.items()}
    if site.settings.share_buffers:
        buffers = {name: _mixed(tensor, mix) for name, tensor in buffers.items()}
    after = replace(standing, weights=Weights(parameters=mixed, buffers=buffers), published=trained)
    return Outcome(standing=after.keeping(used), returned=tuple(used), dropped=dropped)


def _let_neighbours_see(
    number: int,
    returned: Sequence[Returned],
    near: tuple[frozenset[int], ...],
    mix: Tensor,
    standing: Standing,
    watch: Watch,
) -> None:
    """A neighbour knows the models that it was sent last, and averages those that went into the client's model."""
    for one in returned:
        around = near[one.client] | {one.client}
        for observer in sorted(near[one.client]):
            known = sorted(around & (near[observer] | {observer}))
            shares = mix[one.client, known]
            guess = {name: average(tensor[known], shares) for name, tensor in standing.published.items()}
            exact = not standing.published or len(known) == len(around)
            own = {name: tensor[one.client] for name, tensor in standing.weights.parameters.items()}
            watch(views.as_neighbour(number, one, observer, guess or own, exact=exact))


def _mixed(tensor: Tensor, mix: Tensor) -> Tensor:
    if not tensor.is_floating_point():
        return tensor
    mixed: Tensor = torch.tensordot(mix.to(tensor), tensor, dims=1)
    return mixed


def _rate(site: Site) -> float:
    """A shared gradient moves the model by the clients' rate; a shared difference has moved by it already."""
    settings = site.settings
    return settings.server_lr * (settings.local.lr if settings.algorithm == "fedsgd" else 1.0)


def _usable(returned: Sequence[Returned], number: int) -> tuple[list[Returned], tuple[int, ...]]:
    used = [one for one in returned if one.finite]
    _check_some(used, number)
    return used, tuple(one.client for one in returned if not one.finite)


def _check_some(used: Sequence[Returned], number: int) -> None:
    if not used:
        raise FederationError(f"no client shared a finite update in round {number}; lower the learning rate")
