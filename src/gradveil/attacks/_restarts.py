"""Several starts per victim, run as further victims of the stack."""

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from gradveil.types import Reconstruction

Choice: TypeAlias = Literal["objective", "loss", "tv", "pixel-mean", "pixel-median"]


def keep_best(guess: Reconstruction, restarts: int, *, score: Tensor | None = None) -> Reconstruction:
    """Keep each victim's restart of the smallest score; (V * restarts, ...) to (V, ...).

    Args:
        guess: of all restarts.
        restarts: of each victim.
        score: (V * restarts,), by default the objective.
    """
    if restarts == 1:
        return guess
    scores = guess.objective if score is None else score
    # A restart without a finite objective has found nothing, whatever its score.
    scores = torch.where(torch.isfinite(guess.objective), scores, torch.inf)
    finite = torch.nan_to_num(scores, nan=torch.inf).view(-1, restarts)
    rows = finite.argmin(1) + torch.arange(len(finite), device=finite.device) * restarts
    kept = {f.name: getattr(guess, f.name) for f in fields(guess)}
    return replace(guess, **{name: value[rows] for name, value in kept.items() if isinstance(value, Tensor)})  # type: ignore[arg-type]


def join_pixels(guess: Reconstruction, restarts: int, average: Callable[[Tensor], Tensor]) -> Reconstruction:
    """Average the images of each victim's restarts; the rest is that of its best.

    It needs images in one order: a batch of one, or labels that are known and distinct.

    Args:
        guess: of all restarts.
        restarts: of each victim.
        average: (V, restarts, ...) with NaN for restarts that found nothing, to (V, ...).
    """
    best = keep_best(guess, restarts)
    if restarts == 1:
        return best
    found = torch.isfinite(guess.objective).view(-1, restarts, *[1] * (guess.inputs.ndim - 1))
    images = guess.inputs.unflatten(0, (-1, restarts))
    joined = average(torch.where(found, images, torch.nan))
    return replace(best, inputs=torch.where(torch.isnan(joined), best.inputs, joined))


def pixel_mean(images: Tensor) -> Tensor:
    """Average over the second axis, skipping NaN."""
    return images.nanmean(1)


def pixel_median(images: Tensor) -> Tensor:
    """Take the median over the second axis, skipping NaN; the lower one of an even number."""
    ordered = images.sort(1).values  # NaN last; torch.median does not repeat its bits on a GPU
    middle = (torch.isfinite(images).sum(1, keepdim=True) - 1).clamp(min=0) // 2
    return ordered.gather(1, middle).squeeze(1)
