"""`gradveil search` on the command line, and the contact sheet."""

import io
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console
from typer.testing import CliRunner

from gradveil.cli.search import app, to_table
from gradveil.errors import DataError, RecordError, SpecError
from gradveil.policies import ScoredPolicy, SearchRecord, contact_sheet, read
from gradveil.transforms import Variants, parse_policy, transform_bytes

SMALL = [
    "--dataset", "digits", "--model", "mlp:hidden=8", "--policies", "4", "--threshold", "-1e9", "--include", "3-1-7",
    "--settings", "images=3,rounds=2,round_size=8,intervals=2,batch=3", "--training", "epochs=1,lr=0.01",
    "--precision", "float32", "--device", "cpu",
]  # fmt: skip


def call(*arguments: str) -> str:
    done = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def test_searches_and_keeps_a_record_that_the_same_command_returns(tmp_path: Path) -> None:
    shown = call(*SMALL, "--out", str(tmp_path), "--quiet")
    record = read(tmp_path)
    assert record.status == "done"
    assert len(record.scored) == 2 + 4
    assert record.hybrid in shown
    again = json.loads(call(*SMALL, "--out", str(tmp_path), "--json"))
    assert [entry["policy"] for entry in again["scored"]] == [entry.policy for entry in record.scored]
    assert again["run"]["date"] == record.run.date if record.run else False


def test_shows_no_policy_beneath_the_best() -> None:
    none = ScoredPolicy(policy="28", accuracy=-60.0, privacy=0.44, privacy_error=0.01, origin="given")
    best = ScoredPolicy(policy="3-1-7", accuracy=-70.0, privacy=0.31, origin="given")
    record = SearchRecord(spec={}, status="running", threshold=-85.0, scored=[none, best], best=[best])
    screen = Console(width=120, file=io.StringIO(), record=True)
    screen.print(to_table(record))
    rows = [[cell.strip() for cell in line.split("│")] for line in screen.export_text().splitlines() if "│" in line]
    assert to_table(record).title == "2 policies scored"  # of none drawn, no share passes
    assert rows == [
        ["", "3-1-7", "translate-x 9, contrast 6, translate-y 2", "0.3100", "-70.00", ""],
        ["", "none", "no policy", "0.4400 ± 0.0100", "-60.00", ""],
    ]


def test_says_what_to_do_where_nothing_passes(tmp_path: Path) -> None:
    arguments = [*SMALL[: SMALL.index("--threshold")], "--threshold", "0", *SMALL[SMALL.index("--include") :]]
    assert "lower --threshold" in call(*arguments, "--out", str(tmp_path))


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--settings", "images=0"], "images must be at least 1"),
        (["--method", "magic"], "method must be random or evolution"),
        (["--include", "3-50"], "'50' at position 3"),
        (["--include", ""], "empty at position 1"),
        (["--include", "3-"], "'' at position 3"),
        (["--include", "1-2-3-4"], "has 4 operations, at most 3"),
        (["--policies", "0"], "include policies"),
        (["--adversary", "angry"], "adversary must be plain or aware"),
        (["--training", "lr=-1"], "lr must be above 0"),
        (["--precision", "half"], "precision must be one of"),
        (["--device", "abacus"], "device"),
        (["--model", "mlp:hidden=0"], "model 'mlp:hidden=0': hidden must be at least 1"),
        (["--seed", str(2**70)], "seed must be at least 0 and below"),
    ],
)
def test_refuses_wrong_use_in_one_sentence(arguments: list[str], complaint: str) -> None:
    with pytest.raises(SpecError, match=complaint):
        call(*arguments)


def test_refuses_a_data_set_of_one_class(tmp_path: Path) -> None:
    for split in ("train", "test"):
        for number in range(4):
            file = tmp_path / "images" / split / "only" / f"{number}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (8, 8), (number, 0, 0)).save(file)
    with pytest.raises(DataError, match="class"):
        call("--dataset", f"folder:{tmp_path / 'images'},size=8", "--out", str(tmp_path / "run"), "--quiet")


def test_shows_a_policy_as_a_contact_sheet(tmp_path: Path) -> None:
    file = tmp_path / "sheet.png"
    shown = call("show", "3-1-7+9", "--dataset", "digits", "--images", "3", "--out", str(file))
    assert "translate-x 9, contrast 6, translate-y 2" in shown
    with Image.open(file) as sheet:
        assert sheet.size == (260 + 3 * 76, (1 + 8 + 1 + 1) * 76)
    with pytest.raises(SpecError, match="'99' at position 1"):
        call("show", "99")
    with pytest.raises(SpecError, match="dataset stands before show, which takes its own; write it behind"):
        call("--dataset", "cifar100", "show", "3")
    with pytest.raises(SpecError, match="index of a test image"):
        call("show", "3", "--start", "100000")


def test_the_sheet_holds_the_image_above_its_transformed_forms() -> None:
    images = torch.randint(256, (2, 3, 40, 40), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    with Image.open(io.BytesIO(contact_sheet(parse_policy("1"), images))) as sheet:
        pixels = torch.from_numpy(np.array(sheet)).permute(2, 0, 1)[:, ::2, ::2]  # shown at twice the size
    made = transform_bytes(images, Variants(torch.tensor([[1], [1]]), torch.tensor([[-1], [-1]])))
    left = 130 + 42
    assert torch.equal(pixels[:, :40, left : left + 40], images[1])
    assert torch.equal(pixels[:, 2 * 42 : 2 * 42 + 40, left : left + 40], made[1])


def test_the_sheet_refuses_what_is_no_image() -> None:
    with pytest.raises(DataError, match="bytes"):
        contact_sheet(parse_policy("1"), torch.zeros(1, 3, 8, 8))


def test_scores_the_best_of_another_search_on_this_data_set(tmp_path: Path) -> None:
    call(*SMALL, "--out", str(tmp_path / "there"), "--quiet")
    there = read(tmp_path / "there")
    bare = [*SMALL[:4], *SMALL[6:]]  # without a budget
    shown = call(*bare, "--seed", "1", "--transfer", str(tmp_path / "there"), "--out", str(tmp_path / "here"))
    here = read(tmp_path / "here")
    assert {entry.policy for entry in here.scored} == {"28", "3-1-7", *(entry.policy for entry in there.best)}
    assert {entry.origin for entry in here.scored} == {"given"}
    assert "policies in" in shown
    assert "accuracy" in shown
    with pytest.raises(RecordError, match="no search at"):
        call(*SMALL, "--transfer", str(tmp_path / "nowhere"))


def test_a_transfer_leaves_the_flags_of_the_search_as_they_are(tmp_path: Path) -> None:
    there, here, more = (tmp_path / name for name in ("there", "here", "more"))
    bare = [*SMALL[:4], *SMALL[6:8], *SMALL[10:], "--quiet"]  # without a budget and includes
    call(*bare, "--policies", "2", "--length", "2", "--include", "3-1", "--out", str(there))
    call(*bare, "--length", "3", "--include", "1-2-4", "--transfer", str(there), "--out", str(here))
    assert {"1-2-4", "3-1"} <= {entry.policy for entry in read(here).scored}
    call(*bare, "--policies", "3", "--transfer", str(there), "--out", str(more))
    assert sum(entry.origin == "random" for entry in read(more).scored) == 3
    with pytest.raises(SpecError, match="empty at position 1"):
        call(*bare, "--include", "", "--transfer", str(there))
    with pytest.raises(SpecError, match="at most 1 are allowed"):
        call(*bare, "--length", "1", "--transfer", str(there))


def test_says_so_where_there_is_nothing_to_transfer(tmp_path: Path) -> None:
    call(*SMALL, "--threshold", "0", "--out", str(tmp_path), "--quiet")
    with pytest.raises(SpecError, match=r"no policy passes in .*; search with a lower --threshold there"):
        call(*SMALL, "--transfer", str(tmp_path))


def test_searches_against_an_adversary_who_knows_the_policy(tmp_path: Path) -> None:
    shared = tmp_path / "networks"
    shown = call(*SMALL, "--adversary", "aware", "--out", str(tmp_path / "run"), "--networks", str(shared))
    assert "S_aware" in shown
    assert all(entry.aware is not None for entry in read(tmp_path / "run").scored)
    assert [file.name for file in shared.glob("semi-trained-*.safetensors")]


def test_goes_on_from_an_earlier_search_against_an_informed_adversary(tmp_path: Path) -> None:
    plain, aware = str(tmp_path / "plain"), str(tmp_path / "aware")
    call(*SMALL, "--policies", "2", "--out", plain, "--quiet")
    shown = call(*SMALL, "--top", "1", "--adversary", "aware", "--policies", "2", "--from", plain, "--out", aware)
    record = read(tmp_path / "aware")
    looked_at = sum(entry.aware is not None for entry in record.scored)
    assert record.taken_over == 4
    assert f"4 policies (4 taken over, {looked_at} looked at by an informed adversary) in" in shown
    assert not (tmp_path / "aware" / "models").exists()  # those of the earlier search
    with pytest.raises(SpecError, match="it has seed 0 where this one has 5; repeat"):
        call(*SMALL, "--seed", "5", "--from", plain, "--out", str(tmp_path / "other"))
