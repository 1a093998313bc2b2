"""Eq. 8 to 10: how differently a random network reacts to different images, which tells whether it can learn them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor, nn

from gradveil.engine import Runtime, find_normalization, in_chunks
from gradveil.errors import DataError
from gradveil.policies._material import Material
from gradveil.policies._privacy import Variant
from gradveil.transforms import Hybrid

_EPSILON = 1e-5  # of Eq. 10


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AccuracyScorer:
    """Scores policies on the same rounds of images, many of them in one stack.

    Args:
        model: randomly initialized, in eval mode; eats images in [0, 1].
        material: the images of all rounds.
        rounds: which images (n,) belong to each round.
        variant: `paper` or `reference`, see `accuracy_score`.
        runtime: precision and chunk; a chunk counts images.
    """

    model: nn.Module
    material: Material
    rounds: tuple[Tensor, ...]
    variant: Variant
    runtime: Runtime

    @classmethod
    def of(cls, model: nn.Module, material: Material, *, rounds: int, variant: Variant, runtime: Runtime) -> Self:
        """Cut the images into rounds of equal size."""
        labels = material.labels
        if len(labels.unique()) < 2:
            raise DataError("the accuracy score compares images of different classes, but all have one; add classes")
        size = len(labels) // rounds
        if size < 2:
            raise DataError(f"{rounds} rounds need at least {2 * rounds} images, got {len(labels)}; take fewer rounds")
        cut = torch.arange(rounds * size, device=labels.device).split(size)
        chosen = tuple(_first_of_class(rows, labels) for rows in cut) if variant == "reference" else tuple(cut)
        return cls(model=model, material=material, rounds=chosen, variant=variant, runtime=runtime)

    def __call__(self, policies: Sequence[Hybrid]) -> Tensor:
        """Return (P, R), one score per round."""
        jacobians = self._jacobians(self.material.seen(policies))
        scores = [_spread(jacobians[:, rows]) for rows in self.rounds]
        if self.variant == "reference":
            return torch.stack([score.sum(1) for score in scores], 1)
        return torch.stack([score.mean(1) for score in scores], 1)

    def _jacobians(self, seen: Tensor) -> Tensor:
        """Return (P, N, D), the gradient of the sum of all outputs by what enters the network, standardized pixels."""
        images = seen.flatten(0, 1)
        std = find_normalization(self.model).std
        scale = images.new_tensor(std or (1.0,)).view(-1, 1, 1)

        def run(some: slice, _runtime: Runtime) -> Tensor:
            inputs = images[some].detach().requires_grad_()
            with torch.enable_grad():
                (gradient,) = torch.autograd.grad(self.model(inputs).sum(), inputs)
            return (gradient * scale).flatten(1)

        with self.runtime.numerics():
            parts, _ = in_chunks(run, len(images), device=images.device, runtime=self.runtime)
        return torch.cat(parts).view(*seen.shape[:2], -1)


def _first_of_class(rows: Tensor, labels: Tensor) -> Tensor:
    """Keep the first image of each class, as the published program does."""
    first: dict[int, int] = {}
    for row, label in zip(rows.tolist(), labels[rows].tolist(), strict=True):
        first.setdefault(label, row)
    return torch.tensor(list(first.values()), device=rows.device)


def _spread(jacobian: Tensor) -> Tensor:
    """Return (P, n), the terms of Eq. 10 with the sign by which more is better, for (P, n, D)."""
    centred = jacobian.double() - jacobian.double().mean(2, keepdim=True)
    unit = centred / centred.norm(dim=2, keepdim=True).clamp(min=torch.finfo(torch.float64).tiny)
    # The matrix is symmetric and has no negative eigenvalues; what rounding makes of a zero is cut off.
    eigenvalues: Tensor = torch.linalg.eigvalsh(unit @ unit.mT).clamp(min=0) + _EPSILON
    return -(eigenvalues.log() + 1 / eigenvalues)
