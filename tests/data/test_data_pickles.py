"""Pickles are programs; ours may build arrays and nothing else."""

import os
import pickle
import struct
from pathlib import Path

import numpy as np
import pytest
from published_files import Entry, pixels, python2_pickle, python3_pickle, write, write_cifar100

from gradveil import data
from gradveil.data._pickles import read_pickle
from gradveil.errors import DataError


class Call:
    """Pickles into a call of a function."""

    def __init__(self, function: object, *arguments: object) -> None:
        self.call = function, arguments

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return self.call


def test_reads_what_python_two_and_three_wrote_as_pickle_itself_does(tmp_path: Path) -> None:
    entries: dict[str, Entry] = {"data": pixels(3, 3072), "labels": [0, 5, 300], "names": ["cat", "dog"]}
    for content in (python2_pickle(entries), python3_pickle(entries)):
        trusted = pickle.loads(content, encoding="latin1")
        ours = read_pickle(write(tmp_path / "batch", content))
        np.testing.assert_array_equal(ours.images().reshape(3, 3072), trusted["data"])
        assert ours.labels("labels") == trusted["labels"] == [0, 5, 300]
        assert ours.names("names") == ("cat", "dog")


def test_reads_arrays_in_fortran_order(tmp_path: Path) -> None:
    array = np.asfortranarray(pixels(2, 3072))
    content = read_pickle(write(tmp_path / "batch", python3_pickle({"data": array})))
    np.testing.assert_array_equal(content.images().reshape(2, 3072), array)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_refuses_to_run_a_command_and_names_it(protocol: int, tmp_path: Path) -> None:
    write_cifar100(tmp_path)
    mark = tmp_path / "executed"
    content = pickle.dumps({"data": Call(os.system, f"touch {mark}"), "fine_labels": [0]}, protocol=protocol)
    write(tmp_path / "cifar-100-python/train", content)
    with pytest.raises(DataError, match=r"asks to call \w+\.system.*not run"):
        data.load("cifar100", tmp_path)
    assert not mark.exists()

    pickle.loads(content)
    assert mark.exists(), "the pickle is harmless, so the test shows nothing"


@pytest.mark.parametrize("function", [eval, getattr, np.load, bytearray, np.frombuffer])
def test_refuses_every_other_name(function: object, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="the published file never does"):
        read_pickle(write(tmp_path / "batch", pickle.dumps({"data": Call(function, "x")})))


def test_never_takes_bytes_for_objects(tmp_path: Path) -> None:
    """A forged dtype (objects whose flags deny it) makes numpy itself follow addresses that stand in the file."""
    honest = python2_pickle({"data": pixels(1, 3072)})
    forged = honest.replace(b"U\x02u1", b"U\x02O8")
    assert forged != honest
    with pytest.raises(DataError, match="its numbers are not bytes"):
        read_pickle(write(tmp_path / "batch", forged)).images()


def test_refuses_arrays_that_lie_about_their_size(tmp_path: Path) -> None:
    honest = python2_pickle({"data": pixels(1, 3072)})
    lying = honest.replace(struct.pack("<i", 1) + b"J", struct.pack("<i", 2**31 - 1) + b"J")
    assert lying != honest
    with pytest.raises(DataError, match="cannot reshape"):
        read_pickle(write(tmp_path / "batch", lying)).images()


@pytest.mark.parametrize("content", [b"\x80\x02]q\x00.", b"\x80\x02N."])
def test_refuses_anything_but_a_dictionary(content: bytes, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="must hold a dictionary"):
        read_pickle(write(tmp_path / "batch", content))


def test_a_flipped_byte_anywhere_never_escapes_as_another_error(tmp_path: Path) -> None:
    content = python2_pickle({"data": pixels(1, 3072), "labels": [3]})
    generator = np.random.default_rng(0)
    refused = 0
    for position in [*range(120), *range(len(content) - 60, len(content))]:
        broken = bytearray(content)
        broken[position] ^= int(generator.integers(1, 256))
        try:
            batch = read_pickle(write(tmp_path / "batch", bytes(broken)))
            batch.images(), batch.labels("labels")
        except DataError:
            refused += 1
    assert refused > 100
