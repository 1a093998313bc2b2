"""Eq. 5 to 7: how steadily the gradient of a guess turns towards the shared one on the way from noise to the image."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Self, TypeAlias

import torch
from torch import Tensor, nn

from gradveil.engine import GradientFunction, Runtime, Trial, gradient_function, in_chunks, trainable
from gradveil.engine.matching import memory_order
from gradveil.policies._material import Material
from gradveil.transforms import Hybrid
from gradveil.types import Gradients, LossFn

Variant: TypeAlias = Literal["paper", "reference"]

_EPSILON = 1e-8  # a norm below it counts as this much


class Quadrature(NamedTuple):
    """How a curve on [0, 1] is integrated.

    Args:
        points: (J,) below 1.
        weights: (J,) of the curve at the points.
        last: weight of the curve at 1.
    """

    points: Tensor
    weights: Tensor
    last: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PrivacyScorer:
    """Scores policies on the same images, many of them in one stack.

    Args:
        gradients: of the semi-trained model.
        material: the images.
        starts: (N, C, H, W) where the attack begins.
        variant: `paper` or `reference`, see `privacy_score`.
        rule: of integration.
        runtime: precision and chunk; a chunk counts images.
    """

    gradients: GradientFunction
    material: Material
    starts: Tensor
    variant: Variant
    rule: Quadrature
    runtime: Runtime

    @classmethod
    def of(
        cls, model: nn.Module, material: Material, *, loss: LossFn, variant: Variant, intervals: int, runtime: Runtime
    ) -> Self:
        """Prepare for a model that eats images in [0, 1] and runs in eval mode."""
        starts = material.starts()
        with torch.no_grad():
            classes = int(model(starts[:1]).shape[-1])
        function = gradient_function(
            model,
            loss,
            names=trainable(model),
            precision=runtime.precision,
            trial=Trial.like(starts[:1], classes),
        )
        rule = _left(intervals, starts) if variant == "paper" else _trapezoid(intervals, starts)
        return cls(gradients=function, material=material, starts=starts, variant=variant, rule=rule, runtime=runtime)

    def __call__(self, policies: Sequence[Hybrid]) -> Tensor:
        """Return (P, N) areas under the curves of similarity."""
        seen = self.material.seen(policies).flatten(0, 1)
        starts, labels = self.starts.repeat(len(policies), 1, 1, 1), self.material.labels.repeat(len(policies))

        def run(some: slice, _runtime: Runtime) -> Tensor:
            return self._areas(seen[some], starts[some], labels[some])

        with self.runtime.numerics():
            parts, _ = in_chunks(run, len(seen), device=seen.device, runtime=self.runtime)
        return torch.cat(parts).view(len(policies), -1)

    def _areas(self, seen: Tensor, starts: Tensor, labels: Tensor) -> Tensor:
        """Integrate M images at once: their gradients, and those at all points of their ways, in one stack."""
        points = torch.cat([self.rule.points, self.rule.points.new_ones(1)]).view(-1, 1, 1, 1)
        path = starts[:, None] * (1 - points) + seen[:, None] * points
        path[:, -1] = seen  # to the bit, not up to rounding
        places = path.shape[1]
        evaluation = self.gradients(path.flatten(0, 1)[:, None], labels.repeat_interleave(places)[:, None])
        similarity = _SIMILARITIES[self.variant](evaluation.gradients, places)
        return similarity[:, :-1] @ self.rule.weights + similarity[:, -1] * self.rule.last


def _left(intervals: int, like: Tensor) -> Quadrature:
    """Eq. 7: the left end of each interval."""
    points = torch.arange(intervals, device=like.device).to(like.dtype) / intervals
    return Quadrature(points, torch.full_like(points, 1 / intervals), 0.0)


def _trapezoid(intervals: int, like: Tensor) -> Quadrature:
    """Both ends of each interval, as the published program does."""
    points, weights, _ = _left(intervals, like)
    weights[0] = 0.5 / intervals
    return Quadrature(points, weights, 0.5 / intervals)


def _whole_cosine(gradients: Gradients, places: int) -> Tensor:
    """Eq. 5: the cosine between whole gradients, (M, J + 1); the last of each image is its target."""
    products = torch.stack([_products(tensor, places) for tensor in gradients]).sum(0)
    return _cosine(products)


def _mean_cosine(gradients: Gradients, places: int) -> Tensor:
    """Return the plain mean over parameters of the cosine between their gradients, as the published program does."""
    return torch.stack([_cosine(_products(tensor, places)) for tensor in gradients]).mean(0)


def _products(tensor: Tensor, places: int) -> Tensor:
    """Return the product with the target, and the squared norm, of each gradient: (2, M, J + 1)."""
    # In the order of memory, which is not always that of the axes, nothing has to be copied.
    flat = tensor.permute(0, *memory_order(tensor)).reshape(-1, places, tensor[0].numel())
    squares = torch.linalg.vector_norm(flat, dim=2).square()
    return torch.stack([torch.einsum("mjd,md->mj", flat, flat[:, -1]), squares])


def _cosine(products: Tensor) -> Tensor:
    norms = products[1].sqrt().clamp(min=_EPSILON)
    return products[0] / (norms * norms[:, -1:])


_SIMILARITIES = {"paper": _whole_cosine, "reference": _mean_cosine}
