"""L-BFGS for stacks of victims: history, step and stopping are each victim's own."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor
from typing_extensions import override

from gradveil.engine.optimizers import Optimizer, OptimizerState, spread


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
            "changes": zeros(self.history, victims, size),
            "bends": zeros(self.history, victims, size),
            "curvature": torch.ones(self.history, victims, device=flat.device, dtype=flat.dtype),
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
        gradient = _flatten(gradients)
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
        for name, fresh in (("changes", change), ("bends", bend), ("curvature", curvature)):
            old = state[name][slot, victims]
            state[name][slot, victims] = torch.where(spread(stores, fresh), fresh, old)
        scale = curvature / bend.square().sum(1)
        state["scale"].copy_(torch.where(stores, scale, state["scale"]))
        state["stored"].add_(stores)

    def _direction(self, state: OptimizerState, gradient: Tensor) -> Tensor:
        """Multiply the gradient by the inverse Hessian estimate: the two-loop recursion, newest pair first."""
        stored = state["stored"].clamp(max=self.history)
        # A captured graph cannot look at the counts, so it runs through the whole history.
        depth = self.history if gradient.is_cuda else int(stored.max())
        victims = torch.arange(len(gradient), device=gradient.device)
        q, weights = -gradient, []
        for age in range(depth):
            slot, used = (state["stored"] - 1 - age).remainder(self.history), age < stored
            ratio = (state["changes"][slot, victims] * q).sum(1) / state["curvature"][slot, victims]
            weights.append(torch.where(used, ratio, 0))
            q = q - weights[-1][:, None] * state["bends"][slot, victims]
        q = q * state["scale"][:, None]
        for age in reversed(range(depth)):
            slot, used = (state["stored"] - 1 - age).remainder(self.history), age < stored
            back = (state["bends"][slot, victims] * q).sum(1) / state["curvature"][slot, victims]
            q = q + torch.where(used, weights[age] - back, 0)[:, None] * state["changes"][slot, victims]
        return q

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
