"""The standard adversary beside the informed one: what knowing of a defense is worth."""

from collections.abc import Sequence
from dataclasses import dataclass

from gradveil.report.tables import Row, worst


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """One list of defenses on one network.

    Args:
        defense: in one line.
        network: model and state.
        standard: the worst cell of the attacks that do not know of the defenses, None if there is none.
        adaptive: the worst cell of those that do, None if none was run.
        verdict: the worse of the two, which decides; None if neither has one.
        words: why there is no informed adversary, or which defense has none; empty if each has one.
    """

    defense: str
    network: str
    standard: Row | None
    adaptive: Row | None
    verdict: Row | None
    words: str


def pairs(rows: Sequence[Row]) -> list[Pair]:
    """Put the standard and the informed result of every defended cell side by side.

    Example:
        >>> pairs([])
        []
    """
    groups: dict[tuple[object, ...], list[Row]] = {}
    for row in rows:
        if row.defenses:
            groups.setdefault((row.model, row.state, row.defenses), []).append(row)
    return [_pair(group) for group in groups.values()]


def _pair(group: Sequence[Row]) -> Pair:
    first = group[0]
    return Pair(
        defense=first.defense,
        network=f"{first.model}, {first.state}",
        standard=_worst([row for row in group if not row.adaptive]),
        adaptive=_worst([row for row in group if row.adaptive]),
        verdict=worst(group),
        words=_words(first, adapted=any(row.adaptive for row in group)),
    )


def _worst(rows: Sequence[Row]) -> Row | None:
    """Return the worst of some rows; a failed one if there is no other."""
    return worst(rows) or next(iter(rows), None)


def _words(row: Row, *, adapted: bool) -> str:
    if not row.informed:
        return "" if adapted else "no informed adversary was asked for"
    missing = {name: row.reasons.get(name, "") for name, attack in row.informed.items() if not attack}
    several = len(row.informed) > 1
    return "; ".join(f"none run for {name}: {why}" if several else f"none run: {why}" for name, why in missing.items())
