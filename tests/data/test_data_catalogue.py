"""The list of data sets, and where they lie."""

import dataclasses
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from published_files import write_cifar100

from gradveil import data

NAMES = ("celeba", "cifar10", "cifar100", "digits", "fashion-mnist", "folder", "ham10000", "mnist", "svhn")


def test_every_file_is_a_data_set_by_its_name() -> None:
    assert data.sources.names() == NAMES
    for name in NAMES:
        source = data.sources.get(name)
        assert issubclass(source, data.Source)
        assert data.sources.name_of(source) == name
        assert dataclasses.is_dataclass(source)


def test_the_folder_is_the_argument_then_the_environment_then_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADVEIL_DATA", "/from/environment")
    assert data.data_root(Path("/given")) == Path("/given")
    assert data.data_root() == Path("/from/environment")
    monkeypatch.setenv("GRADVEIL_DATA", "")
    assert data.data_root() == Path.home() / ".cache/gradveil/data"
    monkeypatch.delenv("GRADVEIL_DATA")
    assert data.data_root() == Path.home() / ".cache/gradveil/data"


def test_loading_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    write_cifar100(tmp_path)
    monkeypatch.setenv("GRADVEIL_DATA", str(tmp_path))
    assert len(data.load("cifar100").train) == 4


def test_lists_what_is_there_and_how_to_get_the_rest(tmp_path: Path) -> None:
    write_cifar100(tmp_path)
    listed = data.available(tmp_path)
    assert [name for name, present, _ in listed if present] == ["cifar100", "digits", "folder"]
    assert all(item.explanation == data.explain(item.name) for item in listed)


def test_a_file_that_is_missing_makes_a_data_set_absent(tmp_path: Path) -> None:
    write_cifar100(tmp_path)
    (tmp_path / "cifar-100-python/meta").unlink()
    assert not data.sources.get("cifar100").present(tmp_path)


@pytest.mark.parametrize("name", [name for name in NAMES if data.sources.get(name).files])
def test_explains_where_each_file_comes_from_and_goes(name: str) -> None:
    text = data.explain(name)
    for file in data.sources.get(name).files:
        assert file.path in text
        assert file.url in text
        assert all(f"unpacked to {Path(member).parent}/" in text for member in file.members)
    assert (f"gradveil data download {name}" in text) == (name != "celeba")


@pytest.mark.parametrize("name", NAMES)
def test_published_files_stay_inside_the_data_folder_and_carry_a_checksum(name: str) -> None:
    for file in data.sources.get(name).files:
        for path in (file.path, *file.members):
            assert not Path(path).is_absolute()
            assert ".." not in Path(path).parts
        if file.url:
            assert urlsplit(file.url).scheme in {"http", "https"}
            assert len(bytes.fromhex(file.sha256)) == 32
