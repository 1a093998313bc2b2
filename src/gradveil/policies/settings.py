"""What to search for, checked."""

import math
import typing
from dataclasses import dataclass
from typing import Literal, TypeAlias

from gradveil.errors import SpecError
from gradveil.policies._privacy import Variant
from gradveil.policies.scores import THRESHOLDS
from gradveil.transforms import LONGEST, parse_policy

Method: TypeAlias = Literal["random", "evolution"]
Adversary: TypeAlias = Literal["plain", "aware"]

_LEAST = {
    "length": 1, "top": 1, "images": 1, "rounds": 1, "round_size": 2, "intervals": 1, "batch": 1, "population": 1,
    "policies": 0, "extensions": 0, "first_look": 0, "seed": 0,
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSettings:
    """A search on a budget.

    Args:
        policies: how many are drawn and scored (C_max); no two of them do the same; 0 scores only what is given.
        length: operations of a policy at most (k).
        top: policies wanted (n).
        method: `random` (Algorithm 1), or `evolution`: after a first random population, the rest of the budget goes to
            changed and crossed forms of good policies.
        variant: of both scores, and of how a random policy is drawn: `paper` or `reference`.
        threshold: accuracy score from which on a policy is kept; None takes that of the variant.
        extensions: how often the budget is spent again while fewer than `top` policies pass; Algorithm 1 never stops.
        skip_rejected: leave out the privacy score of policies below the threshold, as Algorithm 1 does.
        adversary: `plain` scores by S_pri as published; `aware` also by what an adversary sees who knows the policy,
            and ranks by the mean of the two.
        first_look: images after which a policy is dropped if it misses the last of the best so far by more than four
            standard errors; 0 scores every policy on all images.
        include: policies to score besides, such as `3-1-7`.
        singles: score every single operation besides.
        images: of the privacy score.
        rounds: of the accuracy score.
        round_size: images of a round.
        intervals: of the way from noise to an image.
        crop_and_flip: crop and mirror before a policy, as published.
        batch: policies scored at once; with evolution also the children of one generation.
        population: first random policies of evolution.
        seed: of policies, signs, crops, noise and networks.
    """

    policies: int = 1500
    length: int = LONGEST
    top: int = 10
    method: Method = "random"
    variant: Variant = "reference"
    threshold: float | None = None
    extensions: int = 0
    skip_rejected: bool = False
    adversary: Adversary = "plain"
    first_look: int = 0
    include: tuple[str, ...] = ()
    singles: bool = False
    images: int = 100
    rounds: int = 10
    round_size: int = 100
    intervals: int = 20
    crop_and_flip: bool = True
    batch: int = 16
    population: int = 100
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in _LEAST.items():
            if getattr(self, name) < least:
                raise SpecError(f"{name} must be at least {least}, got {getattr(self, name)}")
        if self.seed >= 2**63:
            raise SpecError(f"seed must be at least 0 and below 2^63, got {self.seed}")
        if not (self.policies or self.include or self.singles):
            raise SpecError("a search without a budget scores only what is included, got nothing; include policies")
        for name, kind in (("method", Method), ("variant", Variant), ("adversary", Adversary)):
            if getattr(self, name) not in typing.get_args(kind):
                raise SpecError(f"{name} must be {' or '.join(typing.get_args(kind))}, got '{getattr(self, name)}'")
        if not math.isfinite(self.kept_from):
            raise SpecError(f"threshold must be a finite number, got {self.threshold}")
        self._check_included()

    def _check_included(self) -> None:
        for text in self.include:
            if len(parse_policy(text, longest=self.length).policies) > 1:
                raise SpecError(f"a search scores single policies, got the hybrid {text}; include its parts")

    @property
    def kept_from(self) -> float:
        """The threshold in force."""
        return THRESHOLDS[self.variant] if self.threshold is None else self.threshold
