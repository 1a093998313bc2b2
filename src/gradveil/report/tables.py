"""Rows of the results table: every mean, worst case, null line and interval is made here, from per-sample scores."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from gradveil.metrics import Summary, Verdict, bootstrap_interval, summary
from gradveil.record import Record, Scores
from gradveil.report._falling_short import stopped_short
from gradveil.report._marked import marked_alone
from gradveil.report._verdicts import success, verdict

SUCCESS: Mapping[str, float] = MappingProxyType(
    {"psnr": 20.0, "registered-psnr": 20.0, "ssim": 0.5, "mse": 0.01, "rmse": 0.5}
)
"""Scores from which on a reconstruction counts as a success, by metric: a habit of this report, not a paper's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricRow:
    """One metric of one cell, against the private images.

    Args:
        title: for people.
        unit: such as dB.
        higher_is_better: whether a larger number is a closer reconstruction.
        summary: over all samples; `worst` is the closest reconstruction.
        interval: 95 % bootstrap interval of the mean over victims.
        protected: mean against what the model saw.
        success: share of samples closer than every constant null of the same sample, None without such nulls.
        threshold: score from which on a reconstruction counts as a success, None for a metric without one.
        above: share of samples that reach it, None without one.
        nulls: mean of each null guess, by name.
    """

    title: str
    unit: str
    higher_is_better: bool
    summary: Summary
    interval: tuple[float, float]
    protected: float
    success: float | None
    threshold: float | None
    above: float | None
    nulls: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class IdentificationRow:
    """How many private images of one cell are the nearest of all candidates, in one view.

    Args:
        identified: how many.
        total: of how many.
        decoys: candidates beside the private image.
        nulls: share that each null guess identifies, by name.
    """

    identified: int
    total: int
    decoys: int
    nulls: Mapping[str, float]

    @property
    def rate(self) -> float:
        """Share in [0, 1]."""
        return self.identified / self.total


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One cell: defenses × attack × model state.

    Args:
        number: position in the run, from 1.
        title: of the cell.
        defenses: spec strings.
        attack: spec string.
        adaptive: whether the attack knows and uses the defenses.
        model: of the network.
        state: of the network, such as trained.
        victims: updates attacked.
        batch_size: private images behind one update.
        metrics: by name.
        identification: by view.
        label_accuracy: share of labels that the attack guessed, None if it guessed none.
        labels_granted: whether the adversary was told the labels.
        short: updates on which the search stopped short of what the model saw, None if nobody compared.
        accuracy: of the model in [0, 1], None if unknown.
        informed: by defense, the attack that knows how to use it, empty for none.
        reasons: by defense, why it is that one, or why there is none.
        regions: green, white or red by layer.
        verdict: None for a failed cell, and where nothing was scored that could decide.
        error: why the cell failed, on one line; empty if it is done.
        marked: the same of the samples that the client marked as sensitive alone; None where all or none are.
    """

    number: int
    title: str
    defenses: tuple[str, ...]
    attack: str
    adaptive: bool
    model: str
    state: str
    victims: int
    batch_size: int
    metrics: Mapping[str, MetricRow]
    identification: Mapping[str, IdentificationRow]
    label_accuracy: float | None
    labels_granted: bool
    short: int | None
    accuracy: float | None
    informed: Mapping[str, str]
    reasons: Mapping[str, str]
    regions: Mapping[str, str]
    verdict: Verdict | None
    error: str
    marked: "Row | None"

    @property
    def defense(self) -> str:
        """The defenses in one line."""
        return " + ".join(self.defenses) or "none"

    @property
    def mostly_short(self) -> bool:
        """Whether the search stopped short on more than half of the updates, so that a weak figure shows little."""
        return self.short is not None and 2 * self.short > self.victims


@dataclass(frozen=True, slots=True, kw_only=True)
class Overall:
    """What all cells say about one list of defenses.

    Args:
        defense: in one line.
        row: the worst cell for privacy, None if no cell has a verdict.
        cells: numbers of all its cells, failed ones too.
        adaptive: whether an attack that knows the defense was run to its end.
    """

    defense: str
    row: Row | None
    cells: tuple[int, ...]
    adaptive: bool


def summarize(records: Iterable[Record]) -> list[Row]:
    """Sum up each record in one row, in the order given.

    Example:
        >>> summarize([])
        []
    """
    return [_row(number, record) for number, record in enumerate(records, start=1)]


def worst(rows: Iterable[Row]) -> Row | None:
    """Return the row that is worst for privacy: a leak before none, then the most identified, then the closest.

    Example:
        >>> worst([]) is None
        True
    """
    return max((row for row in rows if row.verdict), key=_severity, default=None)


def overall(rows: Sequence[Row]) -> list[Overall]:
    """Judge each list of defenses by its worst cell, whichever attack, adaptive or not, and model state it was.

    Example:
        >>> overall([])
        []
    """
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(row.defenses, []).append(row)
    return [
        Overall(
            defense=group[0].defense,
            row=worst(group),
            cells=tuple(row.number for row in group),
            adaptive=any(row.adaptive and row.verdict for row in group),
        )
        for group in groups.values()
    ]


def _severity(row: Row) -> tuple[bool, float, float]:
    assert row.verdict is not None
    closest = max((case.margin for case in row.verdict.worst_cases[:1]), default=-np.inf)
    return row.verdict.leaks, row.verdict.identified / row.verdict.total, float(closest)


def _row(number: int, record: Record) -> Row:
    outcome, network = record.outcome, record.network
    done = record.status == "done"
    alone = marked_alone(record) if done else None
    return Row(
        number=number,
        title=record.title,
        defenses=tuple(record.defenses),
        attack=_attack(record),
        adaptive=record.threat.adaptive,
        model=network.spec,
        state=network.state,
        victims=len(record.labels),
        batch_size=len(record.labels[0]) if record.labels else 0,
        metrics={name: _metric_row(scores, name) for name, scores in record.scores.items()} if done else {},
        identification=_identification_rows(record) if done else {},
        label_accuracy=float(np.mean(outcome.label_accuracy)) if done and outcome.label_accuracy else None,
        labels_granted=outcome.labels_granted,
        short=stopped_short(outcome) if done else None,
        accuracy=network.accuracy,
        informed=record.threat.informed,
        reasons=record.threat.reasons,
        regions=record.regions,
        verdict=verdict(record) if done else None,
        error="" if done else _one_line(record.error) or "unknown error",
        marked=None if alone is None else _row(number, alone),
    )


def _attack(record: Record) -> str:
    """Name the attack that ran: where its settings were tuned, the chosen ones."""
    chosen = record.outcome.search.get("chosen")
    return f"{chosen} (tuned)" if chosen else record.attack


def _one_line(text: str) -> str:
    """Join the lines of a message and drop what a terminal would obey."""
    return "".join(c for c in " ".join(text.split()) if c.isprintable())


def _metric_row(scores: Scores, name: str) -> MetricRow:
    private = np.asarray(scores.private, dtype=np.float64)
    threshold, sign = SUCCESS.get(name.partition(":")[0]), 1 if scores.higher_is_better else -1
    return MetricRow(
        title=scores.title,
        unit=scores.unit,
        higher_is_better=scores.higher_is_better,
        summary=summary(private, higher_is_better=scores.higher_is_better),
        interval=bootstrap_interval(private.mean(axis=1)),
        protected=float(np.mean(scores.protected)) if scores.protected else np.nan,
        success=success(scores),
        threshold=threshold,
        above=None if threshold is None else float(np.mean(sign * private >= sign * threshold)),
        nulls={name: float(np.mean(values)) for name, values in scores.nulls.items() if values},
    )


def _identification_rows(record: Record) -> dict[str, IdentificationRow]:
    return {
        view: IdentificationRow(
            identified=int(np.sum(np.asarray(found.ranks) == 0)),
            total=int(np.size(found.ranks)),
            decoys=found.decoys,
            nulls={name: float(np.mean(np.asarray(ranks) == 0)) for name, ranks in found.nulls.items() if ranks},
        )
        for view, found in record.identification.items()
    }
