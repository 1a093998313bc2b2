import errno
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from gradveil.errors import RecordError, SpecError
from gradveil.storage import TensorFolder, content_hash, refuse_another, write_atomically


def test_writes_and_replaces_whole_files(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "folder" / "record.json"
    write_atomically(file, b"first")
    write_atomically(file, b"second")
    assert file.read_bytes() == b"second"
    assert [entry.name for entry in file.parent.iterdir()] == ["record.json"]
    assert stat.S_IMODE(file.stat().st_mode) == 0o644


@pytest.mark.parametrize("moment", ["fsync", "replace"])
def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(
    moment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "record.json"
    write_atomically(file, b"old")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    owner: object = os if moment == "fsync" else Path
    monkeypatch.setattr(owner, moment, full)
    with pytest.raises(RecordError, match=r"the disk is full, so .*record\.json was not written"):
        write_atomically(file, b"new")
    assert file.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["record.json"]


def test_dying_while_writing_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "record.json"
    write_atomically(file, b"old")

    def killed(_: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", killed)
    with pytest.raises(KeyboardInterrupt):
        write_atomically(file, b"new")
    assert file.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["record.json"]


def test_says_in_one_sentence_why_it_cannot_write(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(RecordError, match=r"cannot be written \(.*\); choose another folder"):
        write_atomically(tmp_path / "file" / "record.json", b"content")
    (tmp_path / "folder").mkdir()
    with pytest.raises(RecordError, match="cannot be written"):
        write_atomically(tmp_path / "folder", b"content")


def test_tensors_come_back_as_they_were(tmp_path: Path) -> None:
    folder = TensorFolder(tmp_path / "states")
    state = {
        "value": torch.randn(3, 4, generator=torch.Generator().manual_seed(0)).double(),
        "turned": torch.arange(6).view(2, 3).T,
        "flags": torch.tensor([True, False]),
        "count": torch.tensor(7),
        "odd": torch.tensor([torch.nan, torch.inf, -0.0]),
        "empty": torch.zeros(3, 0),
        "half": torch.ones(2, dtype=torch.bfloat16),
        "graph": torch.ones(2, requires_grad=True),
    }
    assert folder.load("attack/0-4") is None
    folder.save("attack/0-4", state)
    loaded = folder.load("attack/0-4")
    assert loaded is not None
    assert loaded.keys() == state.keys()
    for name, tensor in state.items():
        assert loaded[name].dtype == tensor.dtype
        torch.testing.assert_close(loaded[name], tensor.detach(), rtol=0, atol=0, equal_nan=True)


def test_names_are_kept_apart(tmp_path: Path) -> None:
    folder = TensorFolder(tmp_path)
    for number, name in enumerate(("attack/0-4", "attack/4-8", "client/0-4")):
        folder.save(name, {"number": torch.tensor(number)})
    assert int((folder.load("attack/4-8") or {})["number"]) == 1


@pytest.mark.parametrize("content", [b"", b"{}", bytes(100), b"\xff" * 64])
def test_a_file_that_cannot_be_read_counts_as_none(content: bytes, tmp_path: Path) -> None:
    folder = TensorFolder(tmp_path)
    folder.save("state", {"value": torch.ones(3)})
    (file,) = tmp_path.iterdir()
    file.write_bytes(content)
    assert folder.load("state") is None


def test_several_may_clear_one_folder_at_once(tmp_path: Path) -> None:
    folder = TensorFolder(tmp_path / "states")
    with ThreadPoolExecutor(4) as pool:
        for _ in range(20):
            for number in range(8):
                folder.save(f"state-{number}", {"a": torch.ones(1)})
            list(pool.map(lambda _: folder.clear(), range(4)))
    assert not folder.path.exists()


def test_clearing_removes_states_and_an_empty_folder_alone(tmp_path: Path) -> None:
    folder = TensorFolder(tmp_path / "states")
    folder.clear()
    folder.save("state", {"value": torch.ones(3)})
    folder.clear()
    assert not (tmp_path / "states").exists()
    folder.save("state", {"value": torch.ones(3)})
    (tmp_path / "states" / "notes.txt").write_text("mine")
    folder.clear()
    assert [entry.name for entry in (tmp_path / "states").iterdir()] == ["notes.txt"]


def test_a_record_of_something_else_is_not_written_over(tmp_path: Path) -> None:
    file, about = tmp_path / "record.json", {"spec": {"seed": 0}, "images": (1, 2)}
    refuse_another(file, about)
    file.write_text('{"spec": {"seed": 0}, "images": [1, 2], "accuracy": 0.5}')
    refuse_another(file, about)
    with pytest.raises(SpecError, match="was made with another spec; remove it, or name another folder"):
        refuse_another(file, {**about, "spec": {"seed": 1}})
    for broken in ("{", "[]"):
        file.write_text(broken)
        with pytest.raises(SpecError, match="is not a record"):
            refuse_another(file, about)


def test_a_hash_tells_contents_shapes_and_formats_apart() -> None:
    numbers = torch.arange(6.0)
    others = (numbers + 1, numbers.view(2, 3), numbers.int(), numbers.double())
    hashes = {content_hash(tensor) for tensor in (numbers, *others)}
    assert len(hashes) == 5
    assert content_hash(numbers.view(2, 3).T) == content_hash(numbers.view(2, 3).T.contiguous())
