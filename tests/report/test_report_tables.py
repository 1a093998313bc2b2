"""Rows, terminal table and spreadsheet."""

import csv
import io
import json
import re
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console
from synthetic_runs import constant, make_record, psnr, ranked

from gradveil.metrics import bootstrap_interval
from gradveil.record import Outcome, Record, Scores, Threat
from gradveil.report import (
    facts,
    overall,
    pairs,
    render,
    side_by_side,
    statistics,
    summarize,
    to_csv,
    to_rich,
    worst,
)


def failed(error: str = "out of memory") -> Record:
    record = make_record()
    return replace(record, status="failed", error=error, scores={}, identification={}, labels=[], defenses=["pruning"])


def shown(records: list[Record]) -> str:
    console = Console(width=100, file=io.StringIO(), force_terminal=False)
    console.print(to_rich(summarize(records)))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_numbers_of_a_row_equal_those_made_by_hand() -> None:
    (row,) = summarize([make_record([15.0, 12.5, 24.0, 9.5], ranks=[0, 0, 0, 7])])
    metric = row.metrics["psnr"]

    assert metric.summary.mean == pytest.approx((15.0 + 12.5 + 24.0 + 9.5) / 4)
    assert (metric.summary.worst, metric.summary.best) == (24.0, 9.5)
    assert metric.interval == bootstrap_interval([15.0, 12.5, 24.0, 9.5])
    assert metric.success == 0.5  # Only 15 and 24 are above the own mean colour at 13.
    assert (metric.nulls["grey"], metric.nulls["own-mean"], metric.nulls["random-gradient"]) == (12.0, 13.0, 8.0)
    assert row.identification["correlation"].rate == 0.75
    assert (row.victims, row.batch_size, row.accuracy, row.labels_granted) == (4, 1, 0.5, True)


def test_worst_is_the_smallest_number_where_lower_is_closer() -> None:
    scores = Scores(
        private=[[0.3], [0.01]], protected=[], nulls={"grey": [[0.1], [0.1]]}, higher_is_better=False, title="MSE"
    )
    record = replace(make_record([1.0, 2.0], ranks=[5, 5]), scores={"mse": scores})
    (row,) = summarize([record])
    assert (row.metrics["mse"].summary.worst, row.metrics["mse"].success) == (0.01, 0.5)


def test_the_share_that_reaches_the_threshold_follows_the_direction_of_the_metric() -> None:
    scores = Scores(private=[[0.3], [0.01], [0.005], [0.2]], protected=[[0.1]] * 4, higher_is_better=False, title="MSE")
    record = make_record([19.9, 20.0, 24.0, 9.5])
    (row,) = summarize([replace(record, scores={**record.scores, "mse": scores, "own": scores})])
    assert (row.metrics["psnr"].threshold, row.metrics["psnr"].above) == (20.0, 0.5)
    assert (row.metrics["mse"].threshold, row.metrics["mse"].above) == (0.01, 0.5)
    assert (row.metrics["own"].threshold, row.metrics["own"].above) == (None, None)


def test_every_statistic_stands_in_the_terminal_within_a_hundred_columns() -> None:
    record = make_record([15.0, 12.5, 24.0, 9.5])
    seen = replace(record.scores["psnr"], protected=[[30.0]] * 4)
    rows = summarize([replace(record, scores={**record.scores, "psnr": seen}), failed()])
    console = Console(width=100, file=io.StringIO(), force_terminal=False)
    console.print(statistics(rows))
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()
    assert max(map(len, lines)) <= 100
    low, high = bootstrap_interval([15.0, 12.5, 24.0, 9.5])
    (line,) = [line.split() for line in lines if "15.25" in line]
    spread = np.std([15.0, 12.5, 24.0, 9.5], ddof=1)
    assert line[:5] == ["1", "15.25", f"{spread:.2f}", f"{low:.2f}–{high:.2f}", "24.00"]
    assert line[5:] == ["25.0%", "50.0%", "30.00", "75.0%", "13.00", "own", "mean", "colour"]
    assert any("≥ 20 dB" in line for line in lines)


def test_two_readings_of_one_metric_are_told_apart() -> None:
    record = make_record()
    both = replace(record, scores={**record.scores, "ssim:padding=zeros": record.scores["ssim"]})
    console = Console(width=100, file=io.StringIO(), force_terminal=False)
    console.print(statistics(summarize([both])))
    assert isinstance(console.file, io.StringIO)
    heads = [line.split() for line in console.file.getvalue().splitlines() if "SSIM" in line]
    assert [head[-1] for head in heads] == ["0.5", "padding=zeros"]
    page = render([both], [{}])
    assert re.findall(r">(SSIM[^<]*)</th>", page) == ["SSIM", "SSIM, padding=zeros"]
    assert "<h3>SSIM, padding=zeros</h3>" in page


def test_names_of_cells_take_no_width_from_the_statistics() -> None:
    rows, names = summarize([make_record(), make_record()]), ["Fashion-MNIST, Imprint PSNR", "Noise, DLG PSNR"]
    console = Console(width=80, file=io.StringIO(), force_terminal=False)
    console.print(statistics(rows, names=names))
    assert isinstance(console.file, io.StringIO)
    lines = [line.strip() for line in console.file.getvalue().splitlines()]
    assert lines[-2:] == ["1  Fashion-MNIST, Imprint PSNR", "2  Noise, DLG PSNR"]
    first = [number for number, line in enumerate(lines) if re.match(r"1 +[\d.]", line)]
    assert all(re.match(r"2 +[\d.]", lines[number + 1]) or re.match(r"2 +[\d.]", lines[number + 2]) for number in first)
    assert first


def test_the_interval_is_over_updates_and_not_over_the_samples_of_one() -> None:
    record = replace(make_record(), scores={"psnr": psnr([[10.0, 20.0], [20.0, 10.0]])}, identification={})
    (row,) = summarize([replace(record, labels=[[0, 1], [0, 1]])])
    assert row.metrics["psnr"].interval == (15.0, 15.0)


def test_a_leak_is_told_from_none() -> None:
    leaking, tight = summarize([make_record(), make_record([7.0, 8.0, 9.0, 7.5], ranks=[30, 40, 9, 70])])
    assert leaking.verdict is not None
    assert tight.verdict is not None
    assert leaking.verdict.leaks
    assert leaking.verdict.identified == 3
    assert not tight.verdict.leaks
    assert "safe" not in tight.verdict.sentence


def test_the_verdict_prefers_the_view_that_is_blind_to_contrast() -> None:
    record = make_record(ranks=[0, 0, 0, 0])
    views = {"pixels": ranked(constant(50, 4)), "correlation": record.identification["correlation"]}
    (row,) = summarize([replace(record, identification=views)])
    assert row.verdict is not None
    assert row.verdict.identified == 4


def test_a_null_of_few_victims_is_shown_and_leaves_the_worst_case_alone() -> None:
    record = make_record()
    alone = {name: null for name, null in record.scores["psnr"].nulls.items() if name != "random-gradient"}
    without = replace(record, scores={"psnr": replace(record.scores["psnr"], nulls=alone)})
    rows = summarize([replace(record, scores={"psnr": record.scores["psnr"]}), without])
    assert rows[0].verdict == rows[1].verdict
    assert "random-gradient" in rows[0].metrics["psnr"].nulls


def test_nothing_to_compare_with_gives_no_verdict() -> None:
    bare = replace(make_record().scores["psnr"], nulls={})
    (row,) = summarize([replace(make_record(), scores={"psnr": bare}, identification={})])
    assert row.verdict is None
    assert "undecided" in shown([replace(make_record(), scores={"psnr": bare}, identification={})])


def test_a_defense_is_judged_by_the_worse_of_its_attacks() -> None:
    blind = make_record([7.0, 8.0, 9.0, 7.5], ranks=[30, 40, 9, 70], defenses=["pruning"])
    knowing = make_record(defenses=["pruning"], adaptive=True)
    other = make_record([7.0, 8.0, 9.0, 7.5], ranks=[30, 40, 9, 70], defenses=["gaussian-noise"])
    rows = summarize([blind, knowing, other])

    pruning, noise = overall(rows)
    assert pruning.row is rows[1]
    assert (pruning.cells, pruning.adaptive) == ((1, 2), True)
    assert noise.row is rows[2]
    assert not noise.adaptive
    assert worst(rows) is rows[1]


def informed(record: Record, attack: str, reason: str = "a reason") -> Record:
    threat = replace(record.threat, informed={"pruning": attack}, reasons={"pruning": reason})
    return replace(record, threat=threat)


def test_standard_and_informed_stand_side_by_side_and_the_worse_decides() -> None:
    weak = informed(make_record([7.0, 8.0, 9.0, 7.5], ranks=[30, 40, 9, 70], defenses=["pruning"]), "bayes-optimal")
    strong = informed(make_record(defenses=["pruning"], adaptive=True, attack="bayes-optimal"), "bayes-optimal")
    for order in ((weak, strong), (strong, weak)):
        (pair,) = pairs(summarize([make_record(), *order]))
        assert pair.standard is not None
        assert pair.adaptive is not None
        assert (pair.standard.adaptive, pair.adaptive.adaptive) == (False, True)
        assert pair.verdict is pair.adaptive
        assert pair.words == ""
    text = beside([make_record(), weak, strong])
    assert text.count("LEAKS") == 1
    assert "7.9" in text
    assert "15.2" in text
    assert "none" not in text


def test_a_defense_without_an_informed_attack_shows_the_reason_in_its_place() -> None:
    alone = informed(make_record(defenses=["pruning"]), "", "nobody has built one")
    (pair,) = pairs(summarize([alone]))
    assert (pair.adaptive, pair.words) == (None, "none run: nobody has built one")
    assert "nobody has built one" in " ".join(beside([alone]).split())
    unasked = make_record(defenses=["pruning"])
    assert pairs(summarize([unasked]))[0].words == "no informed adversary was asked for"


def test_an_informed_attack_that_failed_is_no_verdict_of_its_own() -> None:
    broken = replace(failed("no linear layer"), threat=Threat(knowledge=["defenses"], adaptive=True))
    (pair,) = pairs(summarize([make_record(defenses=["pruning"]), broken]))
    assert pair.adaptive is not None
    assert pair.adaptive.error == "no linear layer"
    assert pair.verdict is pair.standard
    assert "failed" in beside([make_record(defenses=["pruning"]), broken])


def test_what_stands_side_by_side_fits_a_hundred_columns() -> None:
    name = "transformation-policy:policy=3-1-7+43-18-18"
    long = informed(make_record(defenses=[name]), "", "a long reason " * 20)
    assert max(map(len, beside([long]).splitlines())) <= 100


def beside(records: list[Record]) -> str:
    console = Console(width=100, file=io.StringIO(), force_terminal=False)
    console.print(side_by_side(summarize(records)))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_failed_cell_keeps_its_error_in_one_line() -> None:
    rows = summarize([make_record(), failed("out of memory:\n\x1b[31m tried 3 GiB")])
    assert rows[1].error == "out of memory: [31m tried 3 GiB"
    assert rows[1].verdict is None
    assert overall(rows)[1].row is None
    assert "cell 2 failed: out of memory" in shown([make_record(), failed("out of memory")])


def test_the_terminal_table_fits_a_hundred_columns() -> None:
    long = make_record(
        defenses=["transformation-policy:policy=3-1-7+43-18-18"], attack="inverting-gradients:steps=4800"
    )
    text = shown([make_record(), long, failed()])
    assert max(map(len, text.splitlines())) <= 100
    for expected in ("LEAKS", "15.2", "±6.3", "24.0", "75.0%", "granted", "50.0%", "null: grey", "12.0"):
        assert expected in text


def test_null_lines_that_cells_share_are_listed_once() -> None:
    text = shown([make_record(), make_record([9.0, 9.0, 9.0, 9.0])])
    assert text.count("null: grey") == 1
    assert "all cells" in text


def test_text_of_a_record_is_no_markup_for_the_terminal() -> None:
    assert "[bold]evil[/bold]" in shown([make_record(attack="[bold]evil[/bold]")])


def test_label_accuracy_is_shown_where_labels_were_guessed() -> None:
    outcome = Outcome(objective=[], diverged=[], steps=[], label_accuracy=[1.0, 0.5, 1.0, 0.5])
    (row,) = summarize([replace(make_record(), outcome=outcome)])
    assert row.label_accuracy == 0.75
    assert "75.0%" in shown([replace(make_record(ranks=[9, 9, 9, 9]), outcome=outcome)])


def test_the_spreadsheet_holds_the_rows_at_full_precision() -> None:
    lines = list(csv.DictReader(io.StringIO(to_csv(summarize([make_record(), failed("=HYPERLINK(1)")])))))
    assert float(lines[0]["psnr_mean"]) == pytest.approx(np.mean([15.0, 12.5, 24.0, 9.5]), abs=1e-12)
    assert float(lines[0]["psnr_null_own-mean"]) == 13.0
    assert (lines[0]["leaks"], lines[0]["identified_correlation_rate"]) == ("true", "0.75")
    assert lines[1]["error"] == "'=HYPERLINK(1)"
    assert lines[1]["psnr_mean"] == ""


def test_facts_are_strict_json() -> None:
    blank = replace(make_record().scores["psnr"], protected=[])
    found = facts(summarize([replace(make_record(), scores={"psnr": blank}), failed()]))
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert (found[0]["leaks"], found[0]["psnr_worst"], found[0]["psnr_protected_mean"]) == (True, 24.0, None)
    assert (found[1]["leaks"], found[1]["error"]) == (None, "out of memory")


def test_a_tuned_attack_is_named_by_the_settings_that_were_chosen() -> None:
    plain = make_record(attack="dlg")
    tuned = replace(plain, outcome=replace(plain.outcome, search={"chosen": "dlg:lr=0.5", "trials": []}))
    assert [row.attack for row in summarize([plain, tuned])] == ["dlg", "dlg:lr=0.5 (tuned)"]
