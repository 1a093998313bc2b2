"""A defense applied again to trial updates, by its own methods where it is known and as the update shows it if not."""

from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from gradveil.attacks._objectives import inner
from gradveil.engine import spread
from gradveil.streams import Streams
from gradveil.types import Gradients, KnownDefense, Observation

Change: TypeAlias = Callable[[Gradients], Gradients]
"""Trial updates of the victims of an observation to what the defense would have made of them."""


def reapplied(observation: Observation, *, streams: Streams) -> Change:
    """Return what applies the client's defense to trial updates.

    A known defense is asked itself, unless it draws at random: another draw of its noise brings a trial no nearer to
    the update. Of an unknown one the update gives away how sparse it is and how long, and a trial that is right is
    just as sparse and as long whether or not there is a defense.
    """
    if observation.defenses is not None:
        return _by_the_known(observation.defenses, observation.update, streams)
    return _as_estimated(observation.update)


def unchanged(trial: Gradients) -> Gradients:
    """Leave trial updates as they are."""
    return trial


def shown_to_the_model(images: Tensor, observation: Observation) -> Tensor:
    """Return what known defenses of the data make of images (V, B, C, H, W); the images themselves without any."""
    for defense in observation.defenses or ():
        images = defense.forward(images)
    return images


def _by_the_known(defenses: Sequence[KnownDefense], update: Gradients, streams: Streams) -> Change:
    certain = [defense for defense in defenses if _draws_nothing(defense, update, streams)]

    def change(trial: Gradients) -> Gradients:
        for defense in certain:
            trial = defense.resample(trial, streams=streams)
        return trial

    return change


def _draws_nothing(defense: KnownDefense, update: Gradients, streams: Streams) -> bool:
    """Tell whether a defense makes the same of an update under different randomness."""
    finite = tuple(torch.nan_to_num(tensor) for tensor in update)
    first, second = (defense.resample(finite, streams=streams.fork(name)) for name in ("first", "second"))
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def _as_estimated(update: Gradients) -> Change:
    """Keep the columns that are not empty, of them as many entries as the update has, and no more length than it."""
    columns = tuple(_filled_columns(tensor) for tensor in update)
    counts = tuple((tensor != 0).flatten(1).sum(1) for tensor in update)
    sparse = [bool((count < tensor[0].numel()).any()) for count, tensor in zip(counts, update, strict=True)]
    length = inner(update, update).sqrt()

    def change(trial: Gradients) -> Gradients:
        kept = tuple(
            keep_largest(tensor * mask, count) if is_sparse else tensor
            for tensor, mask, count, is_sparse in zip(trial, columns, counts, sparse, strict=True)
        )
        own = inner(kept, kept).clamp_min(1e-24).sqrt()
        factors = (length / own).clamp(max=1)
        return tuple(tensor * spread(factors, tensor) for tensor in kept)

    return change


def keep_largest(tensor: Tensor, counts: Tensor) -> Tensor:
    """Keep so many (V,) entries of the largest magnitude of each (V, ...), and set the others to zero.

    Example:
        >>> keep_largest(torch.tensor([[3.0, -5.0, 1.0], [3.0, -5.0, 1.0]]), torch.tensor([1, 3])).tolist()
        [[0.0, -5.0, 0.0], [3.0, -5.0, 1.0]]
    """
    flat = tensor.flatten(1)
    order = flat.detach().abs().argsort(dim=1, descending=True, stable=True)
    among = torch.arange(flat.shape[1], device=flat.device).expand_as(order) < counts[:, None]
    mask = torch.zeros_like(among).scatter(1, order, among)
    return (flat * mask).view_as(tensor)


def _filled_columns(tensor: Tensor) -> Tensor:
    """Return a mask of the columns of a matrix (V, m, n) that are not empty, as Soteria leaves them; else all ones."""
    if tensor.ndim != 3:
        return torch.ones_like(tensor, dtype=torch.bool)
    return (tensor != 0).any(1, keepdim=True).expand_as(tensor)
