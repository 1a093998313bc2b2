"""The page: complete, self-contained, escaped, redacted."""

import base64
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from synthetic_runs import make_images, make_record, write_run

from gradveil.record import Record, Threat
from gradveil.report import build, render, statistics, summarize
from gradveil.report._terminal import to_rich

HOSTILE = "<script>alert('cat')</script>\"'><img src=x onerror=alert(1)>"


class Tags(HTMLParser):
    """Collects tags with their attributes, and the text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.text: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))

    def handle_data(self, data: str) -> None:
        self.text.append(data)

    def all(self, tag: str) -> list[dict[str, str]]:
        return [attributes for name, attributes in self.tags if name == tag]

    def words(self) -> str:
        return " ".join(" ".join(self.text).split())


def tight(**changes: object) -> Record:
    record = make_record([7.0, 8.0, 9.0, 7.5], ranks=[30, 40, 9, 70], defenses=["pruning:share=0.9"])
    return replace(record, **changes)  # type: ignore[arg-type]


def failed(error: str) -> Record:
    return tight(status="failed", error=error, scores={}, identification={})


def test_the_parts_come_in_the_order_in_which_people_read() -> None:
    words = Tags(render([make_record(), tight()], [make_images(), make_images()])).words()
    parts = [
        "LEAKS: 3 of 4 private images",
        "What this means, and what to do",
        "Threat model",
        "honest-but-curious",
        "diagnostic",
        "eval mode",
        "batch size 1",
        "Results",
        "Every victim, beside the null lines",
        "How to read the null lines",
        "Pictures, the worst for privacy first",
        "rank 1 of 101",
        "Settings in full",
        "CPU (test)",
        "The numbers",
        "gradveil report RUN",
    ]
    body = words[words.index("LEAKS") :]
    assert words.index("What the shared updates give away") < words.index(body)
    places = [body.index(part) for part in parts]
    assert places == sorted(places)


def test_the_verdict_is_that_of_the_worst_cell_and_each_defense_has_its_own() -> None:
    words = Tags(render([tight(), make_record()], [{}, {}])).words()
    assert "worst of 2 cells: cell 2" in words
    assert "No attack here knew this defense" in words


def test_a_page_without_a_leak_never_calls_anything_safe() -> None:
    words = Tags(render([tight()], [{}])).words()
    assert "No leak shown by this attack:" in words
    assert "LEAKS" not in words
    assert re.findall(r".{27}\bsafe\b", words) == ["proof that the updates are safe"]
    assert "This is not proof that the updates are safe" in words


def test_a_page_says_where_no_leak_was_shown_by_a_search_that_stopped_short() -> None:
    def compared(record: Record, found: float) -> Record:
        agreement = {"found": [found] * 4, "seen": [0.9] * 4, "grey": [0.3] * 4}
        return replace(record, outcome=replace(record.outcome, agreement=agreement))

    words = [Tags(render([compared(tight(), found)], [{}])).words() for found in (0.5, 0.88)]
    assert "The search stopped short on 4 of 4 updates: what the model saw explains them better" in words[0]
    assert "explains the update median cosine 0.500, what the model saw 0.900, grey 0.300" in words[0]
    assert "search stopped short on 0 of 4 updates" in words[1]
    assert "explains them better" not in words[1]
    assert "explains them better" not in Tags(render([compared(make_record(), 0.5)], [{}])).words()
    row = summarize([compared(tight(), 0.5)])
    assert "cell 1: the search stopped short on 4 of 4 updates" in str(to_rich(row).caption)
    assert "1  pruned; the search stopped short on 4 of 4 updates" in str(statistics(row, names=["pruned"]).caption)


def test_failed_cells_show_their_error_and_a_run_of_them_has_no_verdict() -> None:
    words = Tags(render([failed("out of memory")], [{}])).words()
    assert "No verdict" in words
    assert "out of memory" in words
    assert "LEAKS" in Tags(render([failed("out of memory"), make_record()], [{}, {}])).words()


def test_the_verdict_counts_the_cells_that_were_judged_and_names_the_others() -> None:
    words = Tags(render([failed("out of memory"), tight(), tight(), failed("no bias")], [{}] * 4)).words()
    assert "This is the worst of 2 cells" in words
    assert "2 further cells ended without a verdict, so what their attacks would have shown is not known" in words
    words = Tags(render([failed("out of memory"), tight()], [{}, {}])).words()
    assert "No leak shown by this attack:" in words
    assert "1 further cell ended without a verdict, so what its attack would have shown is not known" in words
    assert "without a verdict" not in Tags(render([tight()], [{}])).words()


def test_nothing_is_fetched() -> None:
    page = render([make_record(), tight()], [make_images(), make_images()])
    tags = Tags(page)
    for tag, attributes in tags.tags:
        for name in ("src", "srcset", "data", "poster", "action", "background", "xlink:href"):
            assert attributes.get(name, "data:").startswith("data:"), (tag, attributes)
    assert all(link["href"].startswith("data:") for link in tags.all("link"))
    assert all(link["href"].startswith(("#", "data:")) for link in tags.all("a"))
    assert "@import" not in page
    assert "url(" not in page
    assert "default-src 'none'" in page


def test_links_within_the_page_lead_somewhere() -> None:
    tags = Tags(render([make_record(), tight(), failed("x")], [make_images(), {}, {}]))
    places = {attributes["id"] for _, attributes in tags.tags if "id" in attributes}
    assert {link["href"][1:] for link in tags.all("a") if link["href"].startswith("#")} <= places


def test_the_informed_adversary_stands_beside_the_standard_one() -> None:
    named, why = {"pruning": "bayes-optimal"}, {"pruning": "zeros show what was dropped"}
    threat = Threat(knowledge=["labels"], informed=named, reasons=why)
    standard = tight(threat=threat)
    adaptive = tight(attack="bayes-optimal", threat=replace(threat, adaptive=True))
    lonely = tight(
        defenses=["mixup"], threat=Threat(knowledge=[], informed={"mixup": ""}, reasons={"mixup": "not built yet"})
    )
    words = Tags(render([make_record(), standard, adaptive, lonely], [{}] * 4)).words()
    start = words.index("Standard and informed adversary, side by side")
    table = words[start : words.index("Results", start)]
    assert table.index("2 dlg") < table.index("3 bayes-optimal") < table.index("None run: not built yet")
    assert "who knows pruning bayes-optimal: zeros show what was dropped" in words
    assert "standard: does not know of the defense" in words
    assert "Standard and informed adversary" not in Tags(render([make_record()], [{}])).words()


def test_regions_certificates_and_details_are_shown() -> None:
    outcome = replace(
        tight().outcome,
        details={"shift": [[0.5, -0.25]] * 4, "long": [[0.0] * 9] * 4},
        too_large={"mask": [8, 8]},
        certificate={"error bound": [0.125, 0.25, 0.5, float("inf")]},
    )
    ratios = {"conv.weight": [0.5, 0.5, 0.6, 0.7], "conv.bias": [20.0, 30.0, 40.0, 50.0], "fc.weight": [5.0] * 4}
    record = tight(outcome=outcome, ratios=ratios, regions={"conv": "red", "fc": "white"})
    words = Tags(render([record], [make_images()])).words()
    assert "1 white, 1 red" in words
    assert "conv red weight 0.55 (0.5 to 0.7), bias 35 (20 to 50)" in words
    assert "fc white weight 5" in words
    assert "shift 0.5, -0.25" in words
    assert "error bound 0.125" in words
    assert "error bound (certificate) median 0.375, 0.125 to ∞" in words
    assert "mask of shape (8, 8), not in the record" in words


def test_the_search_of_a_tuned_attack_is_among_the_settings() -> None:
    trials = [{"setting": "dlg:lr=1", "psnr": 12.345, "error": 0.5, "identified": 0.25, "round": 0}]
    record = make_record()
    search = {"attack": "dlg", "chosen": "dlg:lr=1", "victims": 8, "trials": trials}
    words = Tags(render([replace(record, outcome=replace(record.outcome, search=search))], [{}])).words()
    assert "Tuning attack dlg chosen dlg:lr=1 victims 8 tried: dlg:lr=1 12.35 dB, 25 % found first" in words


def test_a_checkpoint_s_training_is_among_the_settings() -> None:
    training = {"recipe": {"epochs": 60}, "seed": 3, "history": [{"loss": 0.123456}]}
    record = make_record()
    page = render([replace(record, network=replace(record.network, training=training))], [{}])
    words = Tags(page).words()
    assert "Training of the checkpoint recipe.epochs 60 seed 3" in words
    assert "0.123456" not in words


def test_text_of_a_record_never_becomes_code() -> None:
    record = make_record(classes=[HOSTILE, HOSTILE], defenses=[HOSTILE], attack=HOSTILE)
    hostile = replace(record, title=HOSTILE, spec={HOSTILE: HOSTILE}, run=replace(record.run, device=HOSTILE))
    tags = Tags(render([hostile, failed(HOSTILE)], [make_images(), {}], name=HOSTILE))
    assert len(tags.all("script")) == 1
    assert all("onerror" not in attributes for _, attributes in tags.tags)
    assert all(image["src"].startswith("data:image/png") for image in tags.all("img"))
    assert "alert('cat')" in tags.words()


def test_redaction_leaves_pictures_and_labels_out_and_says_so() -> None:
    record = make_record()
    found = replace(record, outcome=replace(record.outcome, details={"label": [[3.0]] * 4}))
    page = render([found], [make_images()], redact=True)
    words = Tags(page).words()
    assert "data:image" not in page
    assert "<img" not in page
    assert words.index("Redacted.") < words.index("LEAKS")
    assert "gradveil report RUN --redact" in words
    assert numbers(page)["cells"][0]["labels"] == []
    assert numbers(page)["cells"][0]["outcome"]["details"] == {}


def test_pictures_are_there_when_nothing_is_redacted() -> None:
    page = render([make_record()], [make_images()])
    assert page.count("data:image/png;base64,") == 12
    assert "Redacted." not in page


def test_a_record_without_pictures_says_so_on_its_page() -> None:
    assert "No pictures." in Tags(render([make_record()], [{}])).words()


def test_grey_pictures_are_enlarged_without_smoothing() -> None:
    images = Tags(render([make_record()], [make_images(channels=1, side=28)])).all("img")
    assert len(images) == 12
    assert all((image["class"], image["width"]) == ("pixelated", "28") for image in images)


def test_the_numbers_can_be_taken_away() -> None:
    infinite = replace(make_record(), outcome=replace(make_record().outcome, objective=[float("nan")] * 4))
    page = render([infinite], [{}])
    (cell,) = numbers(page)["cells"]
    assert cell["scores"]["psnr"]["private"] == [[15.0], [12.5], [24.0], [9.5]]
    assert cell["scores"]["psnr"]["nulls"]["grey"] == 12.0
    assert cell["outcome"]["objective"] == [None] * 4
    table = next(link["href"] for link in Tags(page).all("a") if link.get("download", "").endswith(".csv"))
    assert base64.b64decode(table.partition(",")[2]).decode().startswith("cell,title,defenses,attack")


@pytest.mark.parametrize("side", [32, 224])
def test_four_cells_of_sixteen_victims_stay_below_three_megabytes(side: int) -> None:
    record = make_record([15.0] * 16, ranks=[0] * 16)
    images = make_images(16, side=side)
    assert len(render([record] * 4, [images] * 4)) < 3_000_000


def test_the_page_of_a_run_is_written_beside_its_records(tmp_path: Path) -> None:
    run = write_run(tmp_path / "my run", {"1": (make_record(), make_images())})
    assert build(run) == run / "report.html"
    assert "gradveil report 'my run'" in Tags((run / "report.html").read_text()).words()
    assert [file.name for file in run.iterdir() if file.name.startswith(".")] == []


def test_a_page_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1 record"):
        render([], [])


def numbers(page: str) -> dict[str, list[dict[str, Any]]]:
    link = next(a["href"] for a in Tags(page).all("a") if a.get("download", "").endswith(".json"))
    content: dict[str, list[dict[str, Any]]] = json.loads(base64.b64decode(link.partition(",")[2]))
    return content
