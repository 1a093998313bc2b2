"""Generative Gradient Leakage."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal, final

import torch
from torch import Tensor
from typing_extensions import override

from gradveil.attacks._base import Attack
from gradveil.attacks._evolution import evolve
from gradveil.attacks._labels import LabelMethod, with_labels
from gradveil.attacks._latents import (
    LatentObjective,
    LatentSpace,
    RampedAdam,
    Regularizer,
    best_restarts,
    latent_distance,
    unlikeliness,
    widest_divisor,
)
from gradveil.attacks._reapplied import reapplied, shown_to_the_model, unchanged
from gradveil.engine import Minimum, Runtime, Variable, matching, minimize
from gradveil.streams import Streams
from gradveil.types import Card, Knowledge, Observation, Paper, Reconstruction

_AT_ONCE = 64  # trial gradients in memory together


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Generative(Attack):
    """Search the latents of a generator for images whose gradient, defended as the client's was, is the shared one.

    Whatever the update says, the guess is a plausible image: judge it beside the same attack on a random update.

    Args:
        optimizer: `cma-es`, which needs no gradient through the defense, or `adam`.
        steps: generations or steps of Adam; None for the published 500 and 2500.
        population: candidates of a generation.
        sigma: standard deviation of the first generation, around the latent zero.
        lr: highest step size of Adam.
        objective: `l2` over the number of tensors, as published, `relative` to the update's square, or `cosine`.
        regularizer: what keeps latents likely, `kl` or `norm`.
        weight: of the regularizer.
        defense: `reapplied` to trial updates, as known or as the update shows it, or `ignored`.
        restarts: searches per victim; the one of the smallest objective is kept.
        labels: how unknown labels are read off the update.
    """

    paper: ClassVar[Paper] = Paper(
        title="Auditing Privacy Defenses in Federated Learning via Generative Gradient Leakage",
        authors="Li, Zhang, Liu, Liu",
        year=2022,
        url="https://arxiv.org/abs/2203.15696",
    )
    requires: ClassVar[Knowledge] = Knowledge.AUXILIARY
    threat: ClassVar[str] = "D"
    batches: ClassVar[str] = "1 to a few"
    card: ClassVar[Card] = Card(
        fails="private images that the generator cannot make are replaced by plausible others; batches of more than a "
        "few images, whose latents are searched together; labels that were read wrongly",
        costs="population times steps gradients per victim and restart by CMA-ES, two backward passes per step by Adam",
        suggested="adam for smooth networks, cma-es under sign or quantization; objective=relative for short updates",
        interacts="a generator trained on the victims' own images would be an oracle; noise as strong as the gradient "
        "and defenses that change the image itself weaken it",
    )

    optimizer: Literal["cma-es", "adam"] = "cma-es"
    steps: int | None = None
    population: int = 50
    sigma: float = 1.0
    lr: float = 0.1
    objective: LatentObjective = "l2"
    regularizer: Regularizer = "kl"
    weight: float = 0.1
    defense: Literal["reapplied", "ignored"] = "reapplied"
    restarts: int = 1
    labels: LabelMethod = "idlg"

    def __post_init__(self) -> None:
        for name, least in {"steps": 1, "population": 4, "restarts": 1, "weight": 0}.items():
            value = getattr(self, name)
            if value is not None and value < least:
                raise ValueError(f"{name} must be at least {least}, got {value}")
        if self.sigma <= 0 or self.lr <= 0:
            raise ValueError(f"sigma and lr must be above 0, got {self.sigma} and {self.lr}")

    @override
    def run(self, observation: Observation, *, streams: Streams, runtime: Runtime) -> Reconstruction:
        seen = with_labels(observation, self.labels)
        assert seen.labels is not None
        space, many = LatentSpace.of(seen), streams.repeat(self.restarts)
        search = self._evolve if self.optimizer == "cma-es" else self._descend
        found = best_restarts(search(seen.repeat(self.restarts), space, many, runtime), self.restarts)
        latents = found.values[0].view(seen.victims, space.batch, space.size)
        private = space.images(latents, seen.labels)
        return Reconstruction(
            inputs=private,
            labels=seen.labels,
            protected=shown_to_the_model(private, seen) if seen.defenses else None,
            objective=found.objective,
            diverged=found.diverged,
            steps=found.steps,
            trace=found.trace,
            captured=found.captured,
            details={"latents": latents},
        )

    def _evolve(self, seen: Observation, space: LatentSpace, streams: Streams, runtime: Runtime) -> Minimum:
        width = widest_divisor(self.population, at_most=_AT_ONCE // seen.victims)
        value = self._value(seen.repeat(width), space, streams.repeat(width), runtime)

        def score(candidates: Tensor) -> Tensor:
            parts = candidates.unflatten(2, (space.batch, space.size)).split(width, 1)
            return torch.cat([value(part.flatten(0, 1)).view(-1, width) for part in parts], 1)

        return evolve(
            score,
            seen.update[0].new_zeros(seen.victims, space.batch * space.size),
            sigma=self.sigma,
            population=self.population,
            generations=self.steps or 500,
            streams=streams,
            runtime=runtime,
        )

    def _descend(self, seen: Observation, space: LatentSpace, streams: Streams, runtime: Runtime) -> Minimum:
        value, steps = self._value(seen, space, streams, runtime), self.steps or 2500
        start = streams.normal("start", (space.batch, space.size), like=seen.update[0])
        optimizer, variables = RampedAdam(lr=self.lr, steps=steps), [Variable(start=start)]
        return minimize(lambda v: value(v[0]), variables, optimizer=optimizer, steps=steps, runtime=runtime)

    def _value(
        self, seen: Observation, space: LatentSpace, streams: Streams, runtime: Runtime
    ) -> Callable[[Tensor], Tensor]:
        """Return the objective, from latents (V, B, size) to (V,)."""
        match, labels = matching(seen, precision=runtime.precision), seen.labels
        change = reapplied(seen, streams=streams) if self.defense == "reapplied" else unchanged
        distance = latent_distance(match.target, self.objective)
        assert labels is not None

        def value(latents: Tensor) -> Tensor:
            shown = shown_to_the_model(space.images(latents, labels), seen)
            loss = distance(change(match.gradients(shown, labels)))
            return loss + self.weight * unlikeliness(latents, self.regularizer)

        return value
