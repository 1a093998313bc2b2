"""Regression from magnitudes of mixtures to images: every pixel has to find its signs."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, Self, TypeAlias

import torch
from torch import Tensor

from gradveil.attacks._decode_regression import least_squares, pseudo_inverse, public_share
from gradveil.engine import Adam, Runtime, Variable, minimize
from gradveil.engine.runtime import exact_products
from gradveil.streams import Streams

Solver: TypeAlias = Literal["alternating", "adam"]
"""`alternating`: signs and images in turns, where pixels learn from neighbours; `adam`: from zero, as published."""

_STARTS = 4  # random ones of every pixel; a few pixels find their signs, and hand them on
_TURNS, _NEARBY_TURNS = 20, 4
_SWEEPS = 40  # over all neighbours at most
_BETTER = 0.999  # of the misfit so far is a better fit
_PUSH = 0.05  # weight of the published term that drives standardized pixels away from zero


@dataclass(frozen=True, slots=True)
class Magnitudes:
    """The problem |weights · images| = magnitudes; a pixel and its negative, in all images at once, solve it.

    Args:
        weights: (V, N, P).
        inverse: (V, P, N) of them.
        seen: (V, N, D) magnitudes, at least 0.
        shape: (C, H, W) of D.
    """

    weights: Tensor
    inverse: Tensor
    seen: Tensor
    shape: tuple[int, ...]

    @classmethod
    def of(cls, weights: Tensor, mixtures: Tensor) -> Self:
        """Take weights (V, N, P) and mixtures (V, N, C, H, W) of any signs."""
        return cls(weights, pseudo_inverse(weights), mixtures.abs().flatten(2), tuple(mixtures.shape[2:]))

    def solve(self, *, streams: Streams, steps: int) -> Tensor:
        """Return (V, P, D), from several starts.

        Args:
            streams: of the groups, for random starts.
            steps: of the alternation at most, from the best start and neighbours.
        """
        with exact_products():
            starts = self._starts(streams)
            found = self._descend(next(starts), _TURNS)
            for start in starts:
                found = self._better(found, self._descend(start, _TURNS))
            return self.improve(found, sweeps=_SWEEPS, steps=steps)

    def improve(self, images: Tensor, *, sweeps: int, steps: int) -> Tensor:
        """Go on from images (V, P, D): every pixel also tries what its neighbours have found.

        Pixels are problems of their own with many wrong solutions, but what is right for one is nearly right for the
        next, so that a few right ones soon have spread over the whole image.
        """
        with exact_products():
            found = self._descend(images, _TURNS)
            for _ in range(sweeps):
                before = found
                for near in self._neighbours(found):
                    found = self._better(found, self._descend(near, _NEARBY_TURNS))
                if torch.equal(before, found):
                    break
            return self._descend(found, steps)

    def misfits(self, images: Tensor) -> Tensor:
        """Return (V, D), the mean square of |weights · images| - magnitudes at every pixel."""
        return ((self.weights @ images).abs() - self.seen).square().mean(1)

    def _starts(self, streams: Streams) -> Iterator[Tensor]:
        """Yield the solution of the lifted problem, where there are equations enough, and random images."""
        count, images = self.weights.shape[1:]
        if count > images * (images + 1) // 2:
            yield lift(self.weights, self.seen)
        size, shape = self.seen.square().mean((1, 2), keepdim=True).sqrt(), (images, self.seen.shape[2])
        for number in range(_STARTS):
            yield size * streams.normal(f"start-{number}", shape, like=self.weights)

    def _descend(self, images: Tensor, turns: int) -> Tensor:
        """Take the signs of the current images for true and solve the linear problem, until no sign changes."""
        signs = torch.zeros_like(self.seen)
        for _ in range(turns):
            before, signs = signs, torch.where(self.weights @ images >= 0, 1.0, -1.0).to(self.seen)
            if torch.equal(before, signs):
                break
            images = self.inverse @ (signs * self.seen)
        return images

    def _better(self, images: Tensor, others: Tensor) -> Tensor:
        """Return (V, P, D), at every pixel what fits clearly better."""
        return torch.where((self.misfits(others) < _BETTER * self.misfits(images))[:, None], others, images)

    def _neighbours(self, images: Tensor) -> Iterator[Tensor]:
        """Yield what the pixels above, below and beside, and those of the other channels, have found."""
        whole = images.unflatten(2, self.shape)
        shifts = [(-1, 1), (-1, -1), (-2, 1), (-2, -1), *((-3, n) for n in range(1, self.shape[0]))]
        for dim, shift in shifts:
            yield whole.roll(shift, dim).flatten(2)


def solve_magnitudes(
    weights: Tensor, mixtures: Tensor, *, solver: Solver, steps: int, lr: float, streams: Streams, runtime: Runtime
) -> Tensor:
    """Solve |weights · images| = |mixtures|; a pixel and its negative, in all images at once, solve it equally well.

    Args:
        weights: (V, N, P).
        mixtures: (V, N, C, H, W), of any signs.
        solver: see `Solver`.
        steps: of the alternation at most, or of Adam.
        lr: of Adam.
        streams: of the groups.
        runtime: progress.

    Returns:
        (V, P, D).
    """
    # The rounding of tf32, which networks bear well, would be all that is left of badly conditioned products.
    with exact_products():
        if solver == "adam":
            return _adam(weights, mixtures.abs().flatten(2), steps=steps, lr=lr, runtime=runtime)
        return Magnitudes.of(weights, mixtures).solve(streams=streams, steps=steps)


def misfit(weights: Tensor, images: Tensor, mixtures: Tensor) -> Tensor:
    """Return (V,), the mean square of |weights · images| - |mixtures|, whose mixtures are (V, N, C, H, W)."""
    return ((weights @ images).abs() - mixtures.abs().flatten(2)).square().mean((1, 2))


def _adam(weights: Tensor, magnitudes: Tensor, *, steps: int, lr: float, runtime: Runtime) -> Tensor:
    def objective(values: tuple[Tensor, ...]) -> Tensor:
        mixed = weights @ values[0]
        # At zero both signs fit equally well; the first one is taken, so that the descent can begin.
        residual = torch.where(mixed >= 0, mixed - magnitudes, mixed + magnitudes)
        return residual.square().mean((1, 2)) + _PUSH * (1 - values[0].abs()).mean((1, 2))

    start = weights.new_zeros(len(weights), weights.shape[2], magnitudes.shape[2])
    found = minimize(objective, [Variable(start=start)], optimizer=Adam(lr=lr), steps=steps, runtime=runtime)
    return found.values[0]


def lift(weights: Tensor, magnitudes: Tensor) -> Tensor:
    """Find the matrix x xᵀ of every pixel, in which squared magnitudes are linear, and take its largest direction."""
    images = weights.shape[2]
    first, second = torch.triu_indices(images, images, device=weights.device)
    twice = torch.where(first == second, 1.0, 2.0).to(weights)
    terms = weights[..., first] * weights[..., second] * twice
    # Images of a public set add to the square of a mixture, on average, by their share.
    with_public = torch.cat([terms, public_share(weights).square()], 2)
    products = least_squares(with_public, magnitudes.square())[:, :-1]
    matrices = weights.new_zeros(len(weights), magnitudes.shape[2], images, images)
    matrices[..., first, second] = products.transpose(1, 2)
    matrices[..., second, first] = products.transpose(1, 2)
    values, vectors = torch.linalg.eigh(matrices.cpu())
    largest: Tensor = vectors[..., -1] * values[..., -1:].clamp_min(0).sqrt()
    return largest.transpose(1, 2).to(weights)
