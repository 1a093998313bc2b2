import dataclasses
import errno
import json
import math
import os
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch

from gradveil import record
from gradveil.errors import RecordError
from gradveil.record import Identification, Network, Outcome, Record, Scores, Threat, about_this_run

FULL = Record(
    spec={"audit": {"dataset": "digits", "victims": 2}, "cell": {"attack": "dlg"}},
    status="done",
    title='dlg on "lenet"',
    attack="dlg",
    defenses=["pruning:fraction=0.5"],
    threat=Threat(
        knowledge=["labels"], letter="B", adaptive=True, informed={"pruning": "dlg"}, reasons={"pruning": "zeros show"}
    ),
    network=Network(
        spec="lenet",
        state="trained",
        mode="eval",
        parameters=12,
        accuracy=1 / 3,
        accuracy_of="naïve",
        training={"seed": 3, "history": [{"loss": 0.5, "accuracy": None}]},
    ),
    outcome=Outcome(
        objective=[math.inf, 1e-300],
        diverged=[True, False],
        steps=[3, 4],
        label_accuracy=[0.5, 1.0],
        details={"shift": [[0.5, -math.inf], [1.0, 2.0]]},
        too_large={"picture": [1, 20, 20]},
        certificate={"error bound": [0.25, math.inf]},
        search={"chosen": "dlg", "trials": [{"setting": "dlg", "psnr": 12.5}]},
    ),
    scores={
        "psnr": Scores(
            private=[[0.1 + 0.2], [-math.inf]], protected=[[1.0], [2.0]], nulls={"grey": [[7.0]]}, unit="dB", title="P"
        )
    },
    identification={"pixels": Identification(ranks=[[0.0], [1.5]], nulls={"grey": [[2.0]]}, decoys=9)},
    labels=[[1], [0]],
    classes=["nan", "inf"],
    ratios={"fc.weight": [math.inf, 2.5]},
    regions={"fc": "white"},
    run=about_this_run(seconds={"attack": 1.23456}, chunk=2, device=torch.device("cpu")),
)


def images() -> dict[str, npt.NDArray[np.uint8]]:
    shape = (2, 1, 1, 2, 2)
    return {name: np.full(shape, value, np.uint8) for value, name in enumerate(("private", "protected", "guess"))}


def test_comes_back_as_it_was_written(tmp_path: Path) -> None:
    kept = record.write(FULL, tmp_path, images=images())
    assert kept == dataclasses.replace(FULL, images="images.npz")
    assert record.read(tmp_path) == kept
    assert record.read(tmp_path / "record.json") == kept
    found = record.read_images(tmp_path, kept)
    assert all(np.array_equal(found[name], array) for name, array in images().items())
    assert found.keys() == images().keys()


def test_is_json_that_every_program_reads(tmp_path: Path) -> None:
    def refuse(word: str) -> float:
        raise AssertionError(f"{word} is not JSON")

    record.write(FULL, tmp_path)
    content = json.loads((tmp_path / "record.json").read_text(), parse_constant=refuse)
    assert content["format"] == record.FORMAT
    assert content["outcome"]["objective"] == ["inf", 1e-300]


def test_not_a_number_comes_back_as_such(tmp_path: Path) -> None:
    broken = dataclasses.replace(FULL, ratios={"w": [math.nan]})
    record.write(broken, tmp_path)
    assert math.isnan(record.read(tmp_path).ratios["w"][0])


def test_without_images_none_stay_behind(tmp_path: Path) -> None:
    record.write(FULL, tmp_path, images=images())
    record.write(FULL, tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["record.json"]
    assert record.read_images(tmp_path, record.read(tmp_path)) == {}


def test_redaction_removes_the_images_and_keeps_the_numbers(tmp_path: Path) -> None:
    kept = record.redact(record.write(FULL, tmp_path, images=images()), tmp_path)
    assert kept == FULL == record.read(tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["record.json"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is not a record of GradVeil"),
        ("{", "is not a record of GradVeil"),
        ("[]", "is not a record of GradVeil"),
        ("3", "is not a record of GradVeil"),
        ("{}", "has format None, this version reads 1"),
        ('{"format": 99}', "has format 99, this version reads 1; run the audit again"),
        ('{"format": 1}', "is not a record of GradVeil"),
        ('{"format": 1, "outcome": 3, "scores": 3, "identification": {}, "ratios": {}}', "is not a record of GradVeil"),
    ],
)
def test_a_file_that_is_no_record_is_one_sentence(content: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "record.json").write_text(content)
    with pytest.raises(RecordError, match=message):
        record.read(tmp_path)


def test_bytes_that_are_no_text_are_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "record.json").write_bytes(b"\xff\xfe")
    with pytest.raises(RecordError, match="is not a record of GradVeil"):
        record.read(tmp_path)


def test_half_a_record_is_one_sentence(tmp_path: Path) -> None:
    record.write(FULL, tmp_path)
    file = tmp_path / "record.json"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(RecordError, match="is not a record of GradVeil"):
        record.read(tmp_path)


def test_a_missing_record_says_what_to_name(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"there is no record at .*; name a run folder of `gradveil audit`"):
        record.read(tmp_path)


def test_a_record_that_may_not_be_read_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(*_: object, **__: object) -> str:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "read_text", denied)
    with pytest.raises(RecordError, match=r"cannot be read \(Permission denied\)"):
        record.read(tmp_path)


def test_a_record_of_before_has_nothing_in_the_later_fields(tmp_path: Path) -> None:
    record.write(FULL, tmp_path)
    file = tmp_path / "record.json"
    content = json.loads(file.read_text())
    del content["regions"]
    for part, later in {
        "threat": ("informed", "reasons"),
        "network": ("training",),
        "outcome": ("details", "too_large", "certificate"),
    }.items():
        for name in later:
            del content[part][name]
    file.write_text(json.dumps(content))
    found = record.read(tmp_path)
    assert (found.regions, found.threat.informed, found.network.training, found.outcome.details) == ({}, {}, {}, {})
    assert found.scores == FULL.scores


def test_a_later_field_is_passed_over(tmp_path: Path) -> None:
    record.write(FULL, tmp_path)
    file = tmp_path / "record.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "weather": "fine"}))
    assert record.read(tmp_path) == FULL


def test_missing_or_damaged_images_are_one_sentence(tmp_path: Path) -> None:
    kept = record.write(FULL, tmp_path, images=images())
    file = tmp_path / "images.npz"
    for content in (b"", b"nothing", file.read_bytes()[:-40], pickled(tmp_path)):
        file.write_bytes(content)
        with pytest.raises(RecordError, match="missing or damaged"):
            record.read_images(tmp_path, kept)
    file.unlink()
    with pytest.raises(RecordError, match="missing or damaged"):
        record.read_images(tmp_path, kept)


def pickled(folder: Path) -> bytes:
    """Make an archive whose array would have to be unpickled."""
    file = folder / "objects.npz"
    np.savez(file, private=np.array([{}], dtype=object))
    return file.read_bytes()


def test_images_are_looked_for_beside_the_record_alone(tmp_path: Path) -> None:
    cell = tmp_path / "cell"
    record.write(FULL, tmp_path, images=images())
    record.write(FULL, cell)
    elsewhere = dataclasses.replace(FULL, images="../images.npz")
    with pytest.raises(RecordError, match="missing or damaged"):
        record.read_images(cell, elsewhere)


@pytest.mark.parametrize("call", [0, 1])
def test_a_full_disk_leaves_the_older_record_whole(call: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    older = record.write(FULL, tmp_path, images=images())
    calls = []

    def full(descriptor: int) -> None:
        calls.append(descriptor)
        if len(calls) > call:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    newer = dataclasses.replace(FULL, title="newer")
    with pytest.raises(RecordError, match="the disk is full"):
        record.write(newer, tmp_path, images=images())
    assert record.read(tmp_path) == older
    assert {file.name for file in tmp_path.iterdir()} == {"record.json", "images.npz"}


def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(RecordError, match="cannot be written"):
        record.write(FULL, tmp_path / "file" / "cell")
