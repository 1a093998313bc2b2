"""Attacking the same victims under many settings: what can be in one stack is."""

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol, runtime_checkable

from gradveil.attacks._base import Attack
from gradveil.attacks._labels import LabelRule, with_labels
from gradveil.attacks._matching import Plan, match_each
from gradveil.attacks._restarts import take
from gradveil.attacks._stacks import groups
from gradveil.engine import Runtime, in_chunks
from gradveil.streams import Streams
from gradveil.types import Observation, Reconstruction


@runtime_checkable
class Matcher(Protocol):
    """An attack that is a plan of gradient matching; several of them can run in one stack."""

    def plan(self) -> Plan:
        """Return the settings in full."""

    def label_rule(self, observation: Observation) -> LabelRule:
        """Return how labels are found that the adversary does not know."""


def attack_each(
    settings: Sequence[Attack], observation: Observation, *, streams: Streams, runtime: Runtime | None = None
) -> list[Reconstruction]:
    """Attack the same victims once under every setting.

    Each guess is the one that its attack alone would make. Plans of gradient matching that agree in `Plan.shared` run
    as one stack of settings times victims; other attacks run one after the other.

    Args:
        settings: the attacks.
        observation: of V victims.
        streams: the attacks' randomness, the same for each.
        runtime: as for a single attack; a chunk counts settings times victims.

    Returns:
        One reconstruction of V victims per setting, in order.
    """
    runtime, streams = runtime or Runtime(), streams.bind(observation.victims)
    found: dict[int, Reconstruction] = {}
    for number, rows in enumerate(groups([_kind(attack, observation) for attack in settings]).values()):
        some, part = [settings[row] for row in rows], runtime.named(f"settings-{number}")
        guesses = _stacked(some, observation, streams=streams, runtime=part)
        found |= dict(zip(rows, guesses, strict=True))
    return [found[row] for row in range(len(settings))]


def _kind(attack: Attack, observation: Observation) -> tuple[object, ...]:
    """Return what attacks of one stack have in common."""
    if isinstance(attack, Matcher) and not attack.requires & ~observation.knowledge:
        return attack.label_rule(observation), *attack.plan().shared
    return (attack,)


def _stacked(
    settings: Sequence[Attack], observation: Observation, *, streams: Streams, runtime: Runtime
) -> list[Reconstruction]:
    """Run settings of one kind together."""
    first, victims = settings[0], observation.victims
    if len(settings) == 1 or not isinstance(first, Matcher):
        return [attack(observation, streams=streams, runtime=runtime) for attack in settings]
    model = copy.deepcopy(observation.model).requires_grad_(False).to(observation.device)
    own = replace(with_labels(observation, first.label_rule(observation)), model=model)
    plans = [attack.plan() for attack in settings if isinstance(attack, Matcher)]
    # Settings that differ in the choice between restarts alone are one search.
    searches = groups([replace(plan, choice="objective") for plan in plans])
    choices = {plan: [plans[number].choice for number in numbers] for plan, numbers in searches.items()}
    # Memory is measured on the first rows, so the searches that take the most of it come first.
    order = sorted(searches, key=lambda plan: -plan.restarts)
    rows = [(plan, victim) for plan in order for victim in range(victims)]

    def run(part: slice, runtime: Runtime) -> Reconstruction:
        chosen, who = [plan for plan, _ in rows[part]], [victim for _, victim in rows[part]]
        rules = [choices[plan] for plan in chosen]
        found = match_each(own.select(who), chosen, streams=streams.select(who), runtime=runtime, choices=rules)
        return replace(found, trace=None)  # searches of different lengths have traces of different lengths

    with runtime.numerics():
        parts, chunk = in_chunks(run, len(rows), device=own.device, runtime=runtime)
    guess = replace(Reconstruction.join(parts), chunk=chunk)
    places = iter(range(len(guess.objective)))
    owners: dict[int, list[int]] = {number: [] for number in range(len(plans))}
    for plan, _ in rows:
        for number in searches[plan]:
            owners[number].append(next(places))
    return [take(guess, owners[number]) for number in range(len(plans))]
