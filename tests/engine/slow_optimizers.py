"""The reference: `torch.optim`, one victim at a time."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from gradveil.engine import LBFGS, SGD, Adam, Optimizer

SlowObjective = Callable[[Tensor, int], Tensor]
"""The variables of one victim, and its number, to its objective."""


class Found(NamedTuple):
    """The best iterate, its objective, and the objective before every step."""

    best: Tensor
    objective: float
    before: list[float]


class Bowls:
    """One smooth, well-conditioned bowl per victim, each of another shape and depth."""

    def __init__(self, victims: int = 4, size: int = 6) -> None:
        generator = torch.Generator().manual_seed(5)
        self.weights = 0.5 + 2 * torch.rand(victims, size, generator=generator, dtype=torch.float64)
        self.centers = torch.randn(victims, size, generator=generator, dtype=torch.float64)
        self.start = 2 * torch.randn(victims, size, generator=generator, dtype=torch.float64)

    def one(self, values: Tensor, victim: int) -> Tensor:
        off = values - self.centers[victim]
        return (self.weights[victim] * off.square()).sum() + (off[1:] * off[:-1]).sin().sum() / 4

    def all(self, variables: tuple[Tensor, ...]) -> Tensor:
        off = variables[0] - self.centers
        return (self.weights * off.square()).sum(1) + (off[:, 1:] * off[:, :-1]).sin().sum(1) / 4


def torch_optimizer(optimizer: Optimizer, variable: Tensor) -> torch.optim.Optimizer:
    """Make the optimizer of torch with the same settings."""
    if isinstance(optimizer, Adam):
        betas = (optimizer.beta1, optimizer.beta2)
        return torch.optim.Adam([variable], lr=optimizer.lr, betas=betas, eps=optimizer.eps)
    if isinstance(optimizer, SGD):
        return torch.optim.SGD([variable], lr=optimizer.lr, momentum=optimizer.momentum, nesterov=True)
    assert isinstance(optimizer, LBFGS)
    return torch.optim.LBFGS(
        [variable],
        lr=optimizer.lr,
        max_iter=optimizer.inner,
        history_size=optimizer.history,
        tolerance_grad=optimizer.tolerance_grad,
        tolerance_change=optimizer.tolerance_change,
    )


def one_at_a_time(objective: SlowObjective, start: Tensor, optimizer: Optimizer, *, steps: int) -> list[Found]:
    """Minimize victim after victim."""
    return [_minimize(objective, start[victim], victim, optimizer, steps) for victim in range(len(start))]


def _minimize(objective: SlowObjective, start: Tensor, victim: int, optimizer: Optimizer, steps: int) -> Found:
    variable = start.clone().requires_grad_()
    own = torch_optimizer(optimizer, variable)
    seen: list[tuple[float, Tensor]] = []

    def closure() -> float:
        own.zero_grad()
        loss = objective(variable, victim)
        loss.backward()
        seen.append((loss.item(), variable.detach().clone()))
        return loss.item()

    before = [own.step(closure) for _ in range(steps)]
    closure()
    value, best = min(seen, key=lambda pair: pair[0])
    return Found(best, value, before)
