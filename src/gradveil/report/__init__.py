"""Pages and tables, made from records alone: nothing here runs a model or needs the data of the run."""

from gradveil.report._flat import facts, to_csv
from gradveil.report._loading import load_records, load_run
from gradveil.report._pairs import Pair, pairs
from gradveil.report._side_by_side import side_by_side
from gradveil.report._terminal import to_rich
from gradveil.report.html import build, render
from gradveil.report.search_page import build_search, is_search, render_search
from gradveil.report.tables import Overall, Row, overall, summarize, worst

__all__ = [
    "Overall",
    "Pair",
    "Row",
    "build",
    "build_search",
    "facts",
    "is_search",
    "load_records",
    "load_run",
    "overall",
    "pairs",
    "render",
    "render_search",
    "side_by_side",
    "summarize",
    "to_csv",
    "to_rich",
    "worst",
]
