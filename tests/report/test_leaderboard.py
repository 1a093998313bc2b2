"""Cards and the leaderboard, from invented records and invented papers."""

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from synthetic_runs import make_record, psnr, ranked, write_run
from typer.testing import CliRunner

from gradveil._tradeoff_record import Curve, MechanismResult, TradeoffRecord, write_tradeoff
from gradveil.cli import app
from gradveil.errors import RecordError
from gradveil.record import Outcome, Record
from gradveil.report import ResultCard, build_leaderboard, find_cards, make_cards, render_leaderboard

TIGHT = [7.0, 8.0, 9.0, 7.5, 7.2, 8.1, 9.0, 7.7]
WIDE = [15.0, 12.5, 24.0, 18.0, 15.5, 16.5, 17.0, 20.0]


def made(
    values: Sequence[float] = WIDE,
    *,
    defenses: Sequence[str] = (),
    attack: str = "dlg",
    adaptive: bool = False,
    date: str = "2026-01-01T00:00:00+00:00",
) -> Record:
    """Make a record of 8 images on digits; those of `WIDE` are found first, the others are not."""
    ranks = [0 if value > 10 else 50 for value in values]
    record = make_record(values, ranks=ranks, defenses=defenses, attack=attack, adaptive=adaptive)
    return replace(record, spec={"audit": {"dataset": "digits"}}, run=replace(record.run, date=date))


def cards_of(*records: Record) -> dict[tuple[str, str], ResultCard]:
    cards = make_cards([(f"{number}/record.json", record) for number, record in enumerate(records)])
    return {(card.defense, card.attack): card for card in cards}


def test_a_card_holds_our_figure_and_the_best_known_one() -> None:
    cards = cards_of(
        made(),
        made(TIGHT, defenses=["pruning"]),
        made(defenses=["pruning"], attack="bayes-optimal", adaptive=True),
    )
    card = cards["pruning", "dlg"]
    assert card.ours is not None
    assert card.best is not None
    assert (card.data, card.model) == ("digits", "lenet, untrained")
    assert card.ours.value == pytest.approx(sum(TIGHT) / 8)
    assert card.ours.low < card.ours.value < card.ours.high
    assert (card.best.attack, card.best.informed, card.best.found_first) == ("bayes-optimal", True, 1.0)
    assert card.best.value == pytest.approx(sum(WIDE) / 8)
    assert (card.leaks, card.record, card.best.record) == (False, "1/record.json", "2/record.json")


def test_a_figure_that_an_informed_attack_beats_is_unreliable_and_says_so() -> None:
    cards = cards_of(
        made(),
        made(TIGHT, defenses=["pruning"]),
        made(defenses=["pruning"], attack="bayes-optimal", adaptive=True),
    )
    assert cards["pruning", "dlg"].unreliable
    (reason,) = cards["pruning", "dlg"].reasons
    assert reason == "bayes-optimal, who knows the defense, reaches PSNR 17.31 dB and finds 100 % of the images first"
    assert not cards["pruning", "bayes-optimal"].unreliable
    assert not cards["none", "dlg"].unreliable


def test_a_closer_reconstruction_beats_a_figure_though_no_image_is_found_first() -> None:
    better = made([value + 2 for value in TIGHT], defenses=["pruning"], attack="bayes-optimal", adaptive=True)
    near = made([value + 0.1 for value in TIGHT], defenses=["pruning"], attack="bayes-optimal", adaptive=True)
    better, near = (replace(record, identification=made(TIGHT).identification) for record in (better, near))
    assert (
        "reaches PSNR 9.94 dB"
        in cards_of(made(), made(TIGHT, defenses=["pruning"]), better)["pruning", "dlg"].reasons[0]
    )
    assert not cards_of(made(), made(TIGHT, defenses=["pruning"]), near)["pruning", "dlg"].unreliable


def test_a_defense_that_nobody_who_knows_it_attacked_is_unreliable() -> None:
    record = made(TIGHT, defenses=["pruning"])
    threat = replace(record.threat, informed={"pruning": ""}, reasons={"pruning": "there is none yet"})
    card = cards_of(made(), replace(record, threat=threat))["pruning", "dlg"]
    assert card.reasons == ("no audit by an attack that knows the defense: there is none yet",)


@pytest.mark.parametrize(
    ("plain", "reason"),
    [
        ([made(TIGHT)], "shows no leak without the defense either"),
        ([], "was never run without the defense"),
        ([made()], None),
    ],
)
def test_an_attack_that_breaks_nothing_tells_nothing_of_a_defense(plain: list[Record], reason: str | None) -> None:
    informed = made(TIGHT, defenses=["pruning"], attack="bayes-optimal", adaptive=True)
    card = cards_of(*plain, made(TIGHT, defenses=["pruning"]), informed)["pruning", "dlg"]
    assert [text.partition("the same attack ")[2] for text in card.reasons] == ([reason] if reason else [])


def test_few_images_and_diverged_attacks_are_unreliable() -> None:
    few = cards_of(made(WIDE[:3]))["none", "dlg"]
    assert few.reasons == ("3 private images are few",)
    outcome = Outcome(objective=[], diverged=[True] * 2 + [False] * 6, steps=[])
    wild = cards_of(replace(made(), outcome=outcome))["none", "dlg"]
    assert wild.reasons == ("the attack diverged on 25 % of the updates",)


@pytest.mark.parametrize(("short", "told"), [(4, False), (5, True)])
def test_a_search_that_stopped_short_on_most_updates_is_unreliable(short: int, told: bool) -> None:
    agreement = {"found": [0.6] * short + [0.97] * (8 - short), "seen": [1.0] * 8, "grey": [0.2] * 8}
    outcome = Outcome(objective=[], diverged=[], steps=[9] * 8, agreement=agreement)
    card = cards_of(replace(made(), outcome=outcome))["none", "dlg"]
    assert card.reasons == (("the search stopped short on 5 of 8 updates",) if told else ())
    assert not cards_of(replace(made(), outcome=replace(outcome, steps=[1] * 8)))["none", "dlg"].reasons  # read off


def test_batches_of_another_size_have_cards_of_their_own() -> None:
    """More images behind an update are harder to find: that says nothing of the attack."""
    alone, pairs = made(WIDE), made(WIDE)
    pairs = replace(pairs, scores={"psnr": psnr([[value, value] for value in TIGHT])}, labels=[[0, 1]] * 8)
    pairs = replace(pairs, identification={"correlation": ranked([[50.0, 50.0]] * 8)})
    cards = make_cards([("1/record.json", alone), ("2/record.json", pairs)])
    assert {card.batch_size: card.record for card in cards} == {1: "1/record.json", 2: "2/record.json"}
    assert len({card.name for card in cards}) == 2
    assert all(card.best == card.ours for card in cards)
    assert not any("reaches" in reason for card in cards for reason in card.reasons)


def test_a_network_from_a_file_is_one_wherever_the_file_lay() -> None:
    def attacked(values: Sequence[float], *, attack: str, file: str, accuracy: float | None) -> Record:
        record = made(values, attack=attack)
        return replace(record, network=replace(record.network, state=f"checkpoint:{file}", accuracy=accuracy))

    weak = attacked(TIGHT, attack="dlg", file="nets/plain.safetensors", accuracy=0.7625)
    strong = attacked(WIDE, attack="idlg", file="models/plain.safetensors", accuracy=0.7625)
    card = cards_of(weak, strong)["none", "dlg"]
    assert (card.best and card.best.attack, card.model) == ("idlg", "lenet, checkpoint:nets/plain.safetensors")
    for accuracy in (0.7, None):  # another network of that name
        other = attacked(WIDE, attack="dlg", file="nets/plain.safetensors", accuracy=accuracy)
        cards = make_cards([("1/record.json", weak), ("2/record.json", other)])
        assert len({card.name for card in cards}) == 2
        assert all(card.best == card.ours for card in cards)


def test_a_figure_is_of_the_images_that_a_client_marked() -> None:
    """A defense of some images promises nothing for the others."""
    values = [[30.0, value] for value in TIGHT]
    ranks = ranked([[0.0, 50.0]] * 8)
    record = replace(made(), scores={"psnr": psnr(values)}, labels=[[0, 1]] * 8, identification={"correlation": ranks})
    (card,) = make_cards([("1/record.json", replace(record, sensitive=[[False, True]] * 8))])
    assert card.ours is not None
    assert card.ours.value == pytest.approx(np.mean(TIGHT))
    assert (card.ours.marked, card.ours.found_first) == (True, 0.0)
    assert (card.leaks, card.batch_size) == (False, 2)
    (whole,) = make_cards([("1/record.json", record)])
    assert whole.ours is not None
    assert (whole.ours.marked, whole.leaks) == (False, True)


def test_one_image_more_does_not_make_an_attack_the_best_known() -> None:
    ranks = [0.0] * 30 + [50.0] * 2
    sharp = replace(made([25.0] * 32), identification={"correlation": ranked([[rank] for rank in ranks])})
    blurred = replace(made([12.0] * 32, attack="idlg"), identification={"correlation": ranked([[0.0]] * 32)})
    cards = cards_of(sharp, blurred)
    assert {card.best.value if card.best else None for card in cards.values()} == {25.0}
    assert cards["none", "idlg"].reasons == ("dlg reaches PSNR 25.00 dB and finds 94 % of the images first",)
    few = replace(sharp, identification={"correlation": ranked([[0.0]] * 20 + [[50.0]] * 12)})
    assert {card.best.value if card.best else None for card in cards_of(few, blurred).values()} == {12.0}
    assert cards_of(few, blurred)["none", "idlg"].reasons == ()


@pytest.mark.parametrize("informed", [False, True])
def test_a_cap_that_no_informed_attack_stands_behind_is_unreliable(informed: bool, tmp_path: Path) -> None:
    curve = Curve(
        attack="dlg", informed=informed, measure="reconstruction", null=None, plain=None, distances=[[[0.5]]],
        means=[0.5], bands=[[0.5, 0.5]], performances=[0.2], cap=0.2,
    )  # fmt: skip
    mechanism = MechanismResult(name="DP [1]", defense="gaussian-noise", field="std", strengths=[], curves=[curve])
    study = TradeoffRecord(
        spec={}, status="done", seeds=[0], plain_accuracy=0.9, mechanisms=[mechanism], bounds=[1.0, 10.0],
        run=made().run,
    )  # fmt: skip
    (tmp_path / "records").mkdir()
    write_tradeoff(study, tmp_path / "records")
    row = {"row": "DP [1]", "column": "Reconstruction", "unit": ""}
    expected = {"paper": "spn", "table": "Table 8", "rows": [{**row, "value": 0.57}]}
    result = {"values": [{**row, "value": 0.2, "interval": None, "records": ["records/tradeoff.json"]}]}
    (tmp_path / "expected.json").write_text(json.dumps(expected))
    (tmp_path / "result.json").write_text(json.dumps(result))
    (card,) = find_cards(tmp_path)
    assert card.reasons == (() if informed else ("no audit by an attack that knows the defense",))
    assert card.unreliable is not informed
    (tmp_path / "records" / "tradeoff.json").write_text("{}")
    assert find_cards(tmp_path)[0].unreliable


def test_of_several_runs_the_largest_and_newest_counts_and_failed_ones_do_not() -> None:
    old, new = made(TIGHT), made(date="2026-02-02T00:00:00+00:00")
    small = made(WIDE[:4], date="2026-03-03T00:00:00+00:00")
    failed = replace(made(TIGHT, attack="idlg"), status="failed", error="out of memory", scores={})
    cards = cards_of(new, old, small, failed)
    assert list(cards) == [("none", "dlg")]
    assert cards["none", "dlg"].record == "0/record.json"


def an_experiment(folder: Path) -> Path:
    """Write a table of four cells: one with a record, one with two, one that was not run, one without an attack."""
    place = folder / "experiments" / "ats-table-1a"
    write_run(place / "records", {"1": (made(), None)})
    rows = [
        {"row": "none", "column": "PSNR", "value": 16.5, "unit": "dB"},
        {"row": "policies", "column": "PSNR", "value": 7.0, "unit": "dB"},
        {"row": "hybrid", "column": "PSNR", "value": 6.5, "unit": "dB"},
        {"row": "none", "column": "FL", "value": 90.0, "unit": "%"},
    ]
    (place / "expected.json").write_text(json.dumps({"paper": "ats", "table": "Table 1(a)", "rows": rows}))
    one = {"row": "none", "column": "PSNR", "value": 17.3125, "interval": [15.0, 19.5], "unit": "dB"}
    two = {"row": "policies", "column": "PSNR", "value": 8.0, "interval": None, "unit": "dB"}
    accuracy = {"row": "none", "column": "FL", "value": 88.0, "interval": None, "unit": "%"}
    values = [
        {**one, "records": ["records/cells/1/record.json"]},
        {**accuracy, "records": ["records/plain/federation.json"]},
        {**two, "records": ["records/cells/1/record.json", "records/cells/2/record.json"]},
    ]
    (place / "result.json").write_text(json.dumps({"artefact": "ats-table-1a", "values": values}))
    return place


def test_the_number_of_a_paper_stands_on_the_card_of_its_record(tmp_path: Path) -> None:
    an_experiment(tmp_path)
    cards = {card.defense: card for card in find_cards(tmp_path)}
    (reported,) = cards["none"].reported
    assert (reported.paper, reported.table, reported.value, reported.ours) == ("ats", "Table 1(a)", 16.5, 17.3125)
    assert reported.difference == pytest.approx(0.8125)
    assert cards["none"].record == "experiments/ats-table-1a/records/cells/1/record.json"
    assert cards["none"].ours is not None

    assert (cards["policies"].reported[0].records, cards["policies"].ours) == (2, None)
    assert not cards["policies"].unreliable
    assert "hybrid" not in cards  # The paper has it, but nobody ran it.
    assert len(find_cards(tmp_path)) == 2  # That of the federation is none: nobody attacked it.


def test_the_tables_that_are_kept_here_have_cards_without_any_run() -> None:
    """A clone shows them at once: `gradveil report leaderboard`."""
    cards = find_cards(Path(__file__).parents[2] / "experiments" / "ats-table-1a")
    by_defense = {card.defense: card for card in cards if card.ours is not None}
    card = by_defense["transform-policy:policy=3-1-7"]
    assert (card.data, card.ours is not None and card.ours.metric) == ("cifar100", "PSNR")
    assert [one.value for one in card.reported if one.column in {"PSNR", "ACC"}] == [6.579, 70.56]
    assert card.unreliable
    assert card.date > "2026"


def test_a_card_says_what_its_mean_hides() -> None:
    figure = cards_of(made())["none", "dlg"].ours
    assert figure is not None
    assert figure.std == pytest.approx(np.std(WIDE, ddof=1))
    assert (figure.worst, figure.threshold, figure.above) == (24.0, 20.0, 0.25)
    assert figure.best_null == pytest.approx(max(figure.nulls.values()))


def test_other_files_in_the_folder_of_the_cards_stay(tmp_path: Path) -> None:
    an_experiment(tmp_path)
    own = {"cards/business.json": '{"defense": 1}', "cards/list-12345678.json": "[]", "cards/x-12345678.json": "broken"}
    build_leaderboard(tmp_path)
    stale = tmp_path / "cards" / "stale-0123abcd.json"
    stale.write_text(next((tmp_path / "cards").glob("*.json")).read_text())
    for name, text in own.items():
        (tmp_path / name).write_text(text)
    build_leaderboard(tmp_path)
    assert not stale.exists()
    assert {name: (tmp_path / name).read_text() for name in own} == own


def test_the_command_writes_one_card_each_and_a_page_that_needs_nothing_else(tmp_path: Path) -> None:
    an_experiment(tmp_path)
    write_run(tmp_path / "runs", {"2": (made(TIGHT, defenses=["<b>pruning</b>"]), None)})
    (tmp_path / ".hidden").mkdir()
    (tmp_path / ".hidden" / "expected.json").write_text("no JSON")
    done = CliRunner().invoke(app, ["report", "leaderboard", str(tmp_path)])
    assert done.exit_code == 0, done.output
    cards = [json.loads(file.read_text()) for file in (tmp_path / "cards").glob("*.json")]
    assert sorted(card["defense"] for card in cards) == ["<b>pruning</b>", "none", "policies"]
    assert {"reported", "ours", "best", "unreliable", "reasons", "record"} <= set(cards[0])

    page = (tmp_path / "leaderboard.html").read_text(encoding="utf-8")
    assert not re.search(r"""(src|href)=["']?(https?:)?//""", page)
    assert "<b>pruning</b>" not in page
    assert page.count("<tr") == 4
    again = build_leaderboard(tmp_path)
    assert again.read_text(encoding="utf-8") == page


def test_a_folder_without_records_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="there is no record of an audit below"):
        build_leaderboard(tmp_path)
    (tmp_path / "expected.json").write_text('{"rows": [{"value": 1}]}')
    with pytest.raises(RecordError, match="holds no rows and columns"):
        find_cards(tmp_path)


@pytest.mark.slow
def test_a_click_sorts_the_page_by_number_and_back(tmp_path: Path) -> None:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    chromium = Path("/usr/bin/chromium")
    if not chromium.exists():
        pytest.skip(f"there is no browser at {chromium}")
    records = [made([value] * 8, defenses=[f"clipping:norm={value}"]) for value in (9.0, 100.0, 20.0)]
    file = tmp_path / "leaderboard.html"
    file.write_text(render_leaderboard(make_cards([(str(n), r) for n, r in enumerate(records)])), encoding="utf-8")
    column = "[...document.querySelectorAll('#board tbody tr')].map((row) => parseFloat(row.cells[4].dataset.key))"
    with playwright.sync_playwright() as started:
        browser: Any = started.chromium.launch(executable_path=str(chromium), args=["--headless", "--no-sandbox"])
        page = browser.new_page(viewport={"width": 390, "height": 800})
        page.goto(file.as_uri())
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert page.evaluate(column) == [100.0, 20.0, 9.0]
        page.get_by_role("button", name="Ours").click()
        assert page.evaluate(column) == [9.0, 20.0, 100.0]
        page.get_by_role("button", name="Ours").click()
        assert page.evaluate(column) == [100.0, 20.0, 9.0]
        browser.close()
