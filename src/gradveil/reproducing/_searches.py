"""Searches for policies: what the scores of all of them say together."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from gradveil import data
from gradveil.engine import Runtime
from gradveil.errors import RecordError, SpecError
from gradveil.policies import ScoredPolicy, SearchRecord, search_policies
from gradveil.policies.result import FILE, read
from gradveil.reproducing._kinds import Means
from gradveil.reproducing._wanted_searches import says_all, wanted_search
from gradveil.reproducing.measuring import Interval, Measurement, of_mean
from gradveil.reproducing.plans import Part, Wanted
from gradveil.transforms import NO_POLICY, canonical_index, parse_policy

_TAKES = (
    "privacy", "mean-of-random", "mean-with-two-of", "share-beaten-by-three-of", "lowest-single", "lowest-five-in",
)  # fmt: skip


def run(part: Part, folder: Path, means: Means) -> None:
    """Search as the part's tables `search` and `training` say, unless a search that was run elsewhere says it all."""
    wanted = wanted_search(part)
    if (folder / FILE).exists() and says_all(read(folder), wanted):
        return
    for file in (file for source in means.adopted for file in sorted(source.rglob(FILE))):
        if not (folder / FILE).exists() and says_all(_readable(file), wanted):
            folder.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, folder / FILE)
            means.say(f"{part.name}: the search of {file.parent} taken over")
            return
    if means.adopted:
        means.say(f"{part.name}: no search taken over")
    search(part, folder, means)


def search(part: Part, folder: Path, means: Means) -> SearchRecord:
    """Search and return the record; in `search`, `dataset` and `model` stand beside the settings of a search."""
    wanted = wanted_search(part)
    return search_policies(
        data.load(wanted.dataset, means.settings.data_dir),
        wanted.model,
        settings=wanted.settings,
        folder=folder,
        device=means.settings.place(),
        training=wanted.training,
        runtime=Runtime(chunk=means.settings.chunk),
        progress=means.settings.progress,
    )


def measure(folder: Path, wanted: Wanted) -> Measurement | None:
    """Read a number off the scores of a finished search.

    `privacy` of the policy that `policy` names (`none` for no policy); over all drawn at random, the mean privacy score
    (`mean-of-random`), that of those with two of the operations in `of` (`mean-with-two-of`), or the share that those
    made of three of them beat on average (`share-beaten-by-three-of`); of single operations, the index of the lowest
    score (`lowest-single`), and how many of the five lowest are in `of` (`lowest-five-in`).
    """
    if not (folder / FILE).exists():
        return None
    record = read(folder)
    if record.run is None:
        return None
    found = _value(record, wanted)
    if found is None:
        return None
    return Measurement(
        value=found[0],
        interval=found[1],
        records=(folder / FILE,),
        seed=int(record.spec["search"]["seed"]),
        device=record.run.device,
        date=record.run.date,
    )


def _readable(file: Path) -> SearchRecord | None:
    try:
        return read(file)
    except RecordError:
        return None


def _value(record: SearchRecord, wanted: Wanted) -> tuple[float, Interval | None] | None:
    scored = [entry for entry in record.scored if entry.privacy is not None]
    drawn = [entry for entry in scored if entry.origin == "random"]
    chosen = frozenset(canonical_index(int(code)) for code in wanted.match.get("of", "").split("+") if code)
    if wanted.take == "privacy":
        name = str(NO_POLICY) if wanted.match["policy"] == "none" else wanted.match["policy"]
        return _one(next((entry for entry in scored if entry.policy == name), None))
    if wanted.take == "mean-of-random":
        return _mean(drawn)
    if wanted.take == "mean-with-two-of":
        return _mean([entry for entry in drawn if sum(code in chosen for code in codes(entry)) >= 2])
    if wanted.take == "share-beaten-by-three-of":
        return _share_beaten([entry for entry in scored if _made_of(entry, chosen)], drawn)
    if wanted.take in {"lowest-single", "lowest-five-in"}:
        return _lowest([entry for entry in scored if len(codes(entry)) == 1], wanted.take, chosen)
    raise SpecError(f"a search gives {', '.join(_TAKES)}, not '{wanted.take}'")


def codes(entry: ScoredPolicy) -> tuple[int, ...]:
    """Return the operations of a policy.

    Example:
        >>> codes(ScoredPolicy(policy="3-1-7", accuracy=-70))
        (3, 1, 7)
    """
    return tuple(parse_policy(entry.policy, longest=len(entry.policy)).policies[0].operations)


def _made_of(entry: ScoredPolicy, chosen: frozenset[int]) -> bool:
    return len(codes(entry)) == 3 and set(codes(entry)) <= chosen


def _one(entry: ScoredPolicy | None) -> tuple[float, Interval | None] | None:
    if entry is None or entry.privacy is None:
        return None
    half = None if entry.privacy_error is None else 1.96 * entry.privacy_error
    return entry.privacy, None if half is None else (entry.privacy - half, entry.privacy + half)


def _mean(entries: Sequence[ScoredPolicy]) -> tuple[float, Interval | None] | None:
    values = [entry.privacy for entry in entries if entry.privacy is not None]
    return (fmean(values), of_mean(values)) if values else None


def _share_beaten(some: Sequence[ScoredPolicy], others: Sequence[ScoredPolicy]) -> tuple[float, Interval | None] | None:
    mean = _mean(some)
    if mean is None or not others:
        return None
    return fmean(float(entry.exposure > mean[0]) for entry in others), None


def _lowest(singles: Sequence[ScoredPolicy], take: str, chosen: frozenset[int]) -> tuple[float, None] | None:
    order = sorted(singles, key=lambda entry: entry.exposure)
    if not order:
        return None
    if take == "lowest-single":
        return float(codes(order[0])[0]), None
    return float(sum(codes(entry)[0] in chosen for entry in order[:5])), None
