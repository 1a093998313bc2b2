"""Membership and tracing: what reconstructions tell about whose data they are, and of which class.

Both take any reconstruction. Distances are shares of mistakes, as Fan et al. (2020) report them: 0 means that the
adversary knows everything, 1 that it knows nothing; guessing leaves 1 - 1 / classes or 1 - 1 / participants.
"""

import copy
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from gradveil.errors import DataError
from gradveil.metrics._alignment import align, aligned_label_accuracy
from gradveil.metrics._base import clean

_CHUNK = 256


@dataclass(frozen=True, slots=True)
class Tracing:
    """How often queries were traced to the participant that holds them.

    The paper does not say how queries count that no reconstruction was made of; both shares are kept.

    Args:
        participants: (Q,) found for each query.
        nearest: (Q,) the reconstruction that decided.
        reconstructed: (Q,) queries that a reconstruction was made of.
        success: (Q,) whether the right participant was found.
    """

    participants: Tensor
    nearest: Tensor
    reconstructed: Tensor
    success: Tensor

    @property
    def distance(self) -> float:
        """Share of all queries traced to a wrong participant."""
        return 1 - float(self.success.double().mean())

    @property
    def distance_of_reconstructed(self) -> float:
        """Share of the reconstructed queries traced to a wrong participant; not a number if there are none."""
        return 1 - float(self.success[self.reconstructed].double().mean())


def membership_by_label(guess: Tensor, guess_labels: Tensor, truth: Tensor, labels: Tensor) -> Tensor:
    """Return the share of samples whose label was not recovered with their reconstruction.

    Args:
        guess: (V, B', C, H, W), matched to the truth by `align`: the label of an image is the one guessed with it.
        guess_labels: (V, B') classes or (V, B', K) soft labels.
        truth: (V, B, C, H, W).
        labels: (V, B) or (V, B, K).

    Returns:
        (V,) distances in [0, 1]; a sample without a guess counts as not recovered.

    Example:
        >>> images = torch.eye(2)[None, :, None, None]
        >>> swapped, right = torch.tensor([[7, 3]]), torch.tensor([[3, 7]])
        >>> membership_by_label(images.flip(1), swapped, images, right).tolist()
        [0.0]
    """
    return 1 - aligned_label_accuracy(guess_labels, labels, align(guess, truth))


@torch.no_grad()
def membership_by_classifier(guess: Tensor, truth: Tensor, labels: Tensor, *, network: nn.Module) -> Tensor:
    """Return the share of samples whose reconstruction a network puts into another class than theirs.

    Args:
        guess: (V, B', C, H, W) in [0, 1].
        truth: (V, B, C, H, W).
        labels: (V, B) or (V, B, K).
        network: classifies images in [0, 1]; it is copied, and run in eval mode.

    Returns:
        (V,) distances in [0, 1].

    Example:
        >>> images = torch.eye(2)[None, :, None, None]
        >>> membership_by_classifier(images, images, torch.tensor([[0, 0]]), network=nn.Flatten()).tolist()
        [0.5]
    """
    judge = copy.deepcopy(network).eval().to(guess.device)
    images = clean(guess).flatten(0, 1)
    classes = torch.cat([judge(part).argmax(1) for part in images.split(_CHUNK)])
    return membership_by_label(guess, classes.view(guess.shape[:2]), truth, labels)


@torch.no_grad()
def trace(guesses: Tensor, owners: Tensor, queries: Tensor, holders: Tensor, *, made_of: Tensor) -> Tracing:
    """Trace images to participants: the nearest reconstruction in squared error decides.

    Args:
        guesses: (N, C, H, W), reconstructions of all participants.
        owners: (N,), the participant whose update each was made from.
        queries: (Q, C, H, W), images whose participant is asked for.
        holders: (Q,), the participant that holds each.
        made_of: (N,), the query that each reconstruction was made of; -1 if it is none of them.

    Example:
        >>> images = torch.tensor([0.0, 0.4, 1.0]).view(3, 1, 1, 1)
        >>> guesses, owners = torch.tensor([0.1, 0.9]).view(2, 1, 1, 1), torch.tensor([0, 1])
        >>> found = trace(guesses, owners, images, torch.tensor([0, 1, 1]), made_of=torch.tensor([0, 2]))
        >>> found.participants.tolist(), round(found.distance, 3), found.distance_of_reconstructed
        ([0, 0, 1], 0.333, 0.0)
    """
    _check(guesses, owners, queries, holders, made_of)
    known = clean(guesses).flatten(1).double()
    nearest = torch.cat(
        [
            torch.cdist(clean(part).flatten(1).double(), known, compute_mode="donot_use_mm_for_euclid_dist").argmin(1)
            for part in queries.to(guesses).split(_CHUNK)
        ]
    )
    participants = owners.to(nearest.device)[nearest]
    reconstructed = torch.zeros(len(queries), dtype=torch.bool, device=nearest.device)
    reconstructed[made_of[made_of >= 0].to(nearest.device)] = True
    return Tracing(participants, nearest, reconstructed, participants == holders.to(nearest.device))


def _check(guesses: Tensor, owners: Tensor, queries: Tensor, holders: Tensor, made_of: Tensor) -> None:
    if guesses.ndim != 4 or queries.shape[1:] != guesses.shape[1:] or 0 in (len(guesses), len(queries)):
        came = f"{tuple(guesses.shape)} and {tuple(queries.shape)}"
        raise DataError(f"trace compares queries with reconstructions (N, C, H, W) of the same images, got {came}")
    if len(owners) != len(guesses) or len(made_of) != len(guesses) or len(holders) != len(queries):
        came = f"{len(owners)} owners, {len(made_of)} sources and {len(holders)} holders"
        raise DataError(f"{len(guesses)} reconstructions and {len(queries)} queries do not go with {came}")
    if int(made_of.max()) >= len(queries):
        raise DataError(f"made_of names query {int(made_of.max())}, but there are {len(queries)}; number them from 0")
