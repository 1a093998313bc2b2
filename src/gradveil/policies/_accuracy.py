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
        cut = [list(range(start, start + size)) for start in range(0, rounds * size, size)]
        kept = [_first_of_class(rows, labels[rows].tolist()) for rows in cut] if variant == "reference" else cut
        # Images that no round takes are not even transformed.
        material = material.select([row for rows in kept for row in rows])
        chosen = torch.arange(len(material.labels), device=labels.device).split([len(rows) for rows in kept])
        return cls(model=model, material=material, rounds=tuple(chosen), variant=variant, runtime=runtime)

    def __call__(self, policies: Sequence[Hybrid]) -> Tensor:
        """Return (P, R), one score per round."""
        jacobians = self._jacobians(self.material.seen(policies))
        scores = [_spread(jacobians[:, rows]) for rows in self.rounds]
        if self.variant == "paper":
            scores = [score / len(rows) for score, rows in zip(scores, self.rounds, strict=True)]
        return torch.stack(scores, 1)

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


def _first_of_class(rows: list[int], labels: list[int]) -> list[int]:
    """Keep the first image of each class, as the published program does."""
    first: dict[int, int] = {}
    for row, label in zip(rows, labels, strict=True):
        first.setdefault(label, row)
    return list(first.values())


def _spread(jacobian: Tensor) -> Tensor:
    """Return (P,), the sum of the terms of Eq. 10 with the sign by which more is better, for (P, n, D).

    The terms run over eigenvalues, but their sums need none: that of the logarithms is the logarithm of a determinant,
    that of the reciprocals the trace of an inverse, and both are read off one triangular factor.
    """
    centred = jacobian.double() - jacobian.double().mean(2, keepdim=True)
    unit = centred / centred.norm(dim=2, keepdim=True).clamp(min=torch.finfo(torch.float64).tiny)
    identity = torch.eye(unit.shape[1], dtype=unit.dtype, device=unit.device)
    # Without a check for success, which would wait for the device: with epsilon added the matrix is positive definite.
    factor, _ = torch.linalg.cholesky_ex(unit @ unit.mT + _EPSILON * identity)
    inverse = torch.linalg.solve_triangular(factor, identity, upper=False)
    logarithms = 2 * factor.diagonal(dim1=1, dim2=2).log().sum(1)
    spread: Tensor = -logarithms - inverse.square().sum((1, 2))
    return spread
