"""Pages and tables, made from records alone: nothing here runs a model or needs the data of the run."""

from gradveil.report._flat import facts, to_csv
from gradveil.report._loading import load_records, load_run
from gradveil.report._pairs import Pair, pairs
from gradveil.report._side_by_side import side_by_side
from gradveil.report._statistics_table import statistics
from gradveil.report._terminal import to_rich
from gradveil.report.cards import ResultCard, find_cards, make_cards, write_cards
from gradveil.report.html import build, render
from gradveil.report.leaderboard import build_leaderboard, render_leaderboard
from gradveil.report.search_page import build_search, is_search, render_search
from gradveil.report.tables import Overall, Row, overall, summarize, worst
from gradveil.report.tradeoff_page import build_tradeoff, is_tradeoff, render_tradeoff

__all__ = [
    "Overall",
    "Pair",
    "ResultCard",
    "Row",
    "build",
    "build_leaderboard",
    "build_search",
    "build_tradeoff",
    "facts",
    "find_cards",
    "is_search",
    "is_tradeoff",
    "load_records",
    "load_run",
    "make_cards",
    "overall",
    "pairs",
    "render",
    "render_leaderboard",
    "render_search",
    "render_tradeoff",
    "side_by_side",
    "statistics",
    "summarize",
    "to_csv",
    "to_rich",
    "worst",
    "write_cards",
]
