"""The leaderboard: all cards below a folder as one page that sorts itself, and needs nothing else."""

import dataclasses
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined

from gradveil.errors import RecordError
from gradveil.report import _words
from gradveil.report._context import download
from gradveil.report.cards import Figure, ResultCard, find_cards, write_cards
from gradveil.storage import write_atomically

FILE = "leaderboard.html"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A line of the leaderboard.

    Args:
        card: behind it.
        keys: what each numeric column is sorted by; not a number goes last.
    """

    card: ResultCard
    keys: dict[str, float]


def build_leaderboard(folder: Path) -> Path:
    """Write the cards of all records below a folder, and `leaderboard.html`, into it; return the page's path."""
    cards = find_cards(folder)
    if not cards:
        raise RecordError(f"there is no record of an audit below {folder}; name a folder that holds run folders")
    write_cards(cards, folder)
    write_atomically(folder / FILE, render_leaderboard(cards).encode())
    return folder / FILE


def render_leaderboard(cards: Sequence[ResultCard]) -> str:
    """Write the page: first what gives most away, by the best known attack on each defense.

    Args:
        cards: any number.
    """
    environment = Environment(
        loader=PackageLoader("gradveil.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals["words"] = _words
    entries = sorted((Entry(card=card, keys=_keys(card)) for card in cards), key=_order)
    text = json.dumps([dataclasses.asdict(card) for card in cards], indent=1, ensure_ascii=False)
    page = environment.get_template("leaderboard.html")
    return page.render(entries=entries, json=download(text, "application/json"))


def _keys(card: ResultCard) -> dict[str, float]:
    first = next((one for one in card.reported if one.value is not None), None)
    return {
        "paper": math.nan if first is None or first.value is None else first.value,
        "ours": _value(card.ours),
        "best": _value(card.best),
        "found": math.nan if card.best is None or card.best.found_first is None else card.best.found_first,
        "accuracy": math.nan if card.accuracy is None else card.accuracy,
    }


def _value(figure: Figure | None) -> float:
    return math.nan if figure is None else figure.value


def _order(entry: Entry) -> tuple[bool, float, str]:
    best = entry.keys["best"]
    return math.isnan(best), -best if math.isfinite(best) else 0.0, entry.card.name
