"""Who attacks a defense that is known: the adversary that it names, with the settings that a spec gives."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gradveil.attacks import Attack, attacks
from gradveil.defenses import Defense, defenses
from gradveil.registry import parse_settings
from gradveil.types import Knowledge

_BUDGET = ("steps", "restarts")


@dataclass(frozen=True, slots=True, kw_only=True)
class Informed:
    """The informed adversary of one defense.

    Args:
        defense: registry name.
        attack: spec string; empty if nobody is to be run.
        reason: why it is this one, or why there is none.
    """

    defense: str
    attack: str
    reason: str


def informed(
    protections: Sequence[Defense], *, settings: Sequence[str] = (), knowledge: Knowledge = Knowledge.NOTHING
) -> tuple[Informed, ...]:
    """Find the informed adversary of each defense.

    Args:
        protections: the defenses of a client.
        settings: attacks as spec strings, such as `inverting-gradients:steps=300`; an adversary takes its settings
            from the first of its name, or else its budget (steps and restarts) from the first that names one; those
            that its defense asks for stand over both.
        knowledge: granted beside the defenses; an adversary that needs more is left out.

    Example:
        >>> from gradveil.defenses import Clipping
        >>> informed([Clipping()], settings=["inverting-gradients:steps=7"])[0].attack
        'bayes-optimal:steps=7'
    """
    return tuple(_informed(defense, settings, knowledge | Knowledge.DEFENSES) for defense in protections)


def build_informed(text: str, settings: Sequence[str]) -> Attack:
    """Make the attack that a defense names, with the settings or the budget that are given for attacks."""
    name, _, own = text.partition(":")
    same = [spec for spec in settings if spec.partition(":")[0].strip() == name.strip()]
    base = attacks.build(same[0]) if same else _within_budget(attacks.build(name), settings)
    return _with(base, parse_settings(type(base), own, f"attack {name}"))


def _within_budget(attack: Attack, settings: Sequence[str]) -> Attack:
    """Give an attack the steps and restarts that the first attack with such a setting was given."""
    for spec in settings:
        given = parse_settings(attacks.get(spec.partition(":")[0].strip()), spec.partition(":")[2], f"attack {spec}")
        budget = {name: given[name] for name in _BUDGET if name in given and hasattr(attack, name)}
        if budget:
            return _with(attack, budget)
    return attack


def _with(attack: Attack, changes: dict[str, Any]) -> Attack:
    made: Attack = dataclasses.replace(attack, **changes)  # type: ignore[type-var]
    return made


def _informed(defense: Defense, settings: Sequence[str], knowledge: Knowledge) -> Informed:
    named, reason, name = defense.adversary.attack, defense.adversary.reason, defenses.name_of(defense)
    if not named:
        return Informed(defense=name, attack="", reason=reason)
    attack = build_informed(named, settings)
    missing = ", ".join((attack.requires & ~knowledge).names())
    if missing:
        why = f"{attacks.name_of(attack)} needs {missing} too, which this audit does not grant"
        return Informed(defense=name, attack="", reason=why)
    return Informed(defense=name, attack=attacks.describe(attack), reason=reason)
