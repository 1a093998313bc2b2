"""Which policies to score next: random ones, or changed forms of good ones."""

from collections.abc import Sequence
from functools import cache
from typing import Final

from gradveil.policies.result import ScoredPolicy
from gradveil.policies.settings import SearchSettings
from gradveil.streams import Streams
from gradveil.transforms import NO_POLICY, OPERATIONS, Policy, canonical_index, draw_policies, parse_policy

_TOURNAMENT: Final = 5
_ATTEMPTS: Final = 50


def given_policies(settings: SearchSettings, *, channels: int = 3) -> tuple[Policy, ...]:
    """List what is scored besides the budget, each function once: no policy at all, those included, single ones."""
    singles = [Policy((code,)) for code in functions(channels)] if settings.singles else []
    return tuple(dict.fromkeys([*named_policies(settings, channels=channels), *singles]))


def named_policies(settings: SearchSettings, *, channels: int = 3) -> tuple[Policy, ...]:
    """List no policy at all and those included, each function once."""
    wanted = [parse_policy(text, longest=settings.length).policies[0] for text in settings.include]
    return tuple(dict.fromkeys(policy.canonical(channels=channels) for policy in (NO_POLICY, *wanted)))


@cache
def functions(channels: int) -> tuple[int, ...]:
    """List the operations that change images of so many channels, each function once.

    Example:
        >>> len(functions(3)), len(functions(1))
        (27, 24)
    """
    changing = [code for code, operation in enumerate(OPERATIONS) if not operation.idle(channels)]
    return tuple(code for code in changing if canonical_index(code) == code)


@cache
def random_policies(
    settings: SearchSettings, count: int, *, exclude: tuple[Policy, ...] = (), channels: int = 3
) -> tuple[Policy, ...]:
    """Draw distinct policies in canonical form; more of them begin with the same ones.

    Args:
        settings: seed, length and variant.
        count: how many; fewer come where there are no more.
        exclude: policies that are scored anyway.
        channels: of the images.
    """
    taken = dict.fromkeys(exclude)
    kept, drawn = len(taken), 0
    wanted = min(count + kept, _different(settings.length, channels))
    while len(taken) < wanted:
        keys = tuple((number,) for number in range(drawn, drawn + count))
        streams = Streams(seed=settings.seed, purpose="search/policies", keys=keys)
        for policy in draw_policies(streams, length=settings.length, sampling=settings.variant):
            if len(taken) < wanted:
                taken.setdefault(policy.canonical(channels=channels))
        drawn += count
    return tuple(taken)[kept:]


def evolved_policies(
    settings: SearchSettings, history: Sequence[ScoredPolicy], count: int, *, channels: int = 3
) -> list[Policy]:
    """Change and cross good policies into new ones; a function of the seed and of what was scored so far.

    Parents win a tournament of five: who passes the threshold beats who does not; then the more private wins among
    those that pass, and the higher accuracy score among the others.
    """
    scored = [(_fitness(entry, settings.kept_from), _parsed(entry, settings)) for entry in history]
    seen = {policy for _, policy in scored}
    order = [policy for _, policy in sorted(scored, key=lambda pair: pair[0])]
    children: list[Policy] = []
    for number in range(len(history), len(history) + count):
        for attempt in range(_ATTEMPTS):
            streams = Streams(seed=settings.seed, purpose="search/evolution", keys=((number, attempt),))
            child = _child(order, settings.length, functions(channels), streams).canonical(channels=channels)
            if child not in seen:
                seen.add(child)
                children.append(child)
                break
    return children


def _different(length: int, channels: int) -> int:
    """Count the policies that differ in canonical form, the idle one among them."""
    total: int = 1 + sum(len(functions(channels)) ** places for places in range(1, length + 1))
    return total


def _fitness(entry: ScoredPolicy, threshold: float) -> tuple[bool, float]:
    """Return what is smaller for a better policy."""
    if entry.accuracy < threshold or entry.privacy is None:
        return True, -entry.accuracy
    return False, entry.exposure


def _parsed(entry: ScoredPolicy, settings: SearchSettings) -> Policy:
    return parse_policy(entry.policy, longest=settings.length).policies[0]


def _child(order: Sequence[Policy], length: int, known: Sequence[int], streams: Streams) -> Policy:
    """Cross two parents or change one, each in half of the cases."""
    winners = streams.integers("tournament", len(order), (2, _TOURNAMENT))[0].amin(1).tolist()
    first, second = (order[winner].operations for winner in winners)
    choice, place, code, cut = streams.integers("change", 1 << 30, (4,))[0].tolist()
    here, new = place % len(first), (known[code % len(known)],)
    forms = {
        0: first[:here] + new + first[here + 1 :],
        1: first[:here] + new + first[here:],
        2: first[:here] + first[here + 1 :] or new,
    }
    crossed = first[: 1 + here] + second[cut % len(second) :]
    return Policy((crossed if choice % 6 >= 3 else forms[choice % 6])[:length])
