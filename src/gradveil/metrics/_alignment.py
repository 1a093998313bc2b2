"""Match what an attack returned to the private batch: order inside a batch, and labels."""

import numpy as np
import torch
import torch.nn.functional as F
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from gradveil.errors import DataError
from gradveil.metrics._base import clean


@torch.no_grad()
def align(guess: Tensor, truth: Tensor) -> Tensor:
    """Find for each true sample the guess that belongs to it, by the assignment of least total squared error.

    Args:
        guess: (V, B', C, H, W); more or fewer samples than the truth are allowed.
        truth: (V, B, C, H, W).

    Returns:
        (V, B) index of the guess for each true sample, -1 where there were too few guesses.

    Example:
        >>> truth = torch.rand(1, 3, 1, 4, 4, generator=torch.Generator().manual_seed(0))
        >>> align(truth[:, [2, 0, 1]], truth).tolist()
        [[1, 2, 0]]
    """
    if guess.ndim != 5 or truth.ndim != 5 or guess.shape[0] != truth.shape[0] or guess.shape[2:] != truth.shape[2:]:
        came = f"{tuple(guess.shape)} and {tuple(truth.shape)}"
        raise DataError(f"align matches (V, B', C, H, W) to (V, B, C, H, W), got {came}; give both the same images")

    indices = torch.full(truth.shape[:2], -1, dtype=torch.long)
    for victim, cost in enumerate(_squared_errors(guess, truth)):
        rows, columns = linear_sum_assignment(cost)
        indices[victim, torch.from_numpy(rows)] = torch.from_numpy(columns)
    return indices.to(truth.device)


def arrange(guess: Tensor, indices: Tensor) -> Tensor:
    """Put guesses in the order of the truth.

    Args:
        guess: (V, B', C, H, W).
        indices: (V, B) from `align`.

    Returns:
        (V, B, C, H, W); a sample without a guess is grey (0.5).

    Example:
        >>> arrange(torch.zeros(1, 1, 1, 1, 1), torch.tensor([[0, -1]])).flatten().tolist()
        [0.0, 0.5]
    """
    victims = torch.arange(len(guess), device=guess.device)[:, None]
    missing = (indices < 0)[..., None, None, None]
    return guess[victims, indices.clamp(min=0)].masked_fill(missing, 0.5)


def label_accuracy(guess_labels: Tensor, true_labels: Tensor) -> Tensor:
    """Return the share of labels that were found, whatever their order: labels are matched as multisets.

    Args:
        guess_labels: (V, B') classes, below 0 where none is guessed, or (V, B', K) soft labels, whose largest counts.
        true_labels: (V, B) or (V, B, K).

    Returns:
        (V,) in [0, 1]; the share is of the larger of the two numbers of labels, so that naming many does not pay.

    Example:
        >>> label_accuracy(torch.tensor([[1, 1, 7]]), torch.tensor([[7, 2, 1]])).tolist()
        [0.6666666865348816]
    """
    guessed, true = as_classes(guess_labels), as_classes(true_labels)
    if guessed.ndim != 2 or len(guessed) != len(true):
        came = f"{tuple(guess_labels.shape)} and {tuple(true_labels.shape)}"
        raise DataError(f"labels are (V, B) or (V, B, K) for the same victims, got {came}")
    classes = int(max(guessed.max(), true.max())) + 1
    found = torch.minimum(_counts(guessed, classes), _counts(true, classes)).sum(1)
    return found / max(guessed.shape[1], true.shape[1])


def aligned_label_accuracy(guess_labels: Tensor, true_labels: Tensor, indices: Tensor) -> Tensor:
    """Return the share of samples whose own guess has the right label, after `align` of the images.

    Args:
        guess_labels: (V, B') or (V, B', K).
        true_labels: (V, B) or (V, B, K).
        indices: (V, B) from `align`; a sample without a guess counts as wrong.

    Returns:
        (V,) in [0, 1].

    Example:
        >>> aligned_label_accuracy(torch.tensor([[3, 5]]), torch.tensor([[5, 3]]), torch.tensor([[1, 0]])).tolist()
        [1.0]
    """
    guessed = as_classes(guess_labels).gather(1, indices.clamp(min=0))
    return ((guessed == as_classes(true_labels)) & (indices >= 0)).float().mean(1)


def as_classes(labels: Tensor) -> Tensor:
    """Turn soft labels (V, B, K) into classes (V, B); classes stay as they are.

    Example:
        >>> as_classes(torch.tensor([[[0.1, 0.9], [0.7, 0.3]]])).tolist()
        [[1, 0]]
    """
    return labels.argmax(-1) if labels.ndim == 3 else labels.long()


def _squared_errors(guess: Tensor, truth: Tensor) -> np.ndarray[tuple[int, int, int], np.dtype[np.float64]]:
    """Return (V, B, B') costs, free of the cancellation that a matrix product would bring."""
    left, right = (clean(images.double()).flatten(2) for images in (truth, guess))
    distances: Tensor = torch.cdist(left, right, compute_mode="donot_use_mm_for_euclid_dist")
    return distances.square().cpu().numpy()


def _counts(labels: Tensor, classes: int) -> Tensor:
    """Count each class, (V, classes); labels below 0 are not counted."""
    return F.one_hot(labels.clamp(min=-1) + 1, classes + 1)[..., 1:].sum(1)
