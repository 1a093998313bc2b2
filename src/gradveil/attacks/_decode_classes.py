"""Which image of its class is in which encoding, where soft labels say how much of every class is in it.

An encoding that holds a class holds one of its few images, and labels tell by how much. Only encodings that hold much
of a class are worth comparing for it; among them, those that hold the same image form a group.
"""

import numpy as np
import scipy.linalg
import torch
import torch.nn.functional as F
from torch import Tensor

_FAINT = 0.1  # is too small a share for a comparison to say anything
_LITTLE = 1e-3  # of a class is rounding, and no image
_APART = 0.6  # of the images of an encoding are of different classes where labels tell them apart
_TURNS = 50


def tell_apart(labels: Tensor, *, k: int) -> bool:
    """Tell whether k images drawn at random are mostly of different classes, by how common labels (N, K) make these.

    Example:
        >>> tell_apart(torch.eye(10), k=6), tell_apart(torch.eye(2), k=6)
        (True, False)
    """
    common = labels.sum(0) / labels.sum()
    return float((1 - (1 - common) ** k).sum()) >= _APART * k


def count_images(labels: Tensor, images: int) -> Tensor:
    """Divide images among classes (K,) by how much labels (N, K) hold of them, and none to a class that is nowhere.

    Example:
        >>> count_images(torch.tensor([[0.7, 0.3, 0.0], [0.6, 0.4, 0.0]]), 5).tolist()
        [3, 2, 0]
    """
    wanted = images * labels.sum(0) / labels.sum()
    whole = wanted.floor()
    missing = images - int(whole.sum())
    order = (wanted - whole).argsort(stable=True, descending=True)
    return whole.long().index_add(0, order[:missing], torch.ones_like(order[:missing]))


def worth_comparing(labels: Tensor) -> Tensor:
    """Return (N, N), whether two encodings both hold enough of some class."""
    held = (labels >= _FAINT).to(labels)
    return (held @ held.T > 0).fill_diagonal_(False)


def map_by_class(scores: Tensor, labels: Tensor, *, images: int) -> Tensor:
    """Return (N, P), how much of each image is in each encoding; images of one class stand side by side.

    What is too faint to be told is divided among the images of its class.

    Args:
        scores: (N, N), higher for pairs that share an image, where they are `worth_comparing`.
        labels: (N, K).
        images: P.
    """
    found = []
    for of_class, count in zip(labels.T, count_images(labels, images).tolist(), strict=True):
        if count:
            found.append(_map_one(scores, of_class, count))
    return torch.cat(found, 1)


def _map_one(scores: Tensor, shares: Tensor, count: int) -> Tensor:
    """Map one class, of which encodings hold `shares` (N,), to its images: (N, count)."""
    even = shares[:, None].repeat(1, count) / count
    held = torch.where(shares >= _FAINT)[0]
    if count == 1 or len(held) < count:
        return even
    own = shares[held]
    # Two encodings can be told to share an image by as much as both hold of it.
    worth = torch.minimum(own[:, None], own[None]).fill_diagonal_(0)
    similar = scores[held][:, held]
    similar = worth * (similar - (worth * similar).sum() / worth.sum())
    heavy = own >= own.mean() if int((own >= own.mean()).sum()) >= count else own >= 0
    members = F.one_hot(_groups(similar[heavy][:, heavy], worth[heavy][:, heavy], count), count).to(scores)
    group = _mean_similarity(similar[:, heavy], worth[:, heavy], members).argmax(1)
    even[held] = own[:, None] * F.one_hot(group, count).to(own)
    return even


def _groups(similar: Tensor, worth: Tensor, count: int) -> Tensor:
    """Divide encodings (m,) into groups: by their leading eigenvectors, then each to the most similar one in turns."""
    vectors = torch.linalg.eigh(similar.double().cpu())[1][:, -count:].numpy()
    # Rows of different groups are nearly orthogonal: pivots name one of each, and what turns them into axes all others.
    pivots = scipy.linalg.qr(vectors.T, pivoting=True, mode="r")[1][:count]
    left, _, right = np.linalg.svd(vectors.T[:, pivots])
    group = torch.from_numpy(np.abs(vectors @ (left @ right)).argmax(1)).to(similar.device)
    for _ in range(_TURNS):
        before, group = group, _mean_similarity(similar, worth, F.one_hot(group, count).to(similar)).argmax(1)
        if torch.equal(before, group):
            break
    return group


def _mean_similarity(similar: Tensor, worth: Tensor, members: Tensor) -> Tensor:
    """Return (n, count), the mean similarity to the members (m, count) of each group."""
    return (similar @ members) / (worth @ members).clamp_min(1e-9)


def classes_of(weights: Tensor, labels: Tensor) -> Tensor:
    """Return (P,), the class that the encodings of each image, by weights (N, P), hold most of."""
    return (weights.T @ labels.to(weights)).argmax(1)


def share_by_class(shares: Tensor, labels: Tensor, classes: Tensor, *, k: int) -> Tensor:
    """Keep the largest share of every class that an encoding holds, and the largest others up to k of them.

    Args:
        shares: (N, P), at least 0.
        labels: (N, K), what all images of a class together have.
        classes: (P,) of the images.
        k: images of an encoding.

    Returns:
        (N, P), whose sums over a class are those of the labels.

    Example:
        >>> shares, labels = torch.tensor([[0.1, 0.3, 0.2]]), torch.tensor([[0.25, 0.75]])
        >>> share_by_class(shares, labels, torch.tensor([0, 0, 1]), k=2)
        tensor([[0.0000, 0.2500, 0.7500]])
    """
    held = labels[:, classes] > _LITTLE
    leading = _leading(shares, classes) & held
    others = torch.where(held & ~leading, shares, 0)
    rank = others.argsort(stable=True, dim=1, descending=True).argsort(1)
    more = (rank < (k - leading.sum(1, keepdim=True))) & (others > 0)
    kept = torch.where(leading | more, shares.clamp_min(1e-9), 0)
    of_class = F.one_hot(classes, labels.shape[1]).to(kept)
    return kept * (labels.to(kept) / (kept @ of_class).clamp_min(1e-9))[:, classes]


def _leading(shares: Tensor, classes: Tensor) -> Tensor:
    """Return (N, P), whether an image has the largest share of its class."""
    order = shares.argsort(stable=True, dim=1, descending=True)
    order = order.gather(1, classes[order].argsort(stable=True, dim=1))
    sorted_classes = classes[order]
    first = torch.ones_like(sorted_classes, dtype=torch.bool)
    first[:, 1:] = sorted_classes[:, 1:] != sorted_classes[:, :-1]
    return torch.zeros_like(first).scatter(1, order, first)
