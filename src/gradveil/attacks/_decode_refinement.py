"""Who is in which mixture, judged again from the images found so far."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from gradveil.attacks._decode_clusters import assign
from gradveil.attacks._decode_regression import solve_magnitudes, solve_mixtures
from gradveil.engine import Runtime
from gradveil.engine.runtime import Checkpoint, exact_products

_PATIENCE = 15  # turns without a better fit after which nothing more is to be expected
_BETTER = 0.99  # of the misfit so far is a better fit


def refine(weights: Tensor, seen: Tensor, *, k: int, flipped: bool, rounds: int, runtime: Runtime) -> Tensor:
    """Solve for images, fit every mixture by them, assign again, in turns: a dictionary that learns its own entries.

    An image that no cluster stood for grows slowly out of what the others leave over, so that many turns pay. The best
    fit is kept, and without a better one for a while no more turns are taken.

    Args:
        weights: (N, P), how much of each image is taken to be in each encoding; rows keep their sums.
        seen: (N, D) encodings around the mean.
        k: images of an encoding.
        flipped: whether only magnitudes of the encodings count.
        rounds: turns at most.
        runtime: of the regression; progress and checkpoints.

    Returns:
        (N, P).

    Example:
        >>> weights = torch.tensor([[0.5, 0.5, 0.0], [0.0, 0.5, 0.5], [0.5, 0.0, 0.5]])
        >>> seen = weights @ torch.eye(3)
        >>> torch.allclose(refine(weights, seen, k=2, flipped=False, rounds=3, runtime=Runtime()), weights, atol=1e-3)
        True
    """
    totals = weights.sum(1, keepdim=True)
    so_far, checkpoint = _SoFar(weights, weights), Checkpoint(runtime)
    so_far.restore(checkpoint.load())
    for turn in range(so_far.turns, rounds + 1):
        with exact_products():
            signed, images = _signed(so_far.weights, seen, flipped=flipped, runtime=runtime)
            so_far.judge(float((so_far.weights @ images - signed).square().mean()))
        if turn == rounds or so_far.waited == _PATIENCE:
            break
        with exact_products():
            shares = fit_shares(images, signed)
        kept = shares * assign(shares, k=k)
        so_far.weights = totals * kept / kept.sum(1, keepdim=True).clamp_min(1e-6)
        so_far.turns = turn + 1
        runtime.progress(runtime.name, so_far.turns, rounds)
        checkpoint.save(so_far.tensors)
    return so_far.best


@dataclass(slots=True)
class _SoFar:
    """Weights (N, P) after some turns, and the best ones of them."""

    weights: Tensor
    best: Tensor
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
        return {"weights": self.weights, "best": self.best, "numbers": numbers}

    def restore(self, saved: dict[str, Tensor]) -> None:
        """Go on from a saved state, if there is one."""
        if saved:
            self.weights, self.best = saved["weights"].to(self.weights), saved["best"].to(self.best)
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


def _signed(weights: Tensor, seen: Tensor, *, flipped: bool, runtime: Runtime) -> tuple[Tensor, Tensor]:
    """Return the mixtures (N, D) with the signs that the current images give them, and those images (P, D).

    Without flipped signs, the mean public image that is part of them is taken out.
    """
    if not flipped:
        images, own = solve_mixtures(weights[None], seen[None])
        return own[0], images[0]
    size = seen.abs()
    images = solve_magnitudes(weights[None], size[None], solver="lifted", steps=100, lr=0.01, runtime=runtime)[0]
    return torch.where(weights @ images >= 0, size, -size), images
