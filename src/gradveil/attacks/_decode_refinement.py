"""Who is in which mixture, judged again from the images found so far."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from gradveil.attacks._decode_classes import classes_of, share_by_class
from gradveil.attacks._decode_clusters import assign
from gradveil.attacks._decode_magnitudes import Magnitudes
from gradveil.attacks._decode_regression import solve_mixtures
from gradveil.engine import Runtime
from gradveil.engine.runtime import Checkpoint, exact_products
from gradveil.streams import Streams

_PATIENCE = 15  # turns without a better fit after which nothing more is to be expected
_BETTER = 0.99  # of the misfit so far is a better fit
_STEPS, _SWEEPS = 100, 2  # of the regression on magnitudes, from the images of the turn before


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixtures:
    """What an adversary sees of the encodings of one group.

    Args:
        seen: (N, C, H, W) around the mean.
        k: private images of an encoding.
        flipped: whether only magnitudes of the encodings count.
        labels: (N, K), how much of each class is in them; None where that is unknown or tells images not apart.
    """

    seen: Tensor
    k: int
    flipped: bool
    labels: Tensor | None = None


def refine(weights: Tensor, mixtures: Mixtures, *, rounds: int, streams: Streams, runtime: Runtime) -> Tensor:
    """Solve for images, fit every mixture by them, assign again, in turns: a dictionary that learns its own entries.

    An image that no cluster stood for grows slowly out of what the others leave over, so that many turns pay. The best
    fit is kept, and without a better one for a while no more turns are taken.

    Args:
        weights: (N, P), how much of each image is taken to be in each encoding; rows keep their sums, and where labels
            are known those of every class.
        mixtures: what is seen.
        rounds: turns at most.
        streams: of the group.
        runtime: progress and checkpoints.

    Returns:
        (N, P).

    Example:
        >>> weights = torch.tensor([[0.5, 0.5, 0.0], [0.0, 0.5, 0.5], [0.5, 0.0, 0.5]])
        >>> mixtures = Mixtures(seen=(weights @ torch.eye(3))[:, None, None], k=2, flipped=False)
        >>> streams = Streams(seed=0, purpose="attack").bind(1)
        >>> found = refine(weights, mixtures, rounds=3, streams=streams, runtime=Runtime())
        >>> torch.allclose(found, weights, atol=1e-3)
        True
    """
    so_far, checkpoint = _SoFar(weights, weights), Checkpoint(runtime)
    so_far.restore(checkpoint.load())
    share = _sharing(weights, mixtures)
    for turn in range(so_far.turns, rounds + 1):
        with exact_products():
            signed, so_far.images = _signed(so_far, mixtures, streams)
            so_far.judge(float((so_far.weights @ so_far.images - signed).square().mean()))
        if turn == rounds or so_far.waited == _PATIENCE:
            break
        with exact_products():
            so_far.weights = share(fit_shares(so_far.images, signed))
        so_far.turns = turn + 1
        runtime.progress(runtime.name, so_far.turns, rounds)
        checkpoint.save(so_far.tensors)
    return so_far.best


def _sharing(weights: Tensor, mixtures: Mixtures) -> Callable[[Tensor], Tensor]:
    """Return how the shares (N, P) that fit best become k of every encoding, with the sums of the first weights."""
    labels, k = mixtures.labels, mixtures.k
    if labels is not None:
        return partial(share_by_class, labels=labels, classes=classes_of(weights, labels), k=k)
    totals = weights.sum(1, keepdim=True)

    def share(fitting: Tensor) -> Tensor:
        kept = fitting * assign(fitting, k=k)
        return totals * kept / kept.sum(1, keepdim=True).clamp_min(1e-6)

    return share


@dataclass(slots=True)
class _SoFar:
    """Weights (N, P) after some turns, the best ones of them, and the images (P, D) of the last turn, if any."""

    weights: Tensor
    best: Tensor
    images: Tensor | None = None
    least: float = math.inf
    waited: int = 0
    turns: int = 0

    def judge(self, misfit: float) -> None:
        """Note how well the present weights fit."""
        self.waited = 0 if misfit < _BETTER * self.least else self.waited + 1
        if misfit < self.least:
            self.best, self.least = self.weights, misfit

    def tensors(self) -> dict[str, Tensor]:
        """Return everything that the next turn starts from."""
        numbers = torch.tensor([self.least, self.waited, self.turns], dtype=torch.float64)
        images = {} if self.images is None else {"images": self.images}
        return {"weights": self.weights, "best": self.best, "numbers": numbers, **images}

    def restore(self, saved: dict[str, Tensor]) -> None:
        """Go on from a saved state, if there is one."""
        if saved:
            self.weights, self.best, self.images = (
                saved[name].to(self.weights) for name in ("weights", "best", "images")
            )
            self.least, self.waited, self.turns = float(saved["numbers"][0]), *saved["numbers"][1:].int().tolist()


def fit_shares(images: Tensor, mixtures: Tensor, *, steps: int = 300) -> Tensor:
    """Return (N, P), the shares of at least 0 of images (P, D) that fit mixtures (N, D) best.

    Example:
        >>> images, shares = torch.eye(3)[:2], torch.tensor([[0.25, 0.75], [1.0, 0.0]])
        >>> torch.allclose(fit_shares(images, shares @ images), shares, atol=1e-4)
        True
    """
    gram, pulled = images @ images.T, mixtures @ images.T
    steepest = torch.linalg.eigvalsh(gram)[-1].clamp_min(1e-12)
    shares = ahead = torch.zeros_like(pulled)
    momentum = 1.0
    for _ in range(steps):
        moved = (ahead - (ahead @ gram - pulled) / steepest).clamp_min(0)
        following = (1 + (1 + 4 * momentum**2) ** 0.5) / 2
        ahead = moved + (momentum - 1) / following * (moved - shares)
        shares, momentum = moved, following
    return shares


def _signed(so_far: _SoFar, mixtures: Mixtures, streams: Streams) -> tuple[Tensor, Tensor]:
    """Return the mixtures (N, D) with the signs that the current images give them, and those images (P, D).

    Without flipped signs, the mean public image that is part of them is taken out.
    """
    weights, seen = so_far.weights, mixtures.seen.flatten(1)
    if not mixtures.flipped:
        images, own = solve_mixtures(weights[None], seen[None])
        return own[0], images[0]
    problem = Magnitudes.of(weights[None], mixtures.seen[None])
    if so_far.images is None:
        images = problem.solve(streams=streams, steps=_STEPS)[0]
    else:
        images = problem.improve(so_far.images[None], sweeps=_SWEEPS, steps=_STEPS)[0]
    return torch.where(weights @ images >= 0, seen.abs(), -seen.abs()), images
