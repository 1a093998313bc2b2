"""Going on from an earlier search: which of its scores hold, and what an informed adversary has yet to look at."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from gradveil.errors import SpecError
from gradveil.policies._proposals import given_policies, named_policies, random_policies
from gradveil.policies._scorers import Scorers
from gradveil.policies.result import (
    Origin,
    ScoredPolicy,
    SearchRecord,
    build_hybrid,
    no_worse_than_none,
    passing,
    ranked,
)
from gradveil.policies.settings import SearchSettings
from gradveil.transforms import NO_POLICY, Hybrid, parse_policy

_SAME: Final = ("dataset", "model", "precision", "training")
_SAME_SETTINGS: Final = (
    "variant", "images", "rounds", "round_size", "intervals", "crop_and_flip", "length", "seed",
)  # fmt: skip
_ROUNDING: Final = 1e-3  # by which the same score may differ between devices
_PARTS: Final = 2  # of a hybrid


def take_over(
    record: SearchRecord, earlier: SearchRecord, settings: SearchSettings, *, channels: int = 3
) -> SearchRecord:
    """Begin a search with everything that an earlier one scored.

    Left out, to be scored anew when their turn comes, are policies that were dropped after a first look, those without
    the privacy score that this search wants, and those with operations that do nothing to these images. A policy is
    `given` if this search gives it, `random` if this search would draw it, and else what it was. A plain search forgets
    what an informed adversary saw.

    Args:
        record: of this search, with nothing scored.
        earlier: finished or not; its dataset, networks and every setting that changes a score must be the same.
        settings: of this search.
        channels: of its images.
    """
    _check(record.spec, earlier.spec)
    given = given_policies(settings, channels=channels)
    budget = settings.policies * (1 + settings.extensions)
    wanted = budget if settings.method == "random" else min(budget, settings.population)
    drawn = random_policies(settings, wanted, exclude=given, channels=channels)
    origins: dict[str, Origin] = {str(policy): "random" for policy in drawn}
    origins.update({str(policy): "given" for policy in given})
    moved = [
        replace(entry, origin=origins.get(entry.policy, entry.origin))
        for entry in earlier.scored
        if _canonical(entry, channels)
    ]
    kept = [entry for entry in moved if _holds(entry, settings, given=origins.get(entry.policy) == "given")]
    if settings.adversary == "plain":
        kept = [replace(entry, aware=None, aware_error=None, undone=None, margin=None) for entry in kept]
    return replace(record, scored=kept, taken_over=len(kept), scored_with=earlier.scored_with)


def check_networks(scorers: Scorers, record: SearchRecord) -> None:
    """Refuse to go on with a network or images other than those that gave the scores so far.

    Where the record does not say what they were, no policy is scored once more, which tells most of them apart: other
    images and other networks move its S_pri by more than rounding does, unless they are very much alike.

    Args:
        scorers: of this search.
        record: with what was scored so far, or taken over.
    """
    found = [one.privacy for one in record.scored if one.policy == str(NO_POLICY) and one.privacy is not None]
    same = record.scored_with == scorers.fingerprint
    if found and not record.scored_with:
        same = abs(float(scorers.privacy([Hybrid((NO_POLICY,))])[0].double().mean()) - found[0]) <= _ROUNDING
    if record.scored and not same:
        raise SpecError(
            "the scores so far are of another semi-trained network or other images; name the folder of that network by "
            "--networks, or search anew in another folder"
        )


def next_to_inform(
    scored: Sequence[ScoredPolicy], settings: SearchSettings, *, channels: int = 3
) -> list[ScoredPolicy]:
    """Choose the next stack that an informed adversary looks at; empty where no other policy can be among the best.

    First come no policy and those included, with which the others are compared, and the single operations that pass if
    they were asked for. The rest, without those that score worse than no policy, follows by rising S_pri up to twice
    the exposure of the last of the best, and of the hybrid's parts: an exposure is never below half of S_pri, so both
    come out as if all had been looked at.
    """
    if settings.adversary == "plain":
        return []
    unknown = [entry for entry in scored if entry.aware is None and entry.privacy is not None and not entry.dropped]
    able = passing(unknown, threshold=settings.kept_from)
    named, given = (
        {str(policy) for policy in some(settings, channels=channels)} for some in (named_policies, given_policies)
    )
    compared = [entry for entry in unknown if entry.policy in named or (entry.policy in given and entry in able)]
    if compared:
        return compared[: settings.batch]
    useful = no_worse_than_none(able, scored)
    order = sorted(useful, key=lambda entry: (entry.privacy, entry.policy))[: settings.batch]
    limit = _limit(scored, settings)
    return [entry for entry in order if entry.privacy is not None and entry.privacy / 2 <= limit]


def filled_in(scored: Sequence[ScoredPolicy], looked_at: Sequence[ScoredPolicy]) -> list[ScoredPolicy]:
    """Put entries in the places of those of the same policy."""
    new = {entry.policy: entry for entry in looked_at}
    return [new.get(entry.policy, entry) for entry in scored]


def differences(here: Mapping[str, Any], there: Mapping[str, Any]) -> list[str]:
    """Name what is said here and otherwise there, down to single settings.

    Example:
        >>> differences({"model": "lenet", "training": {"lr": 0.1}}, {"model": "lenet", "training": {"lr": 0.2}})
        ['training lr 0.2 where this one has 0.1']
    """
    found = []
    for name, now in here.items():
        was = there.get(name)
        if isinstance(now, Mapping) and isinstance(was, Mapping):
            inside = differences(now, was)
            found += inside if name == "search" else [f"{name} {each}" for each in inside]
        elif now != was:
            found.append(f"{name} {was} where this one has {now}")
    return found


def _check(here: Mapping[str, Any], there: Mapping[str, Any]) -> None:
    """Refuse an earlier search whose scores mean something else."""
    matters = {
        **{name: here[name] for name in _SAME},
        "search": {name: here["search"][name] for name in _SAME_SETTINGS},
    }
    different = differences(matters, there)
    if different:
        raise SpecError(
            f"scores of an earlier search hold only where they mean the same, but it has {'; '.join(different)}; "
            "repeat what it was told, or search without it"
        )


def _canonical(entry: ScoredPolicy, channels: int) -> bool:
    policy = parse_policy(entry.policy, longest=len(entry.policy)).policies[0]
    return policy == policy.canonical(channels=channels)


def _holds(entry: ScoredPolicy, settings: SearchSettings, *, given: bool) -> bool:
    """Tell whether an earlier entry says all that this search wants to know from a plain adversary."""
    if entry.privacy is None:
        return settings.skip_rejected and entry.accuracy < settings.kept_from and not given
    return not entry.dropped


def _limit(scored: Sequence[ScoredPolicy], settings: SearchSettings) -> float:
    """Return the exposure up to which a policy may still be among the best or in the hybrid."""
    known = ranked([entry for entry in scored if entry.aware is not None], threshold=settings.kept_from)
    order = [entry for entry in known if entry.policy != str(NO_POLICY)]
    if len(order) < settings.top:
        return math.inf
    hybrid = build_hybrid([entry.policy for entry in order], size=_PARTS)
    parts = {str(policy) for policy in hybrid.policies}
    if len(parts) < _PARTS:
        return math.inf
    return max(order[settings.top - 1].exposure, *(entry.exposure for entry in order if entry.policy in parts))
