"""Cards: for a defense, an attack, data, a model and a batch size, the paper's figure, ours and the best known one."""

import dataclasses
import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from gradveil.errors import RecordError
from gradveil.record import Record, read
from gradveil.report._reported import Reported, read_reported
from gradveil.report._verdicts import VERDICT_METRICS, VERDICT_VIEWS, preferred
from gradveil.report._words import number, short
from gradveil.report.tables import Row, summarize
from gradveil.storage import write_atomically

FEWEST = 8
"""Private images below which a mean says little."""

_DIVERGED = 0.1
_CLEARLY = 0.1  # of the images found first, by which one attack is better than another
_CHECKPOINT = "checkpoint:"
_NOBODY = "no audit by an attack that knows the defense"


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A mean over the private images of one record, or over those that its client marked as sensitive.

    Args:
        attack: spec string.
        informed: whether it knows the defense and uses it.
        metric: title, such as PSNR; always against the private images.
        unit: such as dB.
        higher_is_better: whether a larger number is a closer reconstruction.
        value: the mean.
        marked: whether it is of the marked images alone.
        low: end of its 95 % interval over updates.
        high: the other end.
        std: standard deviation over the images.
        worst: the closest reconstruction.
        threshold: score from which on a reconstruction counts as a success, None for a metric without one.
        above: share of the images that reach it, None without one.
        nulls: mean score of guesses that know nothing, by name.
        found_first: share of private images that are the nearest of all candidates; None without candidates.
        record: where it stands.
    """

    attack: str
    informed: bool
    metric: str
    unit: str
    higher_is_better: bool
    value: float
    marked: bool
    low: float
    high: float
    std: float
    worst: float
    threshold: float | None
    above: float | None
    nulls: dict[str, float]
    found_first: float | None
    record: str

    @property
    def best_null(self) -> float | None:
        """The score of the guess that knows nothing and comes closest; None without any."""
        return (max if self.higher_is_better else min)(self.nulls.values(), default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultCard:
    """One defense against one attack on one model and data set, and one number of images behind an update.

    Args:
        defense: spec strings in one line, `none` for none; of a table without a single record, its row.
        attack: spec string; of a table without a single record, its column.
        data: spec string of the data set.
        model: spec string of the network, and its state.
        batch_size: private images behind one update; 0 where no single record stands behind the card.
        reported: what papers print for it, beside our number for the same cell; empty where no table has it.
        ours: of this attack, None where no single record stands behind the card.
        best: of the strongest attack on the same defense, data set, model and batch size; None without `ours`.
        leaks: the verdict on the images of `ours`, None if there is none.
        accuracy: of the network, None if unknown.
        unreliable: whether the figure may flatter the defense.
        reasons: why it may.
        record: behind the card.
        date: of that record.
    """

    defense: str
    attack: str
    data: str
    model: str
    batch_size: int
    reported: tuple[Reported, ...]
    ours: Figure | None
    best: Figure | None
    leaks: bool | None
    accuracy: float | None
    unreliable: bool
    reasons: tuple[str, ...]
    record: str
    date: str

    @property
    def name(self) -> str:
        """A file name that no other card has."""
        size = f"batch {self.batch_size}" if self.batch_size > 1 else ""
        text = "|".join(filter(None, (self.defense, self.attack, self.data, self.model, size)))
        words = re.sub(r"[^a-zA-Z0-9.]+", "-", text).strip("-")[:80]
        whole = f"{text}|{self.accuracy}" if _CHECKPOINT in self.model else text
        return f"{words}-{hashlib.sha256(whole.encode()).hexdigest()[:8]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A record with the place it was found at.

    Args:
        place: relative to the folder that was searched.
        record: that was read.
        row: its statistics.
    """

    place: str
    record: Record
    row: Row

    @property
    def setting(self) -> tuple[str, str, int]:
        """The data set, the network, and how many images are behind an update: more are harder to find."""
        row, data = self.row, str(self.record.spec.get("audit", {}).get("dataset", ""))
        return data, f"{row.model}, {_known(row.state, row.accuracy)}", row.batch_size

    @property
    def key(self) -> tuple[str, str, tuple[str, str, int]]:
        """What a card is about."""
        return self.row.defense, self.row.attack, self.setting

    @property
    def judged(self) -> Row:
        """The images that count: the marked ones, where a client marked some, because papers score these."""
        return self.row.marked or self.row

    def figure(self) -> Figure | None:
        """Return the mean of the first metric of the verdict; None if nothing was scored."""
        row = self.judged
        names = preferred(row.metrics, VERDICT_METRICS)
        if not names:
            return None
        metric, views = row.metrics[names[0]], preferred(row.identification, VERDICT_VIEWS)
        return Figure(
            attack=self.row.attack,
            informed=self.row.adaptive,
            metric=metric.title,
            unit=metric.unit,
            higher_is_better=metric.higher_is_better,
            value=metric.summary.mean,
            marked=self.row.marked is not None,
            low=metric.interval[0],
            high=metric.interval[1],
            std=metric.summary.std,
            worst=metric.summary.worst,
            threshold=metric.threshold,
            above=metric.above,
            nulls=dict(metric.nulls),
            found_first=row.identification[views[0]].rate if views else None,
            record=self.place,
        )


def find_cards(folder: Path) -> list[ResultCard]:
    """Make the cards of all records below a folder, with the papers' numbers of the experiments below it.

    Args:
        folder: holds run folders, and experiments with `expected.json` and `result.json`.
    """
    found = []
    for file in sorted(_visible(folder, "record.json")):
        try:
            found.append((str(file.relative_to(folder)), read(file)))
        except RecordError:
            continue  # a file of the same name that is no audit's
    reported = [one for file in sorted(_visible(folder, "expected.json")) for one in read_reported(file, folder)]
    return make_cards(found, reported)


def make_cards(records: Iterable[tuple[str, Record]], reported: Sequence[Reported] = ()) -> list[ResultCard]:
    """Make one card per defense, attack, data set, model and batch size; of several records the largest, newest counts.

    Args:
        records: with the places they were found at; failed ones are passed over.
        reported: numbers of papers; those that several records of attacks stand behind become cards of their own, and
            those that nobody ran, or attacked, become none.

    Example:
        >>> make_cards([])
        []
    """
    done = [(place, record) for place, record in records if record.status == "done" and record.scores]
    rows = summarize([record for _, record in done])
    all_found = [Found(place=place, record=record, row=row) for (place, record), row in zip(done, rows, strict=True)]
    cards: dict[tuple[str, str, tuple[str, str, int]], Found] = {}
    for found in sorted(all_found, key=lambda one: (one.row.victims, one.record.run.date)):
        cards[found.key] = found
    single = {found.place: found.key for found in all_found}
    own = [
        _card(found, all_found, [r for r in reported if single.get(r.record) == key]) for key, found in cards.items()
    ]
    rest = [one for one in reported if one.record not in single and one.ours is not None and one.attacked]
    return [*own, *map(_of_table, rest)]


def write_cards(cards: Sequence[ResultCard], folder: Path) -> Path:
    """Write one JSON file per card into `folder/cards`, in place of the cards that were there; other files stay."""
    place = folder / "cards"
    for old in place.glob("*.json"):
        if _is_card(old):
            old.unlink()
    for card in cards:
        text = json.dumps(dataclasses.asdict(card), indent=1, ensure_ascii=False)
        write_atomically(place / f"{card.name}.json", text.encode())
    return place


def _is_card(file: Path) -> bool:
    """Tell a card, also one of an older version, from somebody else's file."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    known = isinstance(content, dict) and {"defense", "attack", "reported", "unreliable"} <= set(content)
    return known and re.search(r"-[0-9a-f]{8}\.json$", file.name) is not None


def _visible(folder: Path, name: str) -> list[Path]:
    """List files of a name below a folder, hidden folders left out."""
    return [p for p in folder.rglob(name) if not any(part.startswith(".") for part in p.relative_to(folder).parts)]


def _known(state: str, accuracy: float | None) -> str:
    """Tell a network from a file by the file's name and its accuracy: folders are called otherwise elsewhere."""
    if not state.startswith(_CHECKPOINT):
        return state
    return state if accuracy is None else f"{Path(state.removeprefix(_CHECKPOINT)).stem} {accuracy}"


def _card(found: Found, others: Sequence[Found], reported: Sequence[Reported]) -> ResultCard:
    row, ours = found.row, found.figure()
    alike = [one for one in others if (one.setting, one.row.defense) == (found.setting, row.defense)]
    figures = [figure for one in alike if (figure := one.figure()) and ours and figure.metric == ours.metric]
    best = _strongest(figures) if figures else ours
    reasons = (*_weak(found), *_untested(found, alike, others), *_beaten(ours, best, figures))
    data, _, batch_size = found.setting
    verdict = found.judged.verdict
    return ResultCard(
        defense=row.defense,
        attack=row.attack,
        data=data,
        model=f"{row.model}, {row.state}",
        batch_size=batch_size,
        reported=tuple(reported),
        ours=ours,
        best=best,
        leaks=verdict.leaks if verdict else None,
        accuracy=row.accuracy,
        unreliable=bool(reasons),
        reasons=reasons,
        record=found.place,
        date=found.record.run.date,
    )


def _of_table(reported: Reported) -> ResultCard:
    """Make a card of a cell of a table that several records stand behind, or one that is no audit's."""
    reasons = () if reported.informed else (_NOBODY,)
    return ResultCard(
        defense=reported.row,
        attack=reported.column,
        data="",
        model=f"{reported.paper}, {reported.table}",
        batch_size=0,
        reported=(reported,),
        ours=None,
        best=None,
        leaks=None,
        accuracy=None,
        unreliable=bool(reasons),
        reasons=reasons,
        record=reported.record,
        date="",
    )


def _strongest(figures: Sequence[Figure]) -> Figure:
    """Return the closest of those that find most images first, where one image more or less decides nothing."""
    most = max(figure.found_first or 0.0 for figure in figures)
    return max((one for one in figures if most - (one.found_first or 0.0) < _CLEARLY), key=_closeness)


def _closeness(figure: Figure) -> tuple[float, float]:
    return figure.value if figure.higher_is_better else -figure.value, figure.found_first or 0.0


def _weak(found: Found) -> list[str]:
    images, outcome = found.judged.victims * found.judged.batch_size, found.record.outcome
    reasons = [f"{images} private images are few"] if images < FEWEST else []
    diverged = sum(outcome.diverged) / max(len(outcome.diverged), 1)
    if diverged > _DIVERGED:
        reasons.append(f"the attack diverged on {100 * diverged:.0f} % of the updates")
    if found.row.mostly_short:
        reasons.append(short(found.row))
    if found.judged.verdict is None:
        reasons.append("nothing was scored that could decide whether it leaks")
    return reasons


def _untested(found: Found, alike: Sequence[Found], others: Sequence[Found]) -> list[str]:
    """Say what is missing to believe that a defense, and not a weak attack, is behind a figure."""
    row, reasons = found.row, []
    if not row.defenses:
        return []
    if not any(one.row.adaptive for one in alike):
        why = "; ".join(filter(None, row.reasons.values()))
        reasons.append(f"{_NOBODY}{f': {why}' if why else ''}")
    same = [one for one in others if one.setting == found.setting and one.row.attack == row.attack]
    plain = [one.judged.verdict for one in same if not one.row.defenses and one.judged.verdict]
    verdict = found.judged.verdict
    if verdict and not verdict.leaks and not row.adaptive and not any(one.leaks for one in plain):
        known = "shows no leak without the defense either" if plain else "was never run without the defense"
        reasons.append(f"no leak was shown, but on this network the same attack {known}")
    return reasons


def _beaten(ours: Figure | None, best: Figure | None, figures: Sequence[Figure]) -> list[str]:
    """Say that another attack on the same defense is better, where the difference is no accident."""
    if ours is None or best is None or best.record == ours.record:
        return []
    better = [figure for figure in figures if _is_better(figure, ours)]
    if not better:
        return []
    best = _strongest(better)
    who = f"{best.attack}{', who knows the defense,' if best.informed else ''}"
    finds = "" if best.found_first is None else f" and finds {100 * best.found_first:.0f} % of the images first"
    return [f"{who} reaches {best.metric} {number(best.value, unit=best.unit)} {best.unit}".strip() + finds]


def _is_better(one: Figure, other: Figure) -> bool:
    """Tell whether an attack clearly finds more images first, or as many and comes closer."""
    more = (one.found_first or 0.0) - (other.found_first or 0.0)
    closer = one.low > other.high if one.higher_is_better else one.high < other.low
    return more >= _CLEARLY or (abs(more) < _CLEARLY and closer)
