"""What a guess scores that knows nothing of the private image: the lines every result is read against.

Every null is a guess, scored by the same metrics as the attack's. Two kinds are told apart: the constants `grey`,
`own-mean` and `mean-image` are what little effort gives, and beating them is the least to ask; `other-of-class` and
`random-gradient` (the attack, run on a random gradient of the same norm; the caller adds it) vary, and say what chance
gives. In a batch of several images, guesses that vary are matched to the truth like the attack's own (`align`), because
picking the best of many guesses helps those that know nothing, too.
"""

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gradveil.errors import DataError
from gradveil.metrics._alignment import align, arrange, as_classes
from gradveil.streams import Streams


def null_guesses(
    truth: Tensor, labels: Tensor, *, reference_inputs: Tensor, reference_labels: Tensor, streams: Streams
) -> dict[str, Tensor]:
    """Make the null guesses that need no attack.

    Args:
        truth: (V, B, C, H, W) in [0, 1].
        labels: (V, B) classes or (V, B, K) soft labels.
        reference_inputs: (N, C, H, W) images of the same data set.
        reference_labels: (N,) their classes.
        streams: draw the other image; bound here if they are not yet.

    Returns:
        (V, B, C, H, W) for `grey` (0.5 everywhere), `own-mean` (the mean colour of the image itself, which no
        adversary is given), `mean-image` (of the data set) and `other-of-class` (see `other_of_class`).

    Example:
        >>> truth, reference = torch.rand(2, 1, 1, 4, 4), torch.rand(9, 1, 4, 4)
        >>> classes = torch.arange(9) % 3
        >>> guesses = null_guesses(truth, torch.zeros(2, 1), reference_inputs=reference, reference_labels=classes,
        ...                        streams=Streams(seed=0, purpose="null"))
        >>> {name: tuple(guess.shape) for name, guess in guesses.items()}["mean-image"]
        (2, 1, 1, 4, 4)
    """
    other = other_of_class(
        truth, labels, reference_inputs=reference_inputs, reference_labels=reference_labels, streams=streams
    )
    return {
        "grey": torch.full_like(truth, 0.5),
        "own-mean": truth.mean((-2, -1), keepdim=True).expand_as(truth),
        "mean-image": reference_inputs.to(truth).mean(0).expand_as(truth),
        "other-of-class": other,
    }


def other_of_class(
    truth: Tensor, labels: Tensor, *, reference_inputs: Tensor, reference_labels: Tensor, streams: Streams
) -> Tensor:
    """Draw for each sample another image of its class, or any other image where its class has none.

    Images of the victim's own batch are passed over. Draws cost nothing beside an attack, and about a hundred per
    sample let `judge` see how far chance reaches instead of estimating it: repeat with `streams.fork("null-1")`, ....

    Returns:
        (V, B, C, H, W), matched to the truth by `align`; the same for a victim whoever else is in the stack.

    Example:
        >>> images = torch.tensor([0.1, 0.2, 0.3]).reshape(3, 1, 1, 1)
        >>> other_of_class(images[None, :1], torch.tensor([[0]]), reference_inputs=images,
        ...     reference_labels=torch.tensor([0, 1, 0]), streams=Streams(purpose="null")).item() == images[2].item()
        True
    """
    if reference_inputs.shape[1:] != truth.shape[2:] or len(reference_inputs) != len(reference_labels):
        came = f"{tuple(reference_inputs.shape)} and {tuple(reference_labels.shape)} for {tuple(truth.shape)}"
        raise DataError(f"references are (N, C, H, W) images and (N,) classes of the victims' data set, got {came}")

    reference, bound = reference_inputs.to(truth), streams.bind(len(truth))
    classes, reference_classes = as_classes(labels).cpu().numpy(), reference_labels.cpu().numpy()
    drawn = torch.empty_like(truth)
    for sample in range(truth.shape[1]):
        orders = bound.permutation(f"other-of-class-{sample}", len(reference)).numpy()
        same = reference_classes[orders] == classes[:, sample, None]
        drawn[:, sample] = _first_others(truth, reference, orders, same)
    return arrange(drawn, align(drawn, truth))


def _first_others(
    truth: Tensor, reference: Tensor, orders: npt.NDArray[np.int64], same: npt.NDArray[np.bool_]
) -> Tensor:
    """Return (V, C, H, W), for each victim the first in its order (V, N) that its batch does not hold; `same` first."""
    ranks = 1 + same.astype(np.int8)
    found, left = np.zeros(len(truth), dtype=np.int64), np.arange(len(truth))
    while len(left):
        places = ranks[left].argmax(1)
        if not ranks[left, places].all():
            raise DataError("every reference image is in the private batch; give references with other images")
        found[left] = orders[left, places]
        held = _holds(truth[left], reference[found[left]])
        ranks[left[held], places[held]] = 0
        left = left[held]
    return reference[found]


def _holds(batches: Tensor, images: Tensor) -> npt.NDArray[np.bool_]:
    """Tell which batches (V, B, C, H, W) hold their image of (V, C, H, W)."""
    held: npt.NDArray[np.bool_] = (batches == images[:, None]).flatten(2).all(2).any(1).cpu().numpy()
    return held
