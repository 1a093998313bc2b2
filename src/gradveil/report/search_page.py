"""The page of a search: what every policy hides against what it leaves to learn, made from the record alone."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from jinja2 import Environment, PackageLoader, StrictUndefined

from gradveil.policies.result import FILE, ScoredPolicy, SearchRecord, comparable, ranked, read
from gradveil.report import _words
from gradveil.report.figures import Axis
from gradveil.storage import write_atomically
from gradveil.transforms import NO_POLICY, Policy, parse_policy

PUBLISHED: Final = ("3-1-7", "43-18-18", "21-13-3", "7-4-15", "19-15-45", "2-43-21", "42-28-42", "14-48-48")
"""The policies of the paper, which a page points out where they were scored."""

_SURE: Final = 2.0  # standard errors of a difference within which two policies have no order
_HEIGHT: Final = 420
_SHOWN: Final = 25


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranked:
    """A policy with its place among those that pass.

    Args:
        entry: its scores.
        name: as published, or as scored.
        operations: in words.
        rank: from 1 on; None where it does not pass or was not scored to the end.
        first: best place that the errors leave open.
        last: worst place that they leave open.
    """

    entry: ScoredPolicy
    name: str
    operations: str
    rank: int | None
    first: int
    last: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A policy in the scatter.

    Args:
        x: in percent of the width, by exposure.
        y: in pixels from the top, by accuracy score.
        kind: best, front, named, passing or failing.
        name: written beside it; empty for most.
        text: shown when pointed at.
    """

    x: float
    y: float
    kind: str
    name: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Scatter:
    """All policies in one picture.

    Args:
        points: drawn in order.
        front: points of the front as a line, in the coordinates of the points.
        across: ticks in percent of the width, with labels.
        down: ticks in pixels, with labels.
        threshold: in pixels; None where it lies outside.
        below: policies whose accuracy score is lower than the axis reaches, drawn at its end.
        height: in pixels.
    """

    points: tuple[Point, ...]
    front: tuple[tuple[float, float], ...]
    across: tuple[tuple[float, str], ...]
    down: tuple[tuple[float, str], ...]
    threshold: float | None
    below: int
    height: int = _HEIGHT


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchPage:
    """Everything the template shows.

    Args:
        name: of the run.
        record: the search.
        aware: whether an informed adversary was asked for.
        passing: policies that pass, of those drawn.
        drawn: policies drawn.
        dropped: of them, after a first look.
        unseen: policies that an informed adversary did not look at where it looked at others; they are not drawn.
        named: published policies and no policy at all, where they were scored.
        best: the first places.
        front: policies that none beats in both scores.
        scatter: the picture.
    """

    name: str
    record: SearchRecord
    aware: bool
    passing: int
    drawn: int
    dropped: int
    unseen: int
    named: Sequence[Ranked]
    best: Sequence[Ranked]
    front: Sequence[Ranked]
    scatter: Scatter


def is_search(run: Path) -> bool:
    """Tell whether a folder holds a search."""
    return (run / FILE).is_file()


def build_search(run: Path) -> Path:
    """Write `report.html` into the folder of a search, and return its path."""
    page = render_search(read(run), name=run.resolve().name)
    write_atomically(run / "report.html", page.encode())
    return run / "report.html"


def render_search(record: SearchRecord, *, name: str = "RUN") -> str:
    """Write the page of a search with at least one scored policy.

    Args:
        record: finished or under way.
        name: of the run folder, for the command that makes the page again.
    """
    if not record.scored:
        raise ValueError("a page needs at least 1 scored policy, got none")
    environment = Environment(
        loader=PackageLoader("gradveil.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals["words"] = _words
    return environment.get_template("search.html").render(page=search_page(record, name=name))


def search_page(record: SearchRecord, *, name: str) -> SearchPage:
    """Work out ranks, front and picture."""
    scored = [entry for entry in record.scored if entry.privacy is not None]
    known = comparable(scored)
    drawn = [entry for entry in record.scored if entry.origin != "given"]
    order = ranked(record.scored, threshold=record.threshold)
    front, named = pareto_front(known), _named(known)
    return SearchPage(
        name=name,
        record=record,
        aware=any(entry.aware is not None for entry in known),
        passing=sum(entry.accuracy >= record.threshold for entry in drawn),
        drawn=len(drawn),
        dropped=sum(entry.dropped for entry in drawn),
        unseen=len(scored) - len(known),
        named=[placed(entry, order, name=text) for text, entry in named.items()],
        best=[placed(entry, order) for entry in order[:_SHOWN]],
        front=[placed(entry, order) for entry in front],
        scatter=_scatter(known, front, named, record),
    )


def pareto_front(entries: Sequence[ScoredPolicy]) -> list[ScoredPolicy]:
    """Return the policies that no other beats in one score without losing in the other, most private first.

    Example:
        >>> some = [ScoredPolicy(policy=str(i), accuracy=a, privacy=p) for i, (a, p) in enumerate([(1, 1), (0, 2)])]
        >>> [entry.policy for entry in pareto_front(some)]
        ['0']
    """
    best, front = -math.inf, []
    for entry in sorted(entries, key=lambda entry: (entry.exposure, -entry.accuracy, entry.policy)):
        if entry.accuracy > best and not entry.dropped:
            front.append(entry)
            best = entry.accuracy
    return front


def placed(entry: ScoredPolicy, order: Sequence[ScoredPolicy], *, name: str = "") -> Ranked:
    """Find the place of a policy in a ranking, and the places that standard errors leave open.

    Two policies have no order where their difference is below two standard errors of it. Errors of different policies
    on the same images are taken as independent, which makes the range too wide rather than too narrow.
    """
    inside = entry in order
    nearer = sum(entry.exposure - other.exposure > _SURE * _error(entry, other) for other in order)
    farther = sum(other.exposure - entry.exposure > _SURE * _error(entry, other) for other in order)
    policy = parse_policy(entry.policy, longest=len(entry.policy)).policies[0]
    return Ranked(
        entry=entry,
        name=name or entry.policy,
        operations="no policy" if policy == NO_POLICY else policy.describe(),
        rank=list(order).index(entry) + 1 if inside else None,
        first=nearer + 1,
        last=max(len(order) - farther, nearer + 1),
    )


def _error(one: ScoredPolicy, other: ScoredPolicy) -> float:
    return math.hypot(_own_error(one), _own_error(other))


def _own_error(entry: ScoredPolicy) -> float:
    """Return the standard error of the exposure, at most: the mean of those of both scores."""
    known = [entry.privacy_error or 0.0] + ([] if entry.aware is None else [entry.aware_error or 0.0])
    return sum(known) / len(known)


def _named(entries: Sequence[ScoredPolicy]) -> dict[str, ScoredPolicy]:
    """Find the published policies by what they do; their names in the record may be others."""
    found = {entry.policy: entry for entry in entries}
    names = {text: str(Policy(tuple(map(int, text.split("-")))).canonical()) for text in PUBLISHED}
    names["no policy"] = str(NO_POLICY)
    return {name: found[policy] for name, policy in names.items() if policy in found}


def _scatter(
    entries: Sequence[ScoredPolicy],
    front: Sequence[ScoredPolicy],
    named: dict[str, ScoredPolicy],
    record: SearchRecord,
) -> Scatter:
    across, down = _axes(entries, record.threshold)
    kinds = {entry.policy: "front" for entry in front} | {entry.policy: "best" for entry in record.best}
    names = {entry.policy: name for name, entry in named.items()}

    def point(entry: ScoredPolicy) -> Point:
        passing = "passing" if entry.accuracy >= record.threshold else "failing"
        name = names.get(entry.policy, "")
        return Point(
            x=across.place(entry.exposure),
            y=_row(entry.accuracy, down),
            kind="named" if name else kinds.get(entry.policy, passing),
            name=name,
            text=f"{name or entry.policy}: exposure {entry.exposure:.4f}, S_acc {entry.accuracy:.2f}",
        )

    points = sorted(
        map(point, entries), key=lambda one: ("failing", "passing", "front", "best", "named").index(one.kind)
    )
    line = [(across.place(entry.exposure), _row(entry.accuracy, down)) for entry in front]
    return Scatter(
        points=tuple(points),
        front=tuple(line),
        across=across.ticks(),
        down=tuple((_row(float(label), down), label) for _, label in down.ticks()),
        threshold=_row(record.threshold, down) if down.low <= record.threshold <= down.high else None,
        below=sum(entry.accuracy < down.low for entry in entries),
    )


def _axes(entries: Sequence[ScoredPolicy], threshold: float) -> tuple[Axis, Axis]:
    """Choose axes around all exposures, and around the threshold: the lowest accuracy scores lie far below it."""
    exposures, scores = [entry.exposure for entry in entries], [entry.accuracy for entry in entries]
    high = max(scores)
    reach = 3 * max(high - threshold, 0.05 * abs(high)) if high > threshold else 2 * (threshold - high) + 1
    low = max(min(scores), min(high - reach, sorted(scores)[len(scores) // 3]))
    return _padded(min(exposures), max(exposures)), _padded(low, max(high, low))


def _padded(low: float, high: float) -> Axis:
    room = 0.04 * (high - low) or 0.5
    return Axis(low - room, high + room)


def _row(value: float, axis: Axis) -> float:
    return round(_HEIGHT * (1 - min(max(axis.place(value), 0.0), 100.0) / 100), 2)
