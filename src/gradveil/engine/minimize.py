"""The loop that all optimization attacks share."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from gradveil.engine.capture import capture
from gradveil.engine.optimizers import Optimizer, OptimizerState, spread
from gradveil.engine.runtime import Checkpoint, Runtime
from gradveil.errors import UnsupportedModelError

Objective: TypeAlias = Callable[[tuple[Tensor, ...]], Tensor]
"""Variables, each (V, ...), to the (V,) objective of every victim; a victim's depends on its own variables alone."""

DECAY_AT = (3 / 8, 5 / 8, 7 / 8)
_NO_SLOPE = "is not implemented"  # what torch says of operations without a second derivative
_LOOK_EVERY = 50  # steps between looks at who is still active, since a look waits for the device


@dataclass(frozen=True, slots=True, kw_only=True)
class Variable:
    """Something to optimize.

    Args:
        start: (V, ...).
        signed: replace the gradient by its sign; (V,) for some victims alone.
        low: lower bound, broadcast to the shape of `start`; None for none.
        high: upper bound.
    """

    start: Tensor
    signed: bool | Tensor = False
    low: Tensor | None = None
    high: Tensor | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Minimum:
    """What was found, victim by victim.

    Args:
        values: the best iterate of each variable, by the objective.
        objective: (V,) its objective; infinite if no iterate had a finite one.
        diverged: (V,) whether a number was not finite; such a victim stops and keeps its best iterate.
        steps: (V,) evaluations used.
        trace: (V, T) the objective of every evaluation, (V, 0) unless asked for.
        captured: whether the step ran as a CUDA graph.
    """

    values: tuple[Tensor, ...]
    objective: Tensor
    diverged: Tensor
    steps: Tensor
    trace: Tensor
    captured: bool


@dataclass(frozen=True, slots=True)
class _Schedule:
    """What happens before which iteration.

    Args:
        total: iterations of the longest victim.
        decays: factors on the learning rate, for all victims or (V,).
        ends: (V,) victims that have had all their steps.
    """

    total: int
    decays: Mapping[int, Tensor | float]
    ends: Mapping[int, Tensor]


@dataclass(slots=True)
class _Run:
    """The changing part of a minimization: tensors alone, so that a checkpoint is exact."""

    values: list[Tensor]
    best: list[Tensor]
    optimizer: OptimizerState
    objective: Tensor
    active: Tensor
    diverged: Tensor
    ended: Tensor
    used: Tensor
    rate: Tensor
    trace: Tensor
    done: Tensor
    total: Tensor

    def tensors(self) -> dict[str, Tensor]:
        """Name everything that the rest of the run depends on."""
        named = {f"value.{i}": v for i, v in enumerate(self.values)} | {f"best.{i}": b for i, b in enumerate(self.best)}
        named |= {f"optimizer.{name}": tensor for name, tensor in self.optimizer.items()}
        plain = ("objective", "active", "diverged", "ended", "used", "rate", "trace", "done", "total")
        return named | {name: getattr(self, name) for name in plain}

    def restore(self, saved: dict[str, Tensor]) -> None:
        """Take over a saved state in place; leave alone one that belongs to another computation."""
        own = self.tensors()
        alike = own.keys() == saved.keys() and all(
            saved[name].shape == tensor.shape and saved[name].dtype == tensor.dtype for name, tensor in own.items()
        )
        if alike and int(saved["total"]) == int(self.total):
            for name, tensor in own.items():
                tensor.copy_(saved[name])


def minimize(
    objective: Objective,
    variables: Sequence[Variable],
    *,
    optimizer: Optimizer,
    steps: int | Sequence[int],
    decay: bool | Sequence[bool] = False,
    rates: Tensor | None = None,
    stop_below: float | Tensor | None = None,
    runtime: Runtime | None = None,
) -> Minimum:
    """Minimize the objectives of V victims side by side.

    Each victim can have a schedule of its own: it moves, decays and ends as it would alone, while the others go on.

    Args:
        objective: of the variables.
        variables: what to optimize.
        optimizer: `Adam`, `SGD` or `LBFGS`.
        steps: of the optimizer, for all victims or for each.
        decay: multiply the learning rate by 0.1 at 3/8, 5/8 and 7/8 of a victim's steps, for all victims or for each.
        rates: (V,) factors on the optimizer's learning rate; None for 1.
        stop_below: a victim whose objective falls below stops; () for all or (V,) each one's own.
        runtime: precision, progress, checkpoints.

    Example:
        >>> from gradveil.engine import Adam
        >>> found = minimize(
        ...     lambda v: (v[0] - 3).square().sum(1), [Variable(start=torch.zeros(2, 4))], optimizer=Adam(), steps=200
        ... )
        >>> bool((found.values[0] - 3).abs().max() < 0.1)
        True
    """
    runtime = runtime or Runtime()
    schedule = _schedule(optimizer, steps, decay, victims=len(variables[0].start), like=variables[0].start)
    if rates is None and any(isinstance(factor, Tensor) for factor in schedule.decays.values()):
        rates = torch.ones(len(variables[0].start))
    run = _begin(variables, optimizer, rates, total=schedule.total, traced=schedule.total if runtime.trace else 0)
    checkpoint = Checkpoint(runtime)
    run.restore(checkpoint.load())

    step = _step_function(objective, variables, optimizer, run, stop_below)
    unfinished = int(run.done) < schedule.total
    graph = capture(step, run.tensors()) if runtime.capture and run.rate.is_cuda and unfinished else None
    _loop(graph or step, run, schedule=schedule, checkpoint=checkpoint)
    if runtime.probe is None:
        _look_at_the_last(objective, run)
    return Minimum(
        values=tuple(run.best),
        objective=run.objective,
        diverged=run.diverged,
        steps=run.used,
        trace=run.trace,
        captured=graph is not None,
    )


def _schedule(
    optimizer: Optimizer, steps: int | Sequence[int], decay: bool | Sequence[bool], *, victims: int, like: Tensor
) -> _Schedule:
    """Say what happens before which iteration; where all victims have one schedule, it is one number for all."""
    if isinstance(steps, int) and isinstance(decay, bool):
        decays = {optimizer.iterations(int(steps * part)) for part in DECAY_AT} if decay else set()
        return _Schedule(optimizer.iterations(steps), dict.fromkeys(decays, 0.1), {})
    lengths = [steps] * victims if isinstance(steps, int) else list(steps)
    decaying = [decay] * victims if isinstance(decay, bool) else list(decay)
    marks = [
        {optimizer.iterations(int(length * part)) for part in DECAY_AT} if decays_too else set[int]()
        for length, decays_too in zip(lengths, decaying, strict=True)
    ]
    ends = [optimizer.iterations(length) for length in lengths]

    return _Schedule(
        max(ends),
        {mark: like.new_tensor([0.1 if mark in own else 1.0 for own in marks]) for mark in set().union(*marks)},
        {end: torch.tensor([own == end for own in ends], device=like.device) for end in set(ends)},
    )


def _begin(
    variables: Sequence[Variable], optimizer: Optimizer, rates: Tensor | None, *, total: int, traced: int
) -> _Run:
    values = [variable.start.detach().clone() for variable in variables]
    victims, like = len(values[0]), values[0]
    flags = torch.zeros(victims, dtype=torch.bool, device=like.device)
    return _Run(
        values=values,
        best=[value.clone() for value in values],
        optimizer=optimizer.start(values),
        objective=torch.full((victims,), torch.inf, dtype=like.dtype, device=like.device),
        active=~flags,
        diverged=flags,
        ended=flags.clone(),
        used=torch.zeros(victims, dtype=torch.long, device=like.device),
        rate=torch.ones((), dtype=like.dtype, device=like.device) if rates is None else rates.to(like, copy=True),
        trace=torch.full((victims, traced), torch.nan, dtype=like.dtype, device=like.device),
        done=torch.tensor(0),
        total=torch.tensor(total),
    )


def _step_function(
    objective: Objective,
    variables: Sequence[Variable],
    optimizer: Optimizer,
    run: _Run,
    stop_below: float | Tensor | None,
) -> Callable[[], Tensor]:
    """Make the step: evaluate, keep the best, move; it returns the (V,) objective and changes `run` in place."""

    def step() -> Tensor:
        run.used.add_(run.active)
        losses, gradients = _differentiate(objective, run.values)
        finite = torch.isfinite(losses)
        for gradient in gradients:
            finite = finite & torch.isfinite(gradient.flatten(1)).all(1)
        run.diverged.logical_or_(run.active & ~finite)
        run.active.logical_and_(finite)
        _keep_best(run, losses)
        if stop_below is not None:
            run.active.logical_and_(run.objective >= stop_below)

        directed = [_directed(v.signed, g) for v, g in zip(variables, gradients, strict=True)]
        converged = optimizer.move(run.values, directed, losses, state=run.optimizer, rate=run.rate, active=run.active)
        run.active.logical_and_(~converged)
        for variable, value in zip(variables, run.values, strict=True):
            if variable.low is not None or variable.high is not None:
                value.copy_(value.clamp(min=variable.low, max=variable.high))
        return losses

    return step


def _directed(signed: bool | Tensor, gradient: Tensor) -> Tensor:
    if isinstance(signed, Tensor):
        return torch.where(spread(signed, gradient), gradient.sign(), gradient)
    return gradient.sign() if signed else gradient


def _differentiate(objective: Objective, values: Sequence[Tensor]) -> tuple[Tensor, tuple[Tensor, ...]]:
    leaves = tuple(value.detach().requires_grad_() for value in values)
    with torch.enable_grad():
        losses = objective(leaves)
        try:
            gradients = torch.autograd.grad(losses.sum(), leaves)
        except RuntimeError as error:
            reason = str(error).partition("\n")[0].rstrip(".")
            if _NO_SLOPE not in reason:
                raise
            raise UnsupportedModelError(
                f"the gradient of the model has no slope to follow ({reason}); replace that operation in the model, or "
                "use an attack that does not search, such as analytic"
            ) from error
    return losses.detach(), gradients


def _keep_best(run: _Run, losses: Tensor) -> None:
    better = run.active & (losses < run.objective)
    run.objective.copy_(torch.where(better, losses, run.objective))
    for best, value in zip(run.best, run.values, strict=True):
        best.copy_(torch.where(spread(better, value), value, best))


def _loop(step: Callable[[], Tensor], run: _Run, *, schedule: _Schedule, checkpoint: Checkpoint) -> None:
    runtime, total = checkpoint.runtime, int(run.total)
    end = total if runtime.probe is None else min(total, runtime.probe)
    for iteration in range(int(run.done), end):
        if iteration in schedule.decays:
            run.rate.mul_(schedule.decays[iteration])
        if iteration in schedule.ends:
            run.ended.logical_or_(schedule.ends[iteration] & run.active)
            run.active.logical_and_(~schedule.ends[iteration])
        losses = step()
        if runtime.trace:
            run.trace[:, iteration] = losses
        finished = iteration + 1
        if finished % _LOOK_EVERY and finished < end:
            continue
        runtime.progress(runtime.name, finished, total)
        if not bool(run.active.any()):
            # Nobody moves any more, so these objectives would come again at every step that is left.
            run.trace[:, finished:] = losses[:, None]
            break
        run.done.fill_(finished)
        checkpoint.save(run.tensors)
    runtime.progress(runtime.name, total, total)
    run.done.fill_(total)
    checkpoint.save(run.tensors, finished=True)


def _look_at_the_last(objective: Objective, run: _Run) -> None:
    """Evaluate once more, since the last move has not been judged yet."""
    with torch.no_grad():
        detached = tuple(value.detach() for value in run.values)
        run.active.logical_or_(run.ended)  # they stand where their own last step left them
    losses, _ = _differentiate(objective, detached)
    _keep_best(run, torch.where(torch.isfinite(losses), losses, torch.inf))
