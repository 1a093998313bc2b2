"""Several starts per victim, run as further victims of the stack."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from types import MappingProxyType
from typing import Final, Literal, TypeAlias

import torch
from torch import Tensor

from gradveil.attacks._stacks import groups
from gradveil.engine.registration import register
from gradveil.types import Reconstruction

Choice: TypeAlias = Literal[
    "objective", "loss", "tv", "pixel-mean", "pixel-median", "registered-mean", "registered-median"
]
Average: TypeAlias = Callable[[Tensor], Tensor]
"""(V, restarts, ...) with NaN for restarts that found nothing, to (V, ...)."""

_MAX_SHIFT = 0.25  # of the side, between two restarts of one image


def choose(
    guess: Reconstruction, rules: Sequence[tuple[int, Sequence[Choice]]], *, scores: Mapping[str, Callable[[], Tensor]]
) -> Reconstruction:
    """Make a guess of each victim's restarts, or one by each of several rules.

    Args:
        guess: of all restarts of all victims, one victim after the other.
        rules: each victim's number of restarts, and the rules by which they become guesses.
        scores: what makes the (rows,) scores of the rules `loss` and `tv`; computed only where one is needed.

    Returns:
        One guess per victim and rule: the first victim's, by rule, then the second's, ...
    """
    ends = itertools.accumulate(restarts for restarts, _ in rules)
    wanted = [(end, count, choice) for end, (count, choices) in zip(ends, rules, strict=True) for choice in choices]
    known = {name: make().detach() for name, make in scores.items() if any(n > 1 and c == name for _, n, c in wanted)}
    parts, order = [], []
    for (restarts, choice), places in groups([(count, choice) for _, count, choice in wanted]).items():
        rows = [row for place in places for row in range(wanted[place][0] - restarts, wanted[place][0])]
        some = guess if rows == list(range(len(guess.objective))) else take(guess, rows)
        score = known.get(choice)
        parts.append(_one_of(some, restarts, choice, score=None if score is None else score[rows]))
        order += places
    if len(parts) == 1:
        return parts[0]
    return take(Reconstruction.join(parts), torch.tensor(order).argsort().to(guess.objective.device))


def _one_of(guess: Reconstruction, restarts: int, choice: Choice, *, score: Tensor | None) -> Reconstruction:
    if choice in _AVERAGES:
        join, average = _AVERAGES[choice]
        return join(guess, restarts, average)
    return keep_best(guess, restarts, score=score)


def take(guess: Reconstruction, rows: Tensor | Sequence[int]) -> Reconstruction:
    """Keep some rows of the stack, in the order they are named."""
    index = rows if isinstance(rows, Tensor) else torch.tensor(list(rows), device=guess.objective.device)
    kept = {f.name: getattr(guess, f.name) for f in fields(guess)}
    tensors = {name: value[index] for name, value in kept.items() if isinstance(value, Tensor)}
    details = {name: value[index] for name, value in guess.details.items()}
    return replace(guess, details=details, **tensors)  # type: ignore[arg-type]


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
    return take(guess, finite.argmin(1) + torch.arange(len(finite), device=finite.device) * restarts)


def join_pixels(guess: Reconstruction, restarts: int, average: Average) -> Reconstruction:
    """Average the images of each victim's restarts; the rest is that of its best.

    It needs images in one order: a batch of one, or labels that are known and distinct.

    Args:
        guess: of all restarts.
        restarts: of each victim.
        average: of the images.
    """
    best = keep_best(guess, restarts)
    return _joined(best, _found(guess, restarts), average) if restarts > 1 else best


def join_registered(guess: Reconstruction, restarts: int, average: Average) -> Reconstruction:
    """Bring each victim's restarts to where they agree, by shifts and mirroring, then average them.

    They are registered to the best restart first, and once more to the average of that: a network that hardly fixes
    where things are gives every restart a place of its own, and only images in one place can be averaged.
    """
    best = keep_best(guess, restarts)
    if restarts == 1:
        return best
    images = _found(guess, restarts)
    for _ in range(2):
        images = _registered(images, best.inputs)
        best = _joined(best, images, average)
    return best


def pixel_mean(images: Tensor) -> Tensor:
    """Average over the second axis, skipping NaN."""
    return images.nanmean(1)


def pixel_median(images: Tensor) -> Tensor:
    """Take the median over the second axis, skipping NaN; the lower one of an even number."""
    ordered = images.sort(1).values  # NaN last; torch.median does not repeat its bits on a GPU
    middle = (torch.isfinite(images).sum(1, keepdim=True) - 1).clamp(min=0) // 2
    return ordered.gather(1, middle).squeeze(1)


def _found(guess: Reconstruction, restarts: int) -> Tensor:
    """Return (V, restarts, B, C, H, W), NaN where a restart found nothing."""
    found = torch.isfinite(guess.objective).view(-1, restarts, *[1] * (guess.inputs.ndim - 1))
    return torch.where(found, guess.inputs.unflatten(0, (-1, restarts)), torch.nan)


def _joined(best: Reconstruction, images: Tensor, average: Average) -> Reconstruction:
    joined = average(images)
    return replace(best, inputs=torch.where(torch.isnan(joined), best.inputs, joined))


def _registered(images: Tensor, anchors: Tensor) -> Tensor:
    """Register (V, restarts, B, C, H, W) to anchors (V, B, C, H, W), image by image."""
    each = anchors[:, None].expand_as(images).flatten(0, 2)
    moved = register(images.nan_to_num(0).flatten(0, 2), each, max_shift=_MAX_SHIFT).view_as(images)
    return torch.where(torch.isnan(images), torch.nan, moved)


_AVERAGES: Final[Mapping[str, tuple[Callable[[Reconstruction, int, Average], Reconstruction], Average]]] = (
    MappingProxyType(
        {
            "pixel-mean": (join_pixels, pixel_mean),
            "pixel-median": (join_pixels, pixel_median),
            "registered-mean": (join_registered, pixel_mean),
            "registered-median": (join_registered, pixel_median),
        }
    )
)
