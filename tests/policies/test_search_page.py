"""The page of a search: places, front and picture, from records made by hand."""

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gradveil.cli import app
from gradveil.defenses import defenses
from gradveil.policies.result import ScoredPolicy, SearchRecord, write
from gradveil.report import build_search, is_search, render_search
from gradveil.report.search_page import pareto_front, placed, search_page

SPEC = {
    "dataset": "noise", "model": "mlp", "precision": "tf32", "training": {"epochs": 50},
    "search": {"policies": 4, "first_look": 5},
}  # fmt: skip


def scored(policy: str, privacy: float, accuracy: float, error: float = 0.01, **more: object) -> ScoredPolicy:
    return ScoredPolicy(policy=policy, privacy=privacy, privacy_error=error, accuracy=accuracy, **more)  # type: ignore[arg-type]


ENTRIES = [
    scored("28", 0.6, -65, origin="given"),
    scored("3-1-7", 0.2, -80, origin="given"),
    scored("24-18-18", 0.215, -75, origin="given"),
    scored("9", 0.4, -70),
    scored("0", 0.5, -72),
    scored("15", 0.1, -1e5),
    scored("21", 0.7, -84, dropped=True),
]


def record(**changes: object) -> SearchRecord:
    passed = {"best": ENTRIES[1:3], "hybrid": "3-1-7+24-18-18", "passed": 0.75, "seconds": {"privacy": 12.5}}
    return SearchRecord(
        **{"spec": SPEC, "status": "done", "threshold": -85.0, "scored": ENTRIES, **passed, **changes}  # type: ignore[arg-type]
    )


def test_the_front_holds_what_nothing_beats() -> None:
    assert [entry.policy for entry in pareto_front(ENTRIES)] == ["15", "3-1-7", "24-18-18", "9", "28"]


def test_ranks_leave_open_what_errors_leave_open() -> None:
    page = search_page(record(), name="run")
    named = {row.name: row for row in page.named}
    assert (named["3-1-7"].rank, named["43-18-18"].rank, named["no policy"].rank) == (1, 2, 5)
    # 0.015 apart with errors of 0.01 each, so neither is ahead; the next is 0.185 away.
    assert (named["3-1-7"].first, named["3-1-7"].last) == (named["43-18-18"].first, named["43-18-18"].last) == (1, 2)
    assert (named["no policy"].first, named["no policy"].last) == (5, 5)
    rejected = placed(ENTRIES[5], [ENTRIES[1]])
    assert (rejected.rank, rejected.first) == (None, 1)


def test_an_informed_adversary_counts_in_ranks_and_columns() -> None:
    undone = [
        scored("3-1-7", 0.2, -80, aware=0.6, aware_error=0.02, undone=0.9, margin=-1.5),
        scored("9", 0.4, -70, aware=0.1),
    ]
    page = search_page(record(scored=undone), name="run")
    assert page.aware
    assert [row.name for row in page.best] == ["9", "3-1-7"]
    shown = render_search(record(scored=undone))
    assert "S_aware" in shown
    assert "S_aware" not in re.sub(r"<style>.*?</style>", "", render_search(record()), flags=re.DOTALL)


def test_says_how_a_hybrid_of_longer_policies_is_used() -> None:
    assert "--defense transform-policy:policy=3-1-7+24-18-18<" in render_search(record())
    shown = render_search(record(hybrid="3-1-7+24-18-18-9"))
    assert "--defense transform-policy:policy=3-1-7+24-18-18-9,longest=4<" in shown
    assert defenses.build("transform-policy:policy=3-1-7+24-18-18-9,longest=4")
    assert record(hybrid="").defense == ""


def test_tells_no_share_of_nothing_drawn() -> None:
    assert "2 of 2 drawn policies pass" in render_search(record(scored=ENTRIES[:5], best=[]))
    assert "drawn policies pass" not in render_search(record(scored=ENTRIES[:3]))


def test_says_why_a_policy_has_no_rank() -> None:
    entries = [
        scored("28", 0.3, -60, aware=0.3),
        scored("3-1-7", 0.4, -70, aware=0.1),
        scored("7-4-15", 0.2, -90, aware=0.1),
    ]
    shown = render_search(record(scored=entries, best=[]))
    assert "hides less than none<small>would be" in shown
    assert "below threshold<small>would be" in shown
    assert "hides less" not in render_search(record())


def test_what_an_informed_adversary_did_not_look_at_is_not_drawn_beside_what_it_did() -> None:
    entries = [scored("3-1-7", 0.2, -80, aware=0.6), scored("9", 0.4, -70, aware=0.1), scored("0", 0.3, -60)]
    page = search_page(record(scored=entries), name="run")
    assert [row.name for row in page.best] == ["9", "3-1-7"]
    assert [row.name for row in page.front] == ["9"]
    assert {point.text.split(":")[0] for point in page.scatter.points} == {"3-1-7", "9"}
    assert page.unseen == 1
    shown = render_search(record(scored=entries, best=entries[:2]))
    assert "1 policies are not drawn" in shown
    assert "not drawn" not in render_search(record())


def test_policies_far_below_the_threshold_do_not_flatten_the_picture() -> None:
    scatter = search_page(record(), name="run").scatter
    assert scatter.below == 1
    rows = {point.text.split(":")[0]: point.y for point in scatter.points}
    assert rows["15"] == scatter.height
    assert scatter.threshold is not None
    assert rows["9"] < rows["43-18-18"] < rows["3-1-7"] < scatter.threshold
    places = [point.x for point in sorted(scatter.points, key=lambda point: point.x)]
    assert min(places) > 0
    assert max(places) < 100


class Balanced(HTMLParser):
    """Follows tags, and notes what would be fetched from elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.fetched: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in {"meta", "link", "br"}:
            self.open.append(tag)
        self.fetched += [v for k, v in attrs if k in {"src", "href"} and v and not v.startswith(("#", "data:"))]

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_whole_and_needs_nothing_else() -> None:
    page = render_search(record(spec={**SPEC, "model": "<script>alert(1)</script>"}))
    parser = Balanced()
    parser.feed(page)
    assert (parser.open, parser.fetched) == ([], [])
    assert "<script>alert(1)" not in page
    assert page.count("<circle") == len(ENTRIES) + 5  # and the legend
    assert "light-dark" in page
    assert "2 of 4 drawn policies pass" not in page
    assert "3 of 4 drawn policies pass" in page
    assert "privacy</dt><dd>12.5 s" in page


def test_a_search_under_way_says_so_and_an_empty_one_has_no_page() -> None:
    assert "Unfinished" in render_search(record(status="running"))
    assert "No policy passes" in render_search(record(threshold=0.0, best=[], hybrid=""))
    with pytest.raises(ValueError, match="at least 1 scored policy"):
        render_search(record(scored=[]))


def test_report_recognizes_the_folder_of_a_search(tmp_path: Path) -> None:
    assert not is_search(tmp_path)
    write(record(), tmp_path)
    assert is_search(tmp_path)
    assert build_search(tmp_path) == tmp_path / "report.html"
    (tmp_path / "report.html").unlink()
    done = CliRunner().invoke(app, ["report", str(tmp_path)], catch_exceptions=False)
    assert done.exit_code == 0
    assert "43-18-18" in (tmp_path / "report.html").read_text()
