"""Epsilon, from an accountant and from nowhere else."""

import importlib
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from gradveil.defenses import DPSGD, CentralDP, Defense, LocalDP
from gradveil.errors import GradVeilError

Accountant: TypeAlias = Literal["rdp", "prv"]
_CLASSES = {"rdp": "RDPAccountant", "prv": "PRVAccountant"}


class AccountingError(GradVeilError):
    """An epsilon that nobody can compute."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Guarantee:
    """Differential privacy in numbers.

    Args:
        epsilon: at most so much.
        delta: but for this probability.
        level: what is protected, one sample or the whole update of one client.
        accountant: who computed epsilon.
        noise_multiplier: standard deviation of the noise in units of the largest change that one protected unit makes.
        sampling_rate: chance of a unit to take part in a step, drawn independently (Poisson sampling).
        steps: in which it could take part.
    """

    epsilon: float
    delta: float
    level: Literal["sample", "client"]
    accountant: Accountant
    noise_multiplier: float
    sampling_rate: float
    steps: int

    def __str__(self) -> str:
        sampling = f"Poisson sampling at {self.sampling_rate:g}" if self.sampling_rate < 1 else "no sampling"
        return (
            f"ε = {self.epsilon:.3g} at δ = {self.delta:g} for one {self.level} "
            f"({self.accountant.upper()} accountant, {self.steps} steps, {sampling})"
        )


def account(
    defense: Defense, *, steps: int, delta: float, sampling_rate: float = 1.0, accountant: Accountant = "prv"
) -> Guarantee:
    """Compute the epsilon of a training that uses a defense in every step.

    For `DPSGD` the unit is a sample, added or removed, and steps are local ones over all rounds; batches must be drawn
    by Poisson sampling. For `LocalDP` the unit is a client's update, replaced by any other one, which can be twice
    the norm away; steps are the rounds it takes part in, and sampling does not help, since the server sees who sends.
    For `CentralDP` it is a client's update, added or removed, in the eyes of everybody but the server; clients must be
    drawn by Poisson sampling and count equally in the mean.

    Args:
        defense: with noise and a norm.
        steps: how often it was used.
        delta: the probability that the bound fails.
        sampling_rate: of samples, or of clients for `CentralDP`; above 0 and at most 1.
        accountant: `rdp` (Rényi) or `prv` (privacy loss variables, tighter); both are those of Opacus.
    """
    level, multiplier = _unit(defense, sampling_rate)
    if steps < 1 or not 0 < delta < 1 or not 0 < sampling_rate <= 1:
        raise AccountingError(
            "an accountant needs at least 1 step, delta between 0 and 1 and a sampling rate above 0 and at most 1, "
            f"got {steps}, {delta} and {sampling_rate}"
        )
    judge = _accountant(accountant)
    judge.history = [(multiplier, sampling_rate, steps)]
    return Guarantee(
        epsilon=float(judge.get_epsilon(delta=delta)),
        delta=delta,
        level=level,
        accountant=accountant,
        noise_multiplier=multiplier,
        sampling_rate=sampling_rate,
        steps=steps,
    )


def _unit(defense: Defense, sampling_rate: float) -> tuple[Literal["sample", "client"], float]:
    """Return what is protected, and the noise in units of the largest change that it makes."""
    if not isinstance(defense, DPSGD | LocalDP | CentralDP):
        raise AccountingError(
            f"{type(defense).__name__} bounds no one's influence, so that it has no epsilon; "
            "use DPSGD, LocalDP or CentralDP"
        )
    if defense.noise_multiplier == 0:
        raise AccountingError(
            f"{type(defense).__name__} adds no noise, so that it has no epsilon; set noise_multiplier"
        )
    if isinstance(defense, DPSGD):
        return "sample", defense.noise_multiplier
    if isinstance(defense, CentralDP):
        return "client", defense.noise_multiplier
    if sampling_rate != 1:
        raise AccountingError(
            f"the server sees who takes part, so that LocalDP needs a sampling rate of 1, got {sampling_rate}; "
            "count the rounds of one client as steps"
        )
    return "client", defense.noise_multiplier / 2


def _accountant(name: Accountant) -> Any:
    try:
        module = importlib.import_module("opacus.accountants")
    except ImportError:
        raise AccountingError(
            "epsilon needs the accountants of opacus, which is not installed; install the extra `gradveil[dp]`"
        ) from None
    return getattr(module, _CLASSES[name])()
