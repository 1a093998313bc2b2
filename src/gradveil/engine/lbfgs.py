"""L-BFGS for stacks of victims: history, step and stopping are each victim's own."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor
from typing_extensions import override

from gradveil.engine.optimizers import Optimizer, OptimizerState, spread
from gradveil.engine.runtime import exact_products


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class LBFGS(Optimizer):
    """L-BFGS without line search, with the rules of `torch.optim.LBFGS`.

    A step is up to `inner` iterations. A victim whose step ends early (its change is below `tolerance_change`) waits
    for the next one; a victim whose gradient is below `tolerance_grad` has converged.

    Args:
        lr: step length; the very first is shortened to lr * min(1, 1 / |gradient|_1).
        inner: iterations of a step.
        history: pairs kept.
        tolerance_grad: on the largest entry of the gradient.
        tolerance_change: on the largest entry of the change, and on the change of the objective.
    """

    lr: float = 1.0
    inner: int = 20
    history: int = 100
    tolerance_grad: float = 1e-7
    tolerance_change: float = 1e-9

    @override
    def iterations(self, steps: int) -> int:
        return steps * self.inner

    @override
    def start(self, values: Sequence[Tensor]) -> OptimizerState:
        flat = _flatten(values)
        victims, size = flat.shape
        zeros, counts = flat.new_zeros, torch.zeros(victims, dtype=torch.long, device=flat.device)
        return {
            "inner": counts[0].clone(),
            "taken": counts,
            "stored": counts.clone(),
            "waiting": counts.bool(),
            "direction": zeros(victims, size),
            "gradient": zeros(victims, size),
            "loss": zeros(victims),
            "length": zeros(victims),
            "scale": torch.ones_like(flat[:, 0]),
            "changes": zeros(victims, self.history, size),
            "bends": zeros(victims, self.history, size),
            "products": zeros(victims, self.history, self.history),
        }

    @override
    def move(
        self,
        values: Sequence[Tensor],
        gradients: Sequence[Tensor],
        losses: Tensor,
        *,
        state: OptimizerState,
        rate: Tensor,
        active: Tensor,
    ) -> Tensor:
        with exact_products():
            return self._move(values, _flatten(gradients), losses, state=state, rate=rate, active=active)

    def _move(
        self,
        values: Sequence[Tensor],
        gradient: Tensor,
        losses: Tensor,
        *,
        state: OptimizerState,
        rate: Tensor,
        active: Tensor,
    ) -> Tensor:
        converged = gradient.abs().amax(1) <= self.tolerance_grad
        self._end_steps(state, losses, active)
        moving = active & ~state["waiting"] & ~converged

        self._remember(state, gradient, moving & (state["taken"] > 0))
        direction = torch.where(moving[:, None], self._direction(state, gradient), state["direction"])
        first = state["taken"] == 0
        length = torch.where(first, (1 / gradient.abs().sum(1)).clamp(max=1.0), 1.0) * self.lr * rate
        slope = (gradient * direction).sum(1)
        stepping = moving & (slope <= -self.tolerance_change)

        self._keep(state, moving, direction=direction, gradient=gradient, loss=losses, length=length)
        state["taken"].add_(moving)
        state["waiting"].logical_or_(moving & ~stepping)
        step = torch.where(stepping[:, None], length[:, None] * direction, 0)
        offset = 0
        for value in values:
            size = value[0].numel()
            value.add_(step[:, offset : offset + size].view_as(value))
            offset += size
        state["inner"].add_(1).remainder_(self.inner)
        return converged & active

    def _end_steps(self, state: OptimizerState, losses: Tensor, active: Tensor) -> None:
        """Begin a step with everybody; inside one, send those to wait whose last change was too small."""
        change = (state["direction"] * state["length"][:, None]).abs().amax(1)
        small = (change <= self.tolerance_change) | ((losses - state["loss"]).abs() < self.tolerance_change)
        begins = state["inner"] == 0
        state["waiting"].logical_or_(small & (state["taken"] > 0) & active).logical_and_(~begins)

    def _remember(self, state: OptimizerState, gradient: Tensor, moving: Tensor) -> None:
        """Store the last change of variables and gradient, where their curvature is positive."""
        change, bend = state["direction"] * state["length"][:, None], gradient - state["gradient"]
        curvature = (change * bend).sum(1)
        stores = moving & (curvature > 1e-10)
        slot = state["stored"].remainder(self.history)
        victims = torch.arange(len(gradient), device=gradient.device)
        for name, fresh in (("changes", change), ("bends", bend)):
            state[name][victims, slot] = torch.where(stores[:, None], fresh, state[name][victims, slot])

        # products[v, i, j] = <change i, bend j>, of which one row and one column are new.
        row, column = _times(state["bends"], change), _times(state["changes"], bend)
        products = state["products"]
        products[victims, slot] = torch.where(stores[:, None], row, products[victims, slot])
        products[victims, :, slot] = torch.where(stores[:, None], column, products[victims, :, slot])
        state["scale"].copy_(torch.where(stores, curvature / bend.square().sum(1), state["scale"]))
        state["stored"].add_(stores)

    def _direction(self, state: OptimizerState, gradient: Tensor) -> Tensor:
        """Multiply the gradient by the inverse Hessian estimate.

        This is the two-loop recursion with its loops written as what they are: substitutions in the triangular matrix
        of products between changes and later bends. All victims and pairs are done in four matrix products.
        """
        age = torch.arange(self.history, device=gradient.device)
        order = (state["stored"][:, None] - 1 - age.flip(0)).remainder(self.history)  # oldest first
        used = age.flip(0) < state["stored"][:, None]
        among = order[:, :, None].expand(-1, -1, self.history)
        products = state["products"].gather(1, among).gather(2, among.transpose(1, 2))
        both = used[:, :, None] & used[:, None, :]
        upper = torch.where(both, products, 0).triu() + torch.diag_embed((~used).to(gradient.dtype))

        def solve(matrix: Tensor, values: Tensor, *, upper: bool) -> Tensor:
            known = torch.where(used, values, 0)[:, :, None]
            solved: Tensor = torch.linalg.solve_triangular(matrix, known, upper=upper)
            return solved.squeeze(2)

        first = solve(upper, _times(state["changes"], gradient).gather(1, order), upper=True)
        slots = torch.zeros_like(first).scatter(1, order, first)
        rest = gradient - _combine(state["bends"], slots)
        scaled = state["scale"][:, None] * rest
        curvature = upper.diagonal(dim1=1, dim2=2)
        wanted = curvature * first - _times(state["bends"], scaled).gather(1, order)
        second = solve(upper.transpose(1, 2), wanted, upper=False)
        slots = torch.zeros_like(second).scatter(1, order, second)
        return -(scaled + _combine(state["changes"], slots))

    def _keep(
        self,
        state: OptimizerState,
        moving: Tensor,
        *,
        direction: Tensor,
        gradient: Tensor,
        loss: Tensor,
        length: Tensor,
    ) -> None:
        for name, fresh in (("direction", direction), ("gradient", gradient), ("loss", loss), ("length", length)):
            state[name].copy_(torch.where(spread(moving, fresh), fresh, state[name]))


def _flatten(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([tensor.flatten(1) for tensor in tensors], 1)


def _times(vectors: Tensor, vector: Tensor) -> Tensor:
    """Multiply (V, m, n) with (V, n) to (V, m)."""
    if vectors.is_cuda:
        return torch.bmm(vectors, vector[:, :, None]).squeeze(2)
    # A CPU is slower at products with one column than at those with one row.
    return torch.bmm(vector[:, None], vectors.transpose(1, 2)).squeeze(1)


def _combine(vectors: Tensor, weights: Tensor) -> Tensor:
    """Add (V, m, n) up with weights (V, m) to (V, n)."""
    return torch.bmm(weights[:, None], vectors).squeeze(1)
