"""The saved result of a search: every policy with its scores, the best, and the hybrid made of them."""

import dataclasses
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

from gradveil.errors import RecordError, SpecError
from gradveil.record import Run
from gradveil.storage import write_atomically
from gradveil.transforms import LONGEST, NO_POLICY, Hybrid, parse_policy, share_functions

FILE = "search.json"
FORMAT = 1
_NUMBERS: Final = ("accuracy_error", "privacy", "privacy_error", "aware", "aware_error", "undone", "margin")
Origin: TypeAlias = Literal["given", "random", "evolved"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredPolicy:
    """One policy of a search.

    Args:
        policy: in canonical form.
        accuracy: S_acc; higher leaves more to learn.
        accuracy_error: its standard error over rounds, None for one round.
        privacy: S_pri; lower is more private. None where the policy was rejected before it was scored.
        privacy_error: its standard error over images.
        origin: given, random or evolved.
        dropped: after a first look at a few images that showed it cannot be among the best; the privacy score is an
            estimate from those.
        aware: S_pri of an adversary who knows the policy, times the share of the image it can undo; the mean of both
            over images, None unless such an adversary was asked for.
        aware_error: its standard error over images.
        undone: share of a private image that comes back from its transformed form, from 0 to 1.
        margin: PSNR of the transformed image against the private one, minus that of a grey square, in dB.
    """

    policy: str
    accuracy: float
    accuracy_error: float | None = None
    privacy: float | None = None
    privacy_error: float | None = None
    origin: Origin = "random"
    dropped: bool = False
    aware: float | None = None
    aware_error: float | None = None
    undone: float | None = None
    margin: float | None = None

    @property
    def exposure(self) -> float:
        """What the adversaries that looked at it see on average; infinite where none did.

        Not what the worse of them sees: among policies that one adversary sees equally well, the one counts that hides
        more from the other. An exposure to both is at least half of S_pri.
        """
        seen = [score for score in (self.privacy, self.aware) if score is not None]
        return sum(seen) / len(seen) if seen else math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchRecord:
    """A search, finished or under way.

    Args:
        spec: everything that is needed to run it again.
        status: `running` until the budget is spent.
        threshold: accuracy score from which on a policy is kept.
        scored: every policy, in the order they were scored.
        best: those that pass, most private first, at most as many as were wanted; no policy is none of them.
        hybrid: the best ones without a common function, joined; empty where none pass.
        passed: share of the drawn policies that pass; policies that were given do not count.
        seconds: by stage, over all resumed runs.
        run: date, timings, device, versions; None while running.
        taken_over: how many of the policies have their scores from an earlier search.
        scored_with: tells apart semi-trained networks and images; empty in records that do not say.
        format: of this file.
    """

    spec: dict[str, Any]
    status: Literal["running", "done"]
    threshold: float
    scored: list[ScoredPolicy]
    best: list[ScoredPolicy] = field(default_factory=list)
    hybrid: str = ""
    passed: float = 0.0
    seconds: dict[str, float] = field(default_factory=dict)
    run: Run | None = None
    taken_over: int = 0
    scored_with: str = ""
    format: int = FORMAT

    @property
    def defense(self) -> str:
        """The hybrid as a defense, in the way a spec names it; empty where none pass."""
        longest = max(len(policy.split("-")) for policy in self.hybrid.split("+"))
        allowed = f",longest={longest}" if longest > LONGEST else ""
        return f"transform-policy:policy={self.hybrid}{allowed}" if self.hybrid else ""


def write(record: SearchRecord, folder: Path) -> None:
    """Write `search.json`, whole or not at all."""
    write_atomically(folder / FILE, json.dumps(dataclasses.asdict(record), indent=1, allow_nan=False).encode())


def read(folder: Path) -> SearchRecord:
    """Read a search from its folder or file."""
    file = folder / FILE if folder.is_dir() else folder
    try:
        content = json.loads(file.read_text())
        if content.get("format") != FORMAT:
            raise RecordError(f"{file} has format {content.get('format')}, this version reads {FORMAT}; search again")
        lists = {name: [ScoredPolicy(**entry) for entry in content[name]] for name in ("scored", "best")}
        run = Run(**content["run"]) if content["run"] else None
        record = SearchRecord(**{**content, **lists, "run": run})
        _check(record)
    except FileNotFoundError as error:
        raise RecordError(f"there is no search at {file}; name a run folder of `gradveil search`") from error
    except (json.JSONDecodeError, UnicodeDecodeError, TypeError, KeyError, AttributeError, SpecError) as error:
        raise RecordError(f"{file} is not a search of GradVeil ({error}); search again") from error
    return record


def _check(record: SearchRecord) -> None:
    """Refuse what a search never writes, so that nobody stumbles over it later."""
    spec = record.spec
    if not isinstance(spec, dict) or not isinstance(spec.get("search"), dict):
        raise TypeError("its spec holds no settings of a search")
    _check_numbers("the record", record, ("threshold", "passed"))
    for entry in (*record.scored, *record.best):
        if not isinstance(entry.policy, str):
            raise TypeError(f"a policy must be text, got {entry.policy!r}")
        parse_policy(entry.policy, longest=len(entry.policy))
        known = [name for name in _NUMBERS if getattr(entry, name) is not None]
        _check_numbers(entry.policy, entry, ("accuracy", *known))
    if record.hybrid:
        parse_policy(record.hybrid, longest=len(record.hybrid))


def _check_numbers(whose: str, holder: object, names: Iterable[str]) -> None:
    for name in names:
        value = getattr(holder, name)
        if not isinstance(value, int | float) or not math.isfinite(value):
            raise TypeError(f"{name} of {whose} must be a number, got {value!r}")


def ranked(scored: Iterable[ScoredPolicy], *, threshold: float) -> list[ScoredPolicy]:
    """Sort the policies that pass the threshold, most private first; against both adversaries if both were asked for.

    Where an informed adversary looked at some of the policies, the others have no place: see `comparable`. Nor have
    those that show a plain adversary more than no policy does, however little an informed one sees.

    Example:
        >>> some = [ScoredPolicy(policy="3", accuracy=-70, privacy=0.4), ScoredPolicy(policy="1", accuracy=-90)]
        >>> [entry.policy for entry in ranked(some, threshold=-85)]
        ['3']
    """
    known = list(scored)
    order = no_worse_than_none(passing(comparable(known), threshold=threshold), known)
    return sorted(order, key=lambda entry: (entry.exposure, entry.policy))


def passing(scored: Iterable[ScoredPolicy], *, threshold: float) -> list[ScoredPolicy]:
    """Keep the policies that were scored to the end and pass the threshold.

    Example:
        >>> some = [ScoredPolicy(policy="3", accuracy=-70, privacy=0.4), ScoredPolicy(policy="1", accuracy=-60)]
        >>> [entry.policy for entry in passing(some, threshold=-85)]
        ['3']
    """
    known = [entry for entry in scored if entry.privacy is not None and not entry.dropped]
    return [entry for entry in known if entry.accuracy >= threshold]


def no_worse_than_none(entries: Sequence[ScoredPolicy], scored: Sequence[ScoredPolicy]) -> list[ScoredPolicy]:
    """Leave out policies with a higher S_pri than no policy has, where an informed adversary looked at that.

    Example:
        >>> some = [ScoredPolicy(policy=p, accuracy=0, privacy=s, aware=0.1) for p, s in (("28", 0.4), ("3", 0.5))]
        >>> [entry.policy for entry in no_worse_than_none(some, some)]
        ['28']
    """
    none = next((one for one in scored if one.policy == str(NO_POLICY) and one.aware is not None), None)
    limit = math.inf if none is None or none.privacy is None else none.privacy
    return [entry for entry in entries if (entry.privacy or 0.0) <= limit]


def comparable(scored: Sequence[ScoredPolicy]) -> list[ScoredPolicy]:
    """Keep the policies whose exposures mean the same.

    Where an informed adversary looked at none, these are all policies. Else they are those that it looked at: of the
    others only S_pri is known, which is not their exposure, so none of them has a place among those that are known.

    Example:
        >>> some = [ScoredPolicy(policy="3", accuracy=-70, aware=0.6), ScoredPolicy(policy="1", accuracy=-70)]
        >>> [entry.policy for entry in comparable(some)], [entry.policy for entry in comparable(some[1:])]
        (['3'], ['1'])
    """
    informed = [entry for entry in scored if entry.aware is not None]
    return informed or list(scored)


def build_hybrid(policies: Sequence[str], *, size: int = 2) -> Hybrid:
    """Join the first policies of a ranking that have no function in common with those before (Sec. 4.4).

    Args:
        policies: best first.
        size: policies of the hybrid at most.

    Example:
        >>> str(build_hybrid(["3-1-7", "3-18", "43-18-18"]))
        '3-1-7+43-18-18'
    """
    chosen: list[str] = []
    longest = max((len(text.split("-")) for text in policies), default=1)

    def parsed(text: str) -> Hybrid:
        return parse_policy(text, longest=longest)

    if not policies:
        raise SpecError("a hybrid is made of at least one policy, got none; lower the threshold or search more")
    for text in policies:
        (policy,) = parsed(text).policies
        clash = any(share_functions(policy, parsed(other).policies[0]) for other in chosen)
        if not clash and not policy.identity and len(chosen) < size:
            chosen.append(text)
    return parsed("+".join(chosen))
