"""Covariance matrix adaptation (CMA-ES), V independent searches side by side.

The step size follows a path of the steps in coordinates where they are uncorrelated. These coordinates come from the
Cholesky factor of the covariance instead of its symmetric root, which behaves alike (Krause et al. 2016), costs a
fraction, and runs for all searches in one call.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import TypeAlias

import torch
from torch import Tensor

from gradveil.engine import Minimum, Runtime, spread
from gradveil.engine.runtime import Checkpoint, exact_products
from gradveil.streams import Streams

Score: TypeAlias = Callable[[Tensor], Tensor]
"""Candidates (V, population, n) to their (V, population) objectives; lower is better."""

_BLOCK = 16  # generations whose draws are made at once, since they come from the CPU
_LOOK_EVERY = 10  # generations between reports
_JITTER = 1e-10  # of the mean variance, added to the diagonal before a matrix is factored


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy:
    """The constants of a search in n dimensions, by the formulas of Hansen's tutorial (2016).

    Args:
        weights: of the best half of the population, descending, summing to 1.
        path_rate: of the path that the step size follows.
        damping: of the step size.
        long_rate: of the path of the mean.
        rank_one: share of that path in a new covariance.
        rank_many: share of the best candidates in it.
        chi: expected length of a standard normal vector.
    """

    weights: tuple[float, ...]
    path_rate: float
    damping: float
    long_rate: float
    rank_one: float
    rank_many: float
    chi: float

    @property
    def mass(self) -> float:
        """How many equally weighted candidates the weights stand for."""
        return 1 / sum(weight**2 for weight in self.weights)

    @classmethod
    def of(cls, size: int, population: int) -> "Strategy":
        """Compute the constants.

        Example:
            >>> strategy = Strategy.of(10, 10)
            >>> round(strategy.mass, 3), round(strategy.path_rate, 3), round(strategy.chi, 3)
            (3.167, 0.284, 3.085)
        """
        half = population // 2
        raw = [math.log(half + 0.5) - math.log(rank) for rank in range(1, half + 1)]
        weights = tuple(value / sum(raw) for value in raw)
        mass = 1 / sum(weight**2 for weight in weights)
        path_rate = (mass + 2) / (size + mass + 5)
        rank_one = 2 / ((size + 1.3) ** 2 + mass)
        return cls(
            weights=weights,
            path_rate=path_rate,
            damping=1 + 2 * max(0.0, math.sqrt((mass - 1) / (size + 1)) - 1) + path_rate,
            long_rate=(4 + mass / size) / (size + 4 + 2 * mass / size),
            rank_one=rank_one,
            rank_many=min(1 - rank_one, 2 * (mass - 2 + 1 / mass) / ((size + 2) ** 2 + mass)),
            chi=math.sqrt(size) * (1 - 1 / (4 * size) + 1 / (21 * size**2)),
        )


@dataclass(slots=True)
class _Search:
    """The changing part of V searches: tensors alone, so that a checkpoint is exact."""

    mean: Tensor  # (V, n)
    sigma: Tensor  # (V,)
    path: Tensor  # (V, n)
    long_path: Tensor  # (V, n)
    covariance: Tensor  # (V, n, n)
    factor: Tensor  # (V, n, n), lower triangular
    best: Tensor  # (V, n)
    objective: Tensor  # (V,)
    active: Tensor  # (V,)
    used: Tensor  # (V,)
    trace: Tensor  # (V, T)
    done: Tensor  # ()
    total: Tensor  # ()

    def tensors(self) -> dict[str, Tensor]:
        """Name everything that the rest of the search depends on."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def restore(self, saved: dict[str, Tensor]) -> None:
        """Take over a saved state; leave alone one that belongs to another search."""
        own = self.tensors()
        alike = own.keys() == saved.keys() and all(saved[name].shape == own[name].shape for name in own)
        if alike and int(saved["total"]) == int(self.total):
            for name, tensor in own.items():
                tensor.copy_(saved[name])


def evolve(
    score: Score,
    start: Tensor,
    *,
    sigma: float,
    population: int,
    generations: int,
    streams: Streams,
    runtime: Runtime,
) -> Minimum:
    """Minimize V objectives without their gradients, and keep the best candidate ever tried.

    Args:
        score: of candidates; a search's depend on its own candidates alone.
        start: (V, n), where the mean begins.
        sigma: standard deviation of the first candidates.
        population: candidates of a generation, at least 4.
        generations: how often candidates are drawn; the last mean is tried too.
        streams: one per search.
        runtime: progress, checkpoints, trace.

    Returns:
        Its `values` hold the one tensor (V, n), its `steps` are generations.

    Example:
        >>> goal = torch.tensor([[1.0, -2.0, 0.5], [0.0, 3.0, 1.0]])
        >>> found = evolve(
        ...     lambda x: (x - goal[:, None]).square().sum(2), torch.zeros(2, 3), sigma=1.0, population=8,
        ...     generations=60, streams=Streams().bind(2), runtime=Runtime(),
        ... )
        >>> bool((found.values[0] - goal).abs().max() < 1e-2)
        True
    """
    strategy = Strategy.of(start.shape[1], population)
    search = _begin(start, sigma, generations, traced=generations if runtime.trace else 0)
    checkpoint = Checkpoint(runtime)
    search.restore(checkpoint.load())
    with torch.no_grad(), exact_products():
        _loop(score, search, strategy, population=population, streams=streams, checkpoint=checkpoint)
        if runtime.probe is None:
            _keep_best(search, search.mean[:, None], score(_everywhere(search.mean, population))[:, :1])
    return Minimum(
        values=(search.best,),
        objective=search.objective,
        diverged=~search.active,
        steps=search.used,
        trace=search.trace,
        captured=False,
    )


def _begin(start: Tensor, sigma: float, generations: int, *, traced: int) -> _Search:
    victims, size = start.shape
    identity = torch.eye(size, dtype=start.dtype, device=start.device).expand(victims, size, size)
    empty = torch.zeros(victims, dtype=torch.long, device=start.device)
    return _Search(
        mean=start.detach().clone(),
        sigma=start.new_full((victims,), sigma),
        path=torch.zeros_like(start),
        long_path=torch.zeros_like(start),
        covariance=identity.clone(),
        factor=identity.clone(),
        best=start.detach().clone(),
        objective=start.new_full((victims,), torch.inf),
        active=torch.ones_like(empty, dtype=torch.bool),
        used=empty,
        trace=start.new_full((victims, traced), torch.nan),
        done=torch.tensor(0),
        total=torch.tensor(generations),
    )


def _loop(
    score: Score, search: _Search, strategy: Strategy, *, population: int, streams: Streams, checkpoint: Checkpoint
) -> None:
    runtime, total = checkpoint.runtime, int(search.total)
    end = total if runtime.probe is None else min(total, runtime.probe)
    draws, shape = (-1, search.mean), (_BLOCK, population, search.mean.shape[1])
    for generation in range(int(search.done), end):
        block, row = divmod(generation, _BLOCK)
        if draws[0] != block:
            draws = block, streams.normal(f"generations-{block}", shape, like=search.mean)
        best = _generation(score, search, strategy, draws[1][:, row], generation)
        if runtime.trace:
            search.trace[:, generation] = best
        if (generation + 1) % _LOOK_EVERY:
            continue
        runtime.progress(runtime.name, generation + 1, total)
        search.done.fill_(generation + 1)
        checkpoint.save(search.tensors)
    runtime.progress(runtime.name, total, total)
    search.done.fill_(total)
    checkpoint.save(search.tensors, finished=True)


def _generation(score: Score, search: _Search, strategy: Strategy, drawn: Tensor, number: int) -> Tensor:
    """Try one generation of standard normal draws (V, population, n), and return its (V,) best objective."""
    steps = drawn @ search.factor.transpose(1, 2)
    candidates = search.mean[:, None] + search.sigma[:, None, None] * steps
    scores = score(candidates)
    scores = torch.where(torch.isfinite(scores), scores, torch.inf)
    # A search none of whose candidates has a finite objective has nothing to go by, and ends.
    search.active.logical_and_(torch.isfinite(scores).any(1))
    search.used.add_(search.active)
    _keep_best(search, candidates, scores)

    chosen = scores.argsort(dim=1, stable=True)[:, : len(strategy.weights), None]
    weights = drawn.new_tensor(strategy.weights)[:, None]
    best_drawn = drawn.gather(1, chosen.expand(-1, -1, drawn.shape[2]))
    best_steps = steps.gather(1, chosen.expand(-1, -1, drawn.shape[2]))
    _move(search, strategy, (weights * best_drawn).sum(1), best_steps, weights, number)
    return scores.amin(1)


def _move(search: _Search, strategy: Strategy, direction: Tensor, steps: Tensor, weights: Tensor, number: int) -> None:
    """Move mean, paths, covariance and step size of the active searches."""
    rate, long_rate, mass = strategy.path_rate, strategy.long_rate, strategy.mass
    mean_step = (weights * steps).sum(1)
    path = (1 - rate) * search.path + math.sqrt(rate * (2 - rate) * mass) * direction
    length = path.norm(dim=1)
    settled = math.sqrt(1 - (1 - rate) ** (2 * (number + 1)))
    # A path that is far too long says that the step size is too small: the covariance waits for it.
    waits = (length / settled >= (1.4 + 2 / (path.shape[1] + 1)) * strategy.chi).to(path)
    grown = math.sqrt(long_rate * (2 - long_rate) * mass) * mean_step
    long_path = (1 - long_rate) * search.long_path + (1 - waits)[:, None] * grown

    kept = 1 - strategy.rank_one - strategy.rank_many + waits * strategy.rank_one * long_rate * (2 - long_rate)
    covariance = (
        kept[:, None, None] * search.covariance
        + strategy.rank_one * long_path[:, :, None] * long_path[:, None]
        + strategy.rank_many * steps.transpose(1, 2) @ (weights * steps)
    )
    growth = (rate / strategy.damping * (length / strategy.chi - 1)).clamp(max=1).exp()
    moved = {
        "mean": search.mean + search.sigma[:, None] * mean_step,
        "path": path,
        "long_path": long_path,
        "covariance": covariance,
        "sigma": search.sigma * growth,
        "factor": _factor(covariance, search.factor),
    }
    for name, value in moved.items():
        own = getattr(search, name)
        own.copy_(torch.where(spread(search.active, own), value, own))


def _factor(covariance: Tensor, before: Tensor) -> Tensor:
    """Return the Cholesky factors of (V, n, n), or the ones before where a matrix lost its definiteness to rounding."""
    diagonal = covariance.diagonal(dim1=1, dim2=2).mean(1) * _JITTER
    eye = torch.eye(covariance.shape[1], dtype=covariance.dtype, device=covariance.device)
    found = torch.linalg.cholesky_ex(covariance + diagonal[:, None, None] * eye)
    return torch.where((found.info == 0)[:, None, None], found.L, before)


def _keep_best(search: _Search, candidates: Tensor, scores: Tensor) -> None:
    lowest, index = scores.min(1)
    better = search.active & (lowest < search.objective)
    search.objective.copy_(torch.where(better, lowest, search.objective))
    found = candidates[torch.arange(len(candidates), device=candidates.device), index]
    search.best.copy_(torch.where(better[:, None], found, search.best))


def _everywhere(mean: Tensor, population: int) -> Tensor:
    return mean[:, None].expand(-1, population, -1)
