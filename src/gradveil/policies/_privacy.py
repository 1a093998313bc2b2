"""Eq. 5 to 7: how steadily the gradient of a guess turns towards the shared one on the way from noise to the image.

Two adversaries are told apart by their way. The plain one guesses what the network saw, and goes straight from noise to
the transformed image. The informed one knows the transformation: it goes from noise to the private image, and looks at
every point through the transformation.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Self, TypeAlias

import torch
from torch import Tensor, nn

from gradveil.engine import Runtime, Trial, in_chunks, trainable
from gradveil.engine.products import ProductFunction, Products, product_function
from gradveil.policies._material import Material
from gradveil.transforms import Hybrid, Variants, transform_smoothly
from gradveil.types import LossFn

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
        products: of the gradients of the semi-trained model.
        material: the images.
        starts: (N, C, H, W) where the attack begins.
        variant: `paper` or `reference`, see `privacy_score`.
        rule: of integration.
        runtime: precision and chunk; a chunk counts images.
    """

    products: ProductFunction
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
        function = product_function(
            model,
            loss,
            names=trainable(model),
            precision=runtime.precision,
            trial=Trial.like(starts[:1], classes),
        )
        rule = _left(intervals, starts) if variant == "paper" else _trapezoid(intervals, starts)
        return cls(products=function, material=material, starts=starts, variant=variant, rule=rule, runtime=runtime)

    def select(self, rows: Sequence[int]) -> Self:
        """Keep some of the images."""
        return type(self)(
            products=self.products,
            material=self.material.select(rows),
            starts=self.starts[list(rows)],
            variant=self.variant,
            rule=self.rule,
            runtime=self.runtime,
        )

    def __call__(self, policies: Sequence[Hybrid]) -> Tensor:
        """Return (P, N) areas under the curves of similarity that the plain adversary sees."""
        seen = self.material.seen(policies).flatten(0, 1)
        starts = self.starts.repeat(len(policies), 1, 1, 1)
        return self._integrated(lambda some: self._straight(starts[some], seen[some]), len(policies))

    def informed(self, policies: Sequence[Hybrid]) -> Tensor:
        """Return (P, N) areas under the curves that an adversary sees who knows policy and signs."""
        seen, private = self.material.seen(policies).flatten(0, 1), self.material.private()
        codes, signs = self.material.variants(policies)
        ends, starts = (each.repeat(len(policies), 1, 1, 1) for each in (private, self.starts))

        def path(some: slice) -> Tensor:
            way = self._straight(starts[some], ends[some])
            own = Variants(*(each[some].repeat_interleave(way.shape[1], 0) for each in (codes, signs)))
            through = transform_smoothly(way.flatten(0, 1), own).view(way.shape)
            return torch.cat([through[:, :-1], seen[some, None]], 1)

        return self._integrated(path, len(policies))

    def _integrated(self, path: Callable[[slice], Tensor], policies: int) -> Tensor:
        """Integrate P * N curves, as many at once as fit; the last point of each is what the network saw."""
        labels = self.material.labels.repeat(policies)

        def run(some: slice, _runtime: Runtime) -> Tensor:
            similarity = _SIMILARITIES[self.variant](self.products(path(some), labels[some]))
            # Not a matrix product, which a GPU may round to ten bits.
            return (similarity[:, :-1] * self.rule.weights).sum(1) + similarity[:, -1] * self.rule.last

        with self.runtime.numerics():
            parts, _ = in_chunks(run, len(labels), device=labels.device, runtime=self.runtime)
        return torch.cat(parts).view(policies, -1)

    def _straight(self, starts: Tensor, ends: Tensor) -> Tensor:
        """Return (M, J + 1, C, H, W) points from starts to ends (M, C, H, W), the last of them an end to the bit."""
        points = self.rule.points.view(-1, 1, 1, 1)
        between = starts[:, None] * (1 - points) + ends[:, None] * points
        return torch.cat([between, ends[:, None]], 1)


def _left(intervals: int, like: Tensor) -> Quadrature:
    """Eq. 7: the left end of each interval."""
    points = torch.arange(intervals, device=like.device).to(like.dtype) / intervals
    return Quadrature(points, torch.full_like(points, 1 / intervals), 0.0)


def _trapezoid(intervals: int, like: Tensor) -> Quadrature:
    """Both ends of each interval, as the published program does."""
    points, weights, _ = _left(intervals, like)
    weights[0] = 0.5 / intervals
    return Quadrature(points, weights, 0.5 / intervals)


def _whole_cosine(products: Products) -> Tensor:
    """Eq. 5: the cosine between whole gradients, (M, J + 1); the last of each image is its target."""
    return _cosine(products.with_last.sum(0), products.squares.sum(0))


def _mean_cosine(products: Products) -> Tensor:
    """Return the plain mean over parameters of the cosine between their gradients, as the published program does."""
    return _cosine(*products).mean(0)


def _cosine(with_last: Tensor, squares: Tensor) -> Tensor:
    # What rounding makes of the square of nothing may lie below 0.
    norms = squares.clamp(min=0).sqrt().clamp(min=_EPSILON)
    return with_last / (norms * norms[..., -1:])


_SIMILARITIES = {"paper": _whole_cosine, "reference": _mean_cosine}
