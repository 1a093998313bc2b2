"""The page of a trade-off study: accuracy and distance over the size of the perturbation, from its record alone."""

import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined

from gradveil._tradeoff_record import FILE, Curve, MechanismResult, Strength, TradeoffRecord, read_tradeoff
from gradveil.report import _words
from gradveil.report._context import download
from gradveil.report.figures import Axis
from gradveil.report.tables import SUCCESS
from gradveil.storage import write_atomically

HEIGHT: Final = 250
PAPER: Final = ("reconstruction", "tracing", "membership")
"""The distances of the paper, shown first and at once; the others are other readings of them."""

TITLES: Final = {
    "reconstruction": "Reconstruction: rMSE",
    "tracing": "Tracing: reconstructed images of wrong participant",
    "membership": "Membership: wrong labels",
    "reconstruction-capped": "Reconstruction: rMSE, at most 1",
    "tracing-all": "Tracing: all queries of wrong participant",
    "membership-by-classifier": "Membership: reconstructions classified wrongly",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """One strength on a line.

    Args:
        x: in percent of the width.
        y: in pixels from the top.
        text: shown when pointed at.
    """

    x: float
    y: float
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One quantity over the strengths, weakest perturbation to the right.

    Args:
        kind: accuracy, distance or product.
        marks: one per strength.
        path: of the line, as points of a drawing 100 wide.
        band: outline of its confidence band, empty for none.
    """

    kind: str
    marks: tuple[Mark, ...]
    path: str
    band: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """A stretch of the axis.

    Args:
        name: green, white or red.
        x: where it begins, in percent.
        width: in percent.
    """

    name: str
    x: float
    width: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One curve of a mechanism.

    Args:
        title: the distance in words.
        curve: its numbers.
        regions: of the axis.
        lines: drawn in order.
        across: ticks in percent of the width, with labels.
        left: ticks in pixels, of the accuracy.
        right: ticks in pixels, of the distance.
        null: of the distance, in pixels; None if unknown.
        plain: accuracy without a defense, in pixels; None if unknown.
        text: all of it in words.
        height: in pixels.
    """

    title: str
    curve: Curve
    regions: tuple[Region, ...]
    lines: tuple[Line, ...]
    across: tuple[tuple[float, str], ...]
    left: tuple[tuple[float, str], ...]
    right: tuple[tuple[float, str], ...]
    null: float | None
    plain: float | None
    text: str
    height: int = HEIGHT


@dataclass(frozen=True, slots=True, kw_only=True)
class Attacked:
    """All curves of one attack on one mechanism.

    Args:
        mechanism: its name.
        attack: in words.
        curves: by measure.
        first: figures of the paper's distances.
        more: the others.
    """

    mechanism: str
    attack: str
    curves: dict[str, Curve]
    first: Sequence[Figure]
    more: Sequence[Figure]


@dataclass(frozen=True, slots=True, kw_only=True)
class TradeoffPage:
    """Everything the template shows.

    Args:
        name: of the run folder.
        record: the study.
        sentence: what it comes to.
        measures: of the CAP table.
        mechanisms: each with its attacks.
        json: the record as a link.
    """

    name: str
    record: TradeoffRecord
    sentence: str
    measures: Sequence[str]
    mechanisms: Sequence[tuple[MechanismResult, Sequence[Attacked]]]
    json: str


def is_tradeoff(run: Path) -> bool:
    """Tell whether a folder holds a trade-off study."""
    return (run / FILE).is_file()


def build_tradeoff(run: Path) -> Path:
    """Write `report.html` into the folder of a study, and return its path."""
    text = (run / FILE).read_text(encoding="utf-8") if is_tradeoff(run) else ""
    page = render_tradeoff(read_tradeoff(run), name=run.resolve().name, text=text)
    write_atomically(run / "report.html", page.encode())
    return run / "report.html"


def render_tradeoff(record: TradeoffRecord, *, name: str = "RUN", text: str = "") -> str:
    """Write the page of a study.

    Args:
        record: finished or under way.
        name: of the run folder, for the command that makes the page again.
        text: of the record, to take away.
    """
    environment = Environment(
        loader=PackageLoader("gradveil.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals |= {"words": _words, "titles": TITLES, "spread": spread}
    page = TradeoffPage(
        name=shlex.quote(name),
        record=record,
        sentence=_sentence(record),
        measures=[measure for measure in TITLES if any(_measured(one, measure) for one in record.mechanisms)],
        mechanisms=[(one, _attacked(one, record)) for one in record.mechanisms],
        json=download(text, "application/json") if text else "",
    )
    return environment.get_template("tradeoff.html").render(page=page)


def worst_cap(mechanism: MechanismResult, measure: str) -> Curve | None:
    """Return the curve with the lowest CAP, that of the attack that finds most; None if no CAP is known."""
    known = [curve for curve in _measured(mechanism, measure) if curve.cap is not None]
    return min(known, key=lambda curve: curve.cap or 0.0, default=None)


def spread(curve: Curve, place: int) -> str:
    """Say what the mean distance at one strength hides: standard deviation, closest victim, share of successes.

    Args:
        curve: of an attack.
        place: of the strength.
    """
    values = np.concatenate([np.asarray(seed[place], dtype=np.float64) for seed in curve.distances])
    said = [f"std {_words.number(float(values.std(ddof=1)) if len(values) > 1 else 0.0)}"]
    said.append(f"closest {_words.number(float(values.min()))}")
    if curve.measure.startswith("reconstruction"):
        reached = float(np.mean(values <= SUCCESS["rmse"]))
        said.append(f"{_words.percent(reached)} {_words.threshold(SUCCESS['rmse'], higher_is_better=False)}")
    return ", ".join(said)


def _measured(mechanism: MechanismResult, measure: str) -> list[Curve]:
    return [curve for curve in mechanism.curves if curve.measure == measure]


def _sentence(record: TradeoffRecord) -> str:
    """Name the mechanism with the highest CAP against reconstruction, each judged by its strongest attack."""
    found = [(one, curve) for one in record.mechanisms if (curve := worst_cap(one, "reconstruction"))]
    if not found:
        return "No CAP can be given, because strengths are missing; the curves below show what there is."
    best, curve = max(found, key=lambda pair: pair[1].cap or 0.0)
    low, high = curve.cap_interval
    figure = f"CAP {curve.cap:.2f} ({low:.2f} to {high:.2f})"
    who = f"{curve.attack}{', who knows the defense' if curve.informed else ''}"
    if len(record.mechanisms) == 1:
        return f"{best.name}: {figure} against reconstruction by {who}."
    return f"{best.name} keeps most against reconstruction: {figure}, its strongest attack being {who}."


def _attacked(mechanism: MechanismResult, record: TradeoffRecord) -> list[Attacked]:
    who = dict.fromkeys((curve.attack, curve.informed) for curve in mechanism.curves)
    made = []
    for attack, informed in who:
        curves = {c.measure: c for c in mechanism.curves if (c.attack, c.informed) == (attack, informed)}
        drawn = {name: figure(mechanism.strengths, curve, record) for name, curve in curves.items()}
        made.append(
            Attacked(
                mechanism=mechanism.name,
                attack=f"{_words.spaced(attack)}{', informed' if informed else ''}",
                curves=curves,
                first=[drawn[name] for name in PAPER if name in drawn],
                more=[drawing for name, drawing in drawn.items() if name not in PAPER],
            )
        )
    return made


def figure(strengths: Sequence[Strength], curve: Curve, record: TradeoffRecord) -> Figure:
    """Draw one curve; a strength that perturbed nothing stands at the right end of the axis.

    Args:
        strengths: of the mechanism.
        curve: distances at these strengths.
        record: for the bounds of the regions, and the accuracy without a defense.
    """
    known = [strength.position for strength in strengths if strength.position is not None]
    bounds = [math.log10(bound + 1) for bound in record.bounds]
    across = Axis(0.0, 1.06 * max([bounds[-1] + 0.25, *known]))
    tops = [*(high for _, high in curve.bands), curve.null or 0.0]
    down = Axis(0.0, 1.08 * max(*tops, 0.01))
    share = Axis(0.0, 1.0)
    lines = (
        _line(
            "accuracy", strengths, [s.accuracy for s in strengths], [s.accuracy_band for s in strengths], across, share
        ),
        _line("product", strengths, curve.performances or [None] * len(strengths), [], across, down),
        _line("distance", strengths, curve.means, curve.bands, across, down),
    )
    return Figure(
        title=TITLES.get(curve.measure, curve.measure),
        curve=curve,
        regions=_regions(across, bounds),
        lines=lines,
        across=across.ticks(),
        left=tuple((_row(k / 4, share), f"{25 * k}%") for k in range(5)),
        right=tuple((_row(float(label), down), label) for _, label in down.ticks(about=4)),
        null=None if curve.null is None else _row(curve.null, down),
        plain=None if record.plain_accuracy is None else _row(record.plain_accuracy, share),
        text="; ".join(mark.text for line in lines if line.kind == "distance" for mark in line.marks),
    )


def _regions(across: Axis, bounds: Sequence[float]) -> tuple[Region, ...]:
    edges = [0.0, *(across.place(bound) for bound in bounds), 100.0]
    names = ("green", "white", "red")
    return tuple(Region(name=name, x=edges[k], width=round(edges[k + 1] - edges[k], 3)) for k, name in enumerate(names))


def _line(
    kind: str,
    strengths: Sequence[Strength],
    values: Sequence[float | None],
    bands: Sequence[Sequence[float]],
    across: Axis,
    down: Axis,
) -> Line:
    """Draw a quantity from the strongest perturbation to the weakest."""
    places = [100.0 if s.position is None else across.place(s.position) for s in strengths]
    shown = sorted((place, k) for k, place in enumerate(places) if values[k] is not None and strengths[k].region)
    marks = [_mark(kind, strengths[k], values[k] or 0.0, x, down) for x, k in shown]
    outline = [(x, _row(bands[k][1], down)) for x, k in shown if bands and bands[k]]
    outline += [(x, _row(bands[k][0], down)) for x, k in reversed(shown) if bands and bands[k]]
    return Line(
        kind=kind,
        marks=tuple(marks),
        path=" ".join(f"{mark.x},{mark.y}" for mark in marks),
        band=" ".join(f"{x},{y}" for x, y in outline),
    )


def _mark(kind: str, strength: Strength, value: float, x: float, down: Axis) -> Mark:
    shown = f"{kind} {_words.percent(value) if kind == 'accuracy' else _words.number(value)}"
    return Mark(x=x, y=_row(value, down), text=f"{strength.value}: {shown}")


def _row(value: float, axis: Axis) -> float:
    return round(HEIGHT * (1 - min(max(axis.place(value), 0.0), 100.0) / 100), 2)
