"""Images read off the rows of a linear layer: which rows show one sample, and how they become a guess."""

import torch
from torch import Tensor

from gradveil.engine import find_normalization
from gradveil.types import Observation, Reconstruction

_SAME = 0.01  # root mean square difference of two readings of one sample, in standardized pixels


def alone_in_a_row(observation: Observation, weight: Tensor, bias: Tensor) -> Tensor:
    """Read the samples that were alone in activating some row of a layer that eats the image.

    Args:
        observation: of the network.
        weight: (V, m, d) gradient.
        bias: (V, m) gradient.

    Returns:
        (V, B, C, H, W) pixels: the readings that agree most among those that could be an image, NaN for none left.
    """
    readings = rows_as_inputs(weight, bias)
    shown = pixels(observation, readings).flatten(2)
    possible = ((shown > -0.01) & (shown < 1.01)).all(2)
    trust = possible * (bias.abs() / bias.abs().amax(1, keepdim=True)).clamp(min=1e-6)
    return pixels(observation, take(readings, distinct(readings, trust, observation.input_shape[0], tolerance=_SAME)))


def rows_as_inputs(weight: Tensor, bias: Tensor) -> Tensor:
    """Divide (V, n, d) weight gradients by (V, n) bias gradients; NaN where a bias gradient is 0."""
    return weight / torch.where(bias == 0, torch.nan, bias)[:, :, None]


def largest(scores: Tensor, count: int, *, tolerance: float) -> Tensor:
    """Return (V, count) indices of the largest scores, -1 for those below a share of the victim's largest.

    Example:
        >>> largest(torch.tensor([[0.0, 3.0, 1.0]]), 4, tolerance=1e-3)
        tensor([[ 1,  2, -1, -1]])
    """
    scores = torch.nan_to_num(scores)
    top = scores.topk(min(count, scores.shape[1]), dim=1)
    strong = (top.values > tolerance * scores.amax(1, keepdim=True)) & (top.values > 0)
    chosen = torch.where(strong, top.indices, -1)
    return torch.nn.functional.pad(chosen, (0, count - chosen.shape[1]), value=-1)


def distinct(candidates: Tensor, trust: Tensor, count: int, *, tolerance: float) -> Tensor:
    """Return (V, count) indices of candidates that differ from each other, best supported first, -1 for none left.

    A sample that is alone in several rows appears again and again, a mixture hardly twice: what counts is how many
    candidates agree, then the trust in them.

    Args:
        candidates: (V, n, d).
        trust: (V, n) in [0, 1]; those with trust 0 are no candidates.
        count: how many to return.
        tolerance: root mean square difference up to which two candidates are the same.
    """
    usable = (trust > 0) & torch.isfinite(candidates).all(2)
    clean = torch.where(usable[:, :, None], candidates, 0)
    same = torch.cdist(clean, clean) <= tolerance * clean.shape[2] ** 0.5
    same = same & usable[:, :, None] & usable[:, None, :]
    votes = torch.where(usable, same.sum(2) + trust.clamp(max=1) / 2, 0)
    chosen = []
    for _ in range(count):
        best = votes.argmax(1, keepdim=True)
        chosen.append(torch.where(votes.gather(1, best) > 0, best, -1))
        taken = same.gather(1, best[:, :, None].expand(-1, -1, same.shape[2])).squeeze(1)
        votes = torch.where(taken, 0, votes).scatter(1, best, 0)
    return torch.cat(chosen, 1)


def take(candidates: Tensor, chosen: Tensor) -> Tensor:
    """Return (V, count, d), the chosen candidates, NaN where the index is -1."""
    index = chosen.clamp(min=0)[:, :, None].expand(-1, -1, candidates.shape[2])
    return torch.where(chosen[:, :, None] >= 0, candidates.gather(1, index), torch.nan)


def pixels(observation: Observation, standardized: Tensor) -> Tensor:
    """Turn (V, n, d) flattened standardized images into (V, n, C, H, W) pixels of any range."""
    images = standardized.to(observation.dtype).unflatten(2, observation.input_shape[1:])
    return find_normalization(observation.model).pixels(images)


def reconstruction(
    observation: Observation,
    images: Tensor,
    *,
    objective: Tensor,
    labels: Tensor | None = None,
    steps: Tensor | None = None,
) -> Reconstruction:
    """Make a guess of (V, B, C, H, W) pixels; what is not finite becomes grey."""
    finite = torch.stack([torch.isfinite(tensor.flatten(1)).all(1) for tensor in observation.update]).all(0)
    return Reconstruction(
        inputs=torch.nan_to_num(images, nan=0.5, posinf=1.0, neginf=0.0).clamp(0, 1),
        labels=labels,
        objective=torch.where(finite, objective.to(observation.dtype), torch.inf),
        diverged=~finite,
        steps=torch.ones_like(finite, dtype=torch.long) if steps is None else steps,
        trace=objective.new_empty((len(objective), 0)).to(observation.dtype),
    )
