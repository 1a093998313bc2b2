"""Pages and tables, made from records alone: nothing here runs a model or needs the data of the run."""

from gradveil.report._flat import facts, to_csv
from gradveil.report._loading import load_records, load_run
from gradveil.report._terminal import to_rich
from gradveil.report.html import build, render
from gradveil.report.tables import Overall, Row, overall, summarize, worst

__all__ = [
    "Overall",
    "Row",
    "build",
    "facts",
    "load_records",
    "load_run",
    "overall",
    "render",
    "summarize",
    "to_csv",
    "to_rich",
    "worst",
]
