"""From similarities of encodings to which private image is in which: clusters, assignment, coefficients."""

import math

import numpy as np
import torch
from scipy.optimize import linprog
from scipy.sparse import coo_array, vstack
from torch import Tensor

from gradveil.errors import DataError
from gradveil.streams import Streams

_NEAREST = 11  # among which the first companion of a seed is drawn


def grow_clusters(scores: Tensor, *, size: int, streams: Streams) -> Tensor:
    """Grow a cluster from every encoding: a companion near it, then always the one most similar to all members.

    Args:
        scores: (N, N), higher for pairs that share an image.
        size: of every cluster.
        streams: of one group.

    Returns:
        (N, size) members, the seed first.
    """
    count = len(scores)
    seeds = torch.arange(count, device=scores.device)
    total = scores.clone().fill_diagonal_(-torch.inf)
    near = total.topk(min(_NEAREST, size, count - 1), 1).indices
    drawn = streams.integers("companion", near.shape[1], (count,), device=scores.device)[0]
    members = seeds[:, None].repeat(1, size)
    newest = near[seeds, drawn]
    # In place, since small tensors that are kept between large ones that are not pin the memory that those leave.
    for number in range(1, size):
        members[:, number] = newest
        total += scores[newest]
        total[seeds, newest] = -torch.inf
        newest = total.argmax(1)
    return members


def pick_clusters(members: Tensor, scores: Tensor, *, count: int) -> Tensor:
    """Keep the most coherent clusters whose core, the first half of their members, is not in a kept one already.

    Args:
        members: (n, size) of all clusters, in the order in which they joined.
        scores: (N, N).
        count: clusters to keep.

    Returns:
        (count, N), whether each encoding is in the core.
    """
    core = members[:, : (members.shape[1] + 1) // 2]
    whole, cores = _masks(members, len(scores)), _masks(core, len(scores))
    inside = cores.to(scores)
    order = ((inside @ scores) * inside).sum(1).argsort(descending=True).tolist()
    shared = (inside @ whole.to(scores).T).cpu().numpy()
    kept: list[int] = []
    most = np.zeros(len(order))
    for limit in (0.5, 0.75, 1.0):
        for number in order:
            if len(kept) < count and number not in kept and most[number] < limit * core.shape[1]:
                kept.append(number)
                most = np.maximum(most, shared[:, number])
    if len(kept) < count:
        raise DataError(f"only {len(kept)} clusters of encodings were found, not {count}; ask for fewer images")
    return cores[kept]


def _masks(members: Tensor, count: int) -> Tensor:
    empty = torch.zeros(len(members), count, dtype=torch.bool, device=members.device)
    return empty.scatter(1, members, True)


def affinity(masks: Tensor, scores: Tensor) -> Tensor:
    """Return (N, P), the mean similarity of each encoding to the other members of each cluster."""
    inside = masks.to(scores)
    others = (inside.sum(1)[None] - inside.T).clamp_min(1)
    return (scores @ inside.T) / others


def assign(gains: Tensor, *, k: int, slack: float = 1.5) -> Tensor:
    """Give every encoding k images at the least cost, by minimum-cost flow.

    An image takes part in N · k / P encodings on average; each may have up to `slack` times as many or as few.

    Args:
        gains: (N, P), higher where an image is likely in an encoding.
        k: images of an encoding.
        slack: at least 1.

    Returns:
        (N, P), whether an image is in an encoding; k of each row are true.

    Example:
        >>> assign(torch.tensor([[3.0, 2.0, 0.0], [0.0, 2.0, 3.0], [3.0, 0.0, 2.0]]), k=2).int().tolist()
        [[1, 1, 0], [0, 1, 1], [1, 0, 1]]
    """
    encodings, images = gains.shape
    if images < k:
        raise DataError(f"{k} images are in every encoding, but only {images} are looked for; look for more")
    average = encodings * k / images
    most, least = min(encodings, math.ceil(slack * average)), math.floor(average / slack)
    best = torch.zeros_like(gains, dtype=torch.bool).scatter(1, gains.topk(k, 1).indices, True)
    if least <= int(best.sum(0).min()) and int(best.sum(0).max()) <= most:
        return best  # what each encoding would choose by itself is the optimum wherever it is allowed
    return _flow(gains, k=k, least=least, most=most)


def _flow(gains: Tensor, *, k: int, least: int, most: int) -> Tensor:
    """Solve the linear program of `assign`, whose constraints bind."""
    encodings, images = gains.shape
    rows, columns = np.divmod(np.arange(encodings * images), images)
    ones = np.ones(encodings * images)
    by_encoding = coo_array((ones, (rows, np.arange(len(ones)))), shape=(encodings, len(ones)))
    by_image = coo_array((ones, (columns, np.arange(len(ones)))), shape=(images, len(ones)))
    # The constraints are those of a network, so that the corner which the simplex method finds is whole.
    found = linprog(
        -gains.double().cpu().numpy().ravel(),
        A_ub=vstack([by_image, -by_image]),
        b_ub=np.concatenate([np.full(images, most), np.full(images, -least)]),
        A_eq=by_encoding,
        b_eq=np.full(encodings, k),
        bounds=(0, 1),
        method="highs-ds",
    )
    return torch.from_numpy(np.asarray(found.x).reshape(encodings, images) > 0.5).to(gains.device)


def coefficients(chosen: Tensor, labels: Tensor | None, *, k: int) -> Tensor:
    """Estimate how much of each image is in each encoding.

    The class of an image is the one that its encodings have in common; its share is what the label gives that class,
    divided among the images of that class. Together the images have all that the label gives, also where a class was
    taken for another. Without labels all shares are equal.

    Args:
        chosen: (N, P), whether an image is in an encoding.
        labels: (N, K) soft labels, None if they are unknown.
        k: images of an encoding.

    Returns:
        (N, P).

    Example:
        >>> chosen = torch.tensor([[True, True], [True, False], [False, True]])
        >>> coefficients(chosen, torch.tensor([[0.75, 0.25], [1.0, 0.0], [0.0, 1.0]]), k=2).tolist()
        [[0.75, 0.25], [1.0, 0.0], [0.0, 1.0]]
    """
    if labels is None:
        return chosen.double() / k
    mask = chosen.to(labels)
    # Log-shares: one encoding without a class speaks against it more than several speak for it.
    votes = mask.T @ labels.clamp_min(1e-3).log()
    of_class = torch.nn.functional.one_hot(votes.argmax(1), labels.shape[1]).to(labels)
    same = (mask @ of_class).clamp_min(1)
    shares = mask * ((labels / same) @ of_class.T)
    known = shares.sum(1, keepdim=True)
    even = mask / mask.sum(1, keepdim=True).clamp_min(1)
    return labels.sum(1, keepdim=True) * torch.where(known > 0, shares / known.clamp_min(1e-12), even)
