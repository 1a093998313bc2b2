"""The state of a federation as tensors that a store can keep."""

from dataclasses import replace

import torch
from torch import Tensor, nn

from gradveil.federated._participants import Site
from gradveil.federated._rounds import Standing
from gradveil.federated._weights import Weights
from gradveil.federated.history import Round, StoredRounds
from gradveil.federated.settings import FederationError
from gradveil.storage import content_hash, number_of
from gradveil.types import State

_PARAMETERS, _BUFFERS, _PUBLISHED, _KEPT = "parameters/", "buffers/", "published/", "kept/"


def identify(site: Site, sent: nn.Module) -> Tensor:
    """Return a number that differs between federations whose rounds would differ; more rounds may be added later."""
    settings = replace(site.settings, rounds=1)
    shapes = [(name, tuple(tensor.shape), tensor.dtype) for name, tensor in sent.state_dict().items()]
    sizes = [len(split) for split in site.splits.values()]
    held = [tensor for split in site.splits.values() for tensor in split.contents()]
    return number_of(content_hash(repr((settings, site.client.defenses, shapes, sizes)), *held))


def to_tensors(standing: Standing, rounds: tuple[Round, ...], *, identity: Tensor, clients: int) -> dict[str, Tensor]:
    """Name everything that the next rounds depend on; their randomness depends on their numbers alone."""
    stored = StoredRounds.of(rounds, clients)
    kept = {f"{client}/{name}": t for client, state in standing.kept.items() for name, t in state.items()}
    # A client that keeps nothing has still begun.
    begun = torch.tensor(sorted(standing.kept), dtype=torch.long)
    return {
        **_above(standing.weights.parameters, _PARAMETERS),
        **_above(standing.weights.buffers, _BUFFERS),
        **_above(standing.published, _PUBLISHED),
        **_above(kept, _KEPT),
        "begun": begun,
        "rows": stored.rows,
        "norms": stored.norms,
        "identity": identity,
    }


def restore(saved: dict[str, Tensor], fresh: Standing, *, identity: Tensor) -> tuple[Standing, tuple[Round, ...]]:
    """Take over a saved state; `fresh` tells where its tensors belong."""
    if int(saved["identity"]) != int(identity):
        raise FederationError(
            "the folder or store holds a federation with other settings, defenses, clients or layers; "
            "give an empty one, or the settings that it was begun with"
        )
    place = next(iter(fresh.weights.parameters.values())).device
    there = {name: tensor.to(place) for name, tensor in saved.items()}
    kept: dict[int, dict[str, Tensor]] = {client: {} for client in saved["begun"].tolist()}
    for key, tensor in _below(there, _KEPT).items():
        client, _, name = key.partition("/")
        kept[int(client)][name] = tensor
    weights = Weights(parameters=_below(there, _PARAMETERS), buffers=_below(there, _BUFFERS))
    standing = Standing(weights=weights, kept=dict(kept), published=_below(there, _PUBLISHED))
    return standing, StoredRounds(saved["rows"], saved["norms"]).rounds()


def _above(tensors: State, place: str) -> dict[str, Tensor]:
    return {f"{place}{name}": tensor for name, tensor in tensors.items()}


def _below(tensors: State, place: str) -> dict[str, Tensor]:
    return {name.removeprefix(place): tensor for name, tensor in tensors.items() if name.startswith(place)}
