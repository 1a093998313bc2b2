"""A federation on one machine: every client through the client step, many clients in one stack."""

import copy
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gradveil.client import Client, sent_model
from gradveil.data import Split
from gradveil.defenses import Defense
from gradveil.engine import Progress, Runtime, Store
from gradveil.engine.runtime import silent
from gradveil.errors import DataError
from gradveil.federated import views
from gradveil.federated._central import check_server
from gradveil.federated._graph import neighbours
from gradveil.federated._measuring import Measured, measure
from gradveil.federated._participants import Site
from gradveil.federated._privacy import guarantee, statistics_leave
from gradveil.federated._resume import identify, restore, to_tensors
from gradveil.federated._rounds import Outcome, Standing, central_round, decentralized_round, sequential_round
from gradveil.federated._stacking import usual_runtime
from gradveil.federated._weights import Weights
from gradveil.federated.history import History, Log, Round, log_nothing
from gradveil.federated.settings import Federation, FederationError
from gradveil.federated.views import Watch
from gradveil.streams import Streams
from gradveil.types import Auxiliary, Knowledge, LossFn

_NAME = "federation"
_RoundFunction: TypeAlias = Callable[[Site, int, Sequence[int], Standing, Watch], Outcome]
_ROUNDS: dict[str, _RoundFunction] = {
    "fedavg": central_round,
    "fedsgd": central_round,
    "round-robin": sequential_round,
    "decentralized": decentralized_round,
}


def federate(
    model: nn.Module,
    clients: Sequence[Split],
    *,
    settings: Federation | None = None,
    defenses: Sequence[Defense] = (),
    rounds: int | None = None,
    loss: LossFn = F.cross_entropy,
    test: Split | None = None,
    pool: Tensor | None = None,
    watch: Watch = views.ignore,
    knowledge: Knowledge = Knowledge.NOTHING,
    auxiliary: Auxiliary | None = None,
    store: Store | None = None,
    progress: Progress = silent,
    log: Log = log_nothing,
    runtime: Runtime | None = None,
    device: torch.device | str | None = None,
) -> History:
    """Train a copy of a model over the private samples of many clients.

    A result depends on the seed alone: not on who trains in one stack, nor on interruptions.

    Args:
        model: eats images in [0, 1]; its number format is that of the pixels.
        clients: the samples of each, such as `partition(...).apply(split)`.
        settings: the algorithm and its numbers.
        defenses: of every client, in the order of the client step.
        rounds: in place of those of the settings.
        loss: of outputs and labels, averaged over samples.
        test: clean images to measure on after every round.
        pool: (N, C, H, W) further images that a data defense may draw from.
        watch: called with what the adversary of the settings' view sees.
        knowledge: granted to that adversary.
        auxiliary: public material for it.
        store: keeps the state after every round; an interrupted federation continues to the same weights.
        progress: called after every round.
        log: called after every round with all that were finished, also those before an interruption.
        runtime: precision and chunk; a chunk of 1 trains one client after another, with the same result.
        device: where to train; where the model lies if None.

    Example:
        >>> images = torch.randint(256, (40, 1, 2, 2), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
        >>> split = Split(images, (images.float().mean((1, 2, 3)) > 127).long())
        >>> clients = [split.select(range(start, start + 10)) for start in range(0, 40, 10)]
        >>> history = federate(nn.Sequential(nn.Flatten(), nn.Linear(4, 2)), clients, rounds=30, test=split)
        >>> history.rounds[-1].loss < history.rounds[0].loss
        True
    """
    _check(clients)
    base = copy.deepcopy(model).to(device or next(model.parameters(), torch.zeros(())).device)
    settings = _with_rounds(settings or Federation(), rounds)
    client = Client(model=base, loss=loss, defenses=tuple(defenses), mode=settings.mode, pool=pool)
    splits = dict(enumerate(clients))
    runtime = runtime or usual_runtime(base, clients, batch_size=settings.batch_size, defenses=client.defenses)
    site = Site(
        client=client, splits=splits, settings=settings, knowledge=knowledge, auxiliary=auxiliary, runtime=runtime
    )
    return _run(site, test=test, watch=watch, store=store, progress=progress, log=log)


def _run(site: Site, *, test: Split | None, watch: Watch, store: Store | None, progress: Progress, log: Log) -> History:
    settings, sent = site.settings, sent_model(site.client)
    standing = _start(site, sent)
    rounds: tuple[Round, ...] = ()
    identity = identify(site, sent)
    saved = store.load(_NAME) if store else None
    if saved:
        standing, rounds = restore(saved, standing, identity=identity)
        _check_enough(rounds, settings)

    for number in range(len(rounds) + 1, settings.rounds + 1):
        began = time.monotonic()
        outcome = _ROUNDS[settings.algorithm](site, number, _participants(site, number), standing, watch)
        standing = outcome.standing
        measured = measure(_model(sent, site, standing), test, site.client.loss)
        made = _describe(outcome, measured, time.monotonic() - began)
        rounds = (*rounds, replace(made, epsilon=_epsilon(site, (*rounds, made))))
        if store:
            store.save(_NAME, to_tensors(standing, rounds, identity=identity, clients=len(site.splits)))
        log(rounds)
        progress(_NAME, number, settings.rounds)
    own = standing.weights.parameters if settings.algorithm == "decentralized" else {}
    return History(model=_model(sent, site, standing), rounds=rounds, models=own)


def _start(site: Site, sent: nn.Module) -> Standing:
    check_server(site.client.defenses, site.settings)
    weights = Weights.of(sent)
    if site.settings.algorithm == "decentralized":
        neighbours(site.settings.graph, len(site.splits))  # a mistake in the graph shows before anything runs
        weights = weights.expand(len(site.splits))
    return Standing(weights=weights)


def _participants(site: Site, number: int) -> list[int]:
    """Draw the clients of a round, in order."""
    count = max(int(site.settings.fraction * len(site.splits) + 1e-9), 1)
    server = Streams(seed=site.settings.seed, purpose="server").bind(1)
    order: list[int] = server.permutation(f"round-{number}", len(site.splits))[0].tolist()
    return sorted(order[:count])


def _model(sent: nn.Module, site: Site, standing: Standing) -> nn.Module:
    own = site.settings.algorithm == "decentralized"
    return (standing.weights.mean() if own else standing.weights).into(sent)


def _describe(outcome: Outcome, measured: Measured, seconds: float) -> Round:
    return Round(
        norms={one.client: one.norm for one in outcome.returned},
        dropped=outcome.dropped,
        samples=sum(one.samples for one in outcome.returned),
        loss=measured.loss,
        accuracy=measured.accuracy,
        seconds=seconds,
    )


def _epsilon(site: Site, rounds: Sequence[Round]) -> float | None:
    """Return the largest epsilon of a client after some rounds; in those it was dropped from, it shared too."""
    if statistics_leave(site.client.model, site.settings):
        return None
    counts = Counter(client for one in rounds for client in (*one.norms, *one.dropped))
    worst = {(count, len(site.splits[client])) for client, count in counts.items()}
    settings, defenses = site.settings, site.client.defenses
    found = [guarantee(defenses, settings, rounds=n, held=held, delta=settings.delta) for n, held in worst]
    return max((one.epsilon for one in found if one is not None), default=None)


def _with_rounds(settings: Federation, rounds: int | None) -> Federation:
    return settings if rounds is None else replace(settings, rounds=rounds)


def _check_enough(rounds: Sequence[Round], settings: Federation) -> None:
    if len(rounds) > settings.rounds:
        raise FederationError(
            f"the folder or store holds {len(rounds)} finished rounds, but {settings.rounds} are asked for; "
            "ask for as many or more, or give an empty one"
        )


def _check(clients: Sequence[Split]) -> None:
    if not clients:
        raise DataError("a federation needs at least 1 client, got none; partition a data set first")
    empty = [number for number, split in enumerate(clients) if not len(split)]
    if empty:
        raise DataError(f"client {empty[0]} holds no samples; leave it out or partition again")
