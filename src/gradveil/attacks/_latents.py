"""The latents of a generator: what images they stand for, how likely they are, and how Adam walks among them."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Self, TypeAlias, final

import torch
from torch import Tensor, nn
from typing_extensions import override

from gradveil.attacks._objectives import Distance, cosine_distance, inner, squared_distance, unit
from gradveil.engine import Adam, Minimum, Optimizer
from gradveil.engine.optimizers import OptimizerState
from gradveil.errors import DataError, KnowledgeError
from gradveil.types import Auxiliary, Gradients, Observation

Regularizer: TypeAlias = Literal["kl", "norm"]
"""`kl`: divergence of the mean and variance of a latent's coordinates from 0 and 1; `norm`: its mean square over 2."""


LatentObjective: TypeAlias = Literal["l2", "relative", "cosine"]
"""`l2`: squared distance over the number of tensors; `relative`: over the square of the update's length."""


@dataclass(frozen=True, slots=True)
class LatentSpace:
    """The latents behind the images of an observation.

    Args:
        generator: of the adversary; a copy, in the format of the update and without gradients of weights.
        size: of one latent.
        batch: images of a victim.
        told: whether the generator is told the class.
    """

    generator: nn.Module
    size: int
    batch: int
    told: bool

    @classmethod
    def of(cls, observation: Observation) -> Self:
        """Take the generator of an observation, and see that its images have the right shape."""
        given = (observation.auxiliary or Auxiliary()).generator
        if given is None:
            raise KnowledgeError("generative needs a generator to search in; give Auxiliary(generator=...)")
        size = getattr(given, "latent_size", None)
        if not isinstance(size, int):
            raise KnowledgeError("a generator says how long its latents are; give it an attribute latent_size")
        own = copy.deepcopy(given).to(device=observation.device, dtype=observation.dtype)
        classes = int(getattr(given, "num_classes", 0))
        space = cls(own.eval().requires_grad_(False), size, observation.input_shape[0], classes > 0)
        space._check(observation, classes)
        return space

    def images(self, latents: Tensor, labels: Tensor) -> Tensor:
        """Return (V, B, C, H, W) in [0, 1] for latents (V, B, size) and labels (V, B) or (V, B, K)."""
        flat = latents.flatten(0, 1)
        made: Tensor = self.generator(flat, labels.flatten(0, 1)) if self.told else self.generator(flat)
        return made.view(*latents.shape[:2], *made.shape[1:]).clamp(0, 1)

    def _check(self, observation: Observation, classes: int) -> None:
        if self.told and classes != observation.num_classes:
            raise DataError(f"the generator is told one of {classes} classes, but the model has others; train another")
        latents = torch.zeros((1, self.batch, self.size), dtype=observation.dtype, device=observation.device)
        labels = torch.zeros((1, self.batch), dtype=torch.long, device=observation.device)
        with torch.no_grad():
            made = tuple(self.images(latents, labels).shape[2:])
        if made != observation.input_shape[1:]:
            wanted = f"{observation.input_shape[1:]} like the client's, got {made}"
            raise DataError(f"images of the generator must be {wanted}; train it on images of that shape")


def unlikeliness(latents: Tensor, regularizer: Regularizer) -> Tensor:
    """Return (V,), how far latents (V, B, size) are from standard normal ones.

    Example:
        >>> unlikeliness(torch.tensor([[[1.0, -1.0]], [[3.0, 1.0]]]), "kl")
        tensor([0., 2.])
    """
    if regularizer == "norm":
        return latents.square().mean((1, 2)) / 2
    mean, variance = latents.mean(2), latents.var(2, correction=0).clamp_min(1e-8)
    return (mean.square() + variance - 1 - variance.log()).mean(1) / 2


def latent_distance(target: Gradients, objective: LatentObjective) -> Distance:
    """Return the function that says how far trial updates are from an observed one.

    Example:
        >>> latent_distance((torch.tensor([[3.0, 4.0]]),), "relative")((torch.tensor([[3.0, 9.0]]),))
        tensor([1.])
    """
    if objective == "cosine":
        goal = unit(target)
        return lambda trial: cosine_distance(trial, goal)
    scale = inner(target, target).clamp_min(1e-24) if objective == "relative" else float(len(target))
    return lambda trial: squared_distance(trial, target) / scale


def best_restarts(found: Minimum, restarts: int) -> Minimum:
    """Keep each victim's search of the smallest objective; (V * restarts, ...) to (V, ...)."""
    scores = torch.nan_to_num(found.objective, nan=torch.inf).view(-1, restarts)
    rows = scores.argmin(1) + torch.arange(len(scores), device=scores.device) * restarts
    return Minimum(
        values=tuple(value[rows] for value in found.values),
        objective=found.objective[rows],
        diverged=found.diverged[rows],
        steps=found.steps[rows],
        trace=found.trace[rows],
        captured=found.captured,
    )


def widest_divisor(number: int, *, at_most: int) -> int:
    """Return the largest divisor of a number up to a bound; 1 if the bound is below.

    Example:
        >>> widest_divisor(50, at_most=20), widest_divisor(50, at_most=0)
        (10, 1)
    """
    return max((part for part in range(1, min(number, at_most) + 1) if number % part == 0), default=1)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class RampedAdam(Optimizer):
    """Adam whose step size rises over the first twentieth of the steps and falls along a cosine over the last quarter.

    Args:
        lr: highest step size.
        steps: of the whole run.
    """

    lr: float = 0.1
    steps: int = 2500

    @override
    def start(self, values: Sequence[Tensor]) -> OptimizerState:
        return Adam(lr=self.lr).start(values)

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
        done = (state["count"] + 1) / self.steps
        down = 0.5 - 0.5 * torch.cos(torch.pi * ((1 - done) / 0.25).clamp(0, 1))
        ramp = rate * down * (done / 0.05).clamp(max=1)
        return Adam(lr=self.lr).move(values, gradients, losses, state=state, rate=ramp, active=active)
