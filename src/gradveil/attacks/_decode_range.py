"""Images beyond [0, 1], such as those with flipped signs, in coordinates in which every attack can look for them."""

import copy
from dataclasses import replace

import torch
from torch import Tensor

from gradveil.engine import Standardize, find_normalization, normalized
from gradveil.types import Observation


def stretched(observation: Observation, low: Tensor, high: Tensor) -> Observation:
    """Let the network eat u for the pixel low + (high - low) · u, so that images in a wider range lie in [0, 1].

    Standardized pixels, in which attacks have their step sizes and priors, stay what they were.

    Args:
        observation: of a network of any normalization, which is left alone.
        low: (C,) least pixel of each channel.
        high: (C,) largest one.
    """
    own, span = find_normalization(observation.model), (high - low).double().cpu()
    zeros = torch.zeros_like(span)
    mean = torch.tensor(own.mean, dtype=span.dtype) if own.mean else zeros
    std = torch.tensor(own.std, dtype=span.dtype) if own.std else zeros + 1
    plain = copy.deepcopy(observation.model)
    hooks = plain._forward_pre_hooks
    for key in [key for key, hook in hooks.items() if isinstance(hook, Standardize)]:
        del hooks[key]
    moved = (mean - low.double().cpu()) / span
    return replace(observation, model=normalized(plain, moved.tolist(), (std / span).tolist()))


def in_own_range(images: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Map what an attack found in [0, 1], (..., C, H, W), back to pixels between `low` and `high`.

    Example:
        >>> in_own_range(torch.tensor([[[0.5]]]), torch.tensor([-1.0]), torch.tensor([2.0])).item()
        0.5
    """
    least, most = (bound.to(images)[:, None, None] for bound in (low, high))
    return least + (most - least) * images
