"""The samples that a client marked as sensitive, beside all of them."""

import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console
from synthetic_runs import draws, make_record, psnr, ranked

from gradveil.grid import Settings, run_audit
from gradveil.record import Record
from gradveil.report import facts, render, statistics, summarize, to_csv, to_rich
from gradveil.spec import AuditSpec

MARKS = [[False, True], [False, False], [True, True]]
VALUES = [[30.0, 9.0], [28.0, 27.0], [12.0, 13.0]]


def record(marks: list[list[bool]]) -> Record:
    """Make a cell of three updates of two images; those that are marked are far off."""
    scores = psnr(VALUES)
    others = draws(6.0, 9.0, victims=3, batch=2)
    scores = replace(scores, nulls={**scores.nulls, "other-of-class": others})
    made = replace(make_record([1.0, 2.0, 3.0]), scores={"psnr": scores}, labels=[[0, 1]] * 3, sensitive=marks)
    return replace(made, identification={"correlation": ranked([[0, 7], [0, 0], [0, 3]])})


def shown(made: Record) -> str:
    console = Console(width=100, file=io.StringIO(), force_terminal=False)
    rows = summarize([made])
    console.print(to_rich(rows))
    console.print(statistics(rows))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_marked_samples_have_a_row_of_their_own_made_of_their_numbers_alone() -> None:
    (row,) = summarize([record(MARKS)])
    alone = row.marked
    assert alone is not None
    assert alone.metrics["psnr"].summary.mean == pytest.approx((9.0 + 12.0 + 13.0) / 3)
    assert alone.metrics["psnr"].summary.worst == 13.0
    assert alone.identification["correlation"].identified == 1
    assert alone.identification["correlation"].total == 3
    others = np.asarray(record(MARKS).scores["psnr"].nulls["other-of-class"]).reshape(-1, 3, 2)
    assert alone.metrics["psnr"].nulls["other-of-class"] == pytest.approx(others[:, np.asarray(MARKS)].mean())
    assert row.verdict is not None
    assert row.verdict.leaks
    assert alone.verdict is not None
    assert not alone.verdict.leaks


@pytest.mark.parametrize("marks", [[], [[True, True]] * 3, [[False, False]] * 3], ids=["unsaid", "all", "none"])
def test_there_is_no_such_row_where_it_would_say_nothing_new(marks: list[list[bool]]) -> None:
    assert summarize([record(marks)])[0].marked is None
    assert "marked" not in shown(record(marks))


@pytest.mark.parametrize(("count", "mean"), [(1, (9.0 + 27.0 + 13.0) / 3), (2, None), (0, None)])
def test_an_older_record_tells_by_its_spec_which_samples_were_marked(count: int, mean: float | None) -> None:
    """Clients of the tables of DCS² mark the last samples of every batch; their first records do not hold the marks."""
    (row,) = summarize([replace(record([]), spec={"client": {"sensitive": count}})])
    assert (row.marked and row.marked.metrics["psnr"].summary.mean) == (mean and pytest.approx(mean))


def test_terminal_and_page_show_marked_samples() -> None:
    text = shown(record(MARKS))
    assert "marked" in text.split("statistics over")[0]
    assert "1, marked" in text
    assert "1, marked samples alone" in render([record(MARKS)], [{}], redact=True)


def test_spreadsheet_and_json_hold_the_statistics_of_marked_samples() -> None:
    marked, unsaid = facts(summarize([record(MARKS), record([])]))
    assert marked["psnr_mean"] == unsaid["psnr_mean"] == pytest.approx(np.mean(VALUES))
    assert marked["marked_psnr_mean"] == pytest.approx((9.0 + 12.0 + 13.0) / 3)
    assert marked["marked_identified_correlation_rate"] == pytest.approx(1 / 3)
    assert "marked_psnr_mean" in to_csv(summarize([record(MARKS)])).splitlines()[0]
    assert not any(name.startswith("marked") for name in unsaid)


def test_the_record_of_an_audit_keeps_which_images_were_marked(tmp_path: Path) -> None:
    for label in ("cat", "dog"):
        for k in range(4):
            file = tmp_path / "own" / label / f"{k}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            pixels = np.random.default_rng(len(label) + k).integers(256, size=(6, 6, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(file)
    (tmp_path / "own" / "sensitive.txt").write_text("\n".join(f"cat/{k}.png" for k in range(4)))
    spec = AuditSpec(
        dataset=f"folder:{tmp_path / 'own'}", models=("mlp:hidden=4",), attacks=("inverting-gradients:steps=1",),
        metrics=("psnr",), victims=1, batch_size=2, adaptive=False, decoys=2, null_victims=0,
    )  # fmt: skip
    (made,) = run_audit(spec, tmp_path / "run", settings=Settings(device=torch.device("cpu"), redact=True))
    assert made.sensitive == [[label == 0 for label in row] for row in made.labels]
