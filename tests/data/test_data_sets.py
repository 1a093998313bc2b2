"""Reading each data set from tiny files in its published layout, whole and damaged."""

import gzip
import io
from pathlib import Path

import numpy as np
import pytest
import torch
from published_files import WRITERS, Entry, idx, pixels, python2_pickle, write, write_cifar10, write_mnist, write_npz
from scipy.io import savemat

from gradveil import data
from gradveil.errors import DataError, UnknownNameError

SHAPES = {
    "mnist": (6, 3, (1, 28, 28), 10),
    "fashion-mnist": (6, 3, (1, 28, 28), 10),
    "cifar10": (10, 3, (3, 32, 32), 10),
    "cifar100": (4, 2, (3, 32, 32), 100),
    "svhn": (4, 2, (3, 32, 32), 10),
    "ham10000": (5, 3, (3, 28, 28), 7),
    "celeba": (4, 2, (3, 32, 32), 2),
}
FILES = sorted(
    (name, member)
    for name in WRITERS
    for file in data.sources.get(name).files
    for member in file.members or (file.path,)
)


@pytest.mark.parametrize("name", WRITERS)
def test_reads_the_published_layout(name: str, tmp_path: Path) -> None:
    assert not data.sources.get(name).present(tmp_path)
    WRITERS[name](tmp_path)
    loaded = data.load(name, tmp_path)

    assert data.sources.get(name).present(tmp_path)
    assert loaded.name == name
    assert (len(loaded.train), len(loaded.test), loaded.input_shape, loaded.num_classes) == SHAPES[name]
    assert loaded.train.images.dtype == torch.uint8
    assert loaded.train.images.is_contiguous()
    assert len(loaded.mean) == len(loaded.std) == loaded.input_shape[0]


def test_idx_images_and_labels_arrive_unchanged(tmp_path: Path) -> None:
    write_mnist(tmp_path)
    split = data.load("mnist", tmp_path).train
    np.testing.assert_array_equal(split.images[:, 0].numpy(), pixels(6, 28, 28))
    assert split.labels.tolist() == [0, 1, 2, 3, 4, 5]


def test_fashion_images_are_set_on_a_canvas_and_their_statistics_with_them(tmp_path: Path) -> None:
    WRITERS["fashion-mnist"](tmp_path)
    plain, wide = data.load("fashion-mnist", tmp_path), data.load("fashion-mnist:canvas=32", tmp_path)
    assert (wide.name, wide.input_shape) == ("fashion-mnist:canvas=32", (1, 32, 32))
    for own, framed in ((plain.train, wide.train), (plain.test, wide.test)):
        assert torch.equal(framed.images[:, :, 2:30, 2:30], own.images)
        assert int(framed.images.sum(dtype=torch.int64)) == int(own.images.sum(dtype=torch.int64))
        assert torch.equal(framed.labels, own.labels)
    # A picture of the published mean and deviation, framed in black, has those of the canvas.
    pixels = plain.mean[0] + plain.std[0] * torch.tensor([-1.0, 1.0], dtype=torch.float64).repeat(28 * 28 // 2)
    framed_pixels = torch.cat([pixels, torch.zeros(32 * 32 - 28 * 28, dtype=torch.float64)])
    assert wide.mean[0] == pytest.approx(float(framed_pixels.mean()))
    assert wide.std[0] == pytest.approx(float(framed_pixels.std(correction=0)))


@pytest.mark.parametrize("canvas", [26, 33])
def test_a_canvas_that_does_not_fit_evenly_is_refused(canvas: int, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="canvas must be an even number of at least 28 pixels"):
        data.load(f"fashion-mnist:canvas={canvas}", tmp_path)


def test_uncompressed_idx_files_do_as_well(tmp_path: Path) -> None:
    write_mnist(tmp_path)
    before = data.load("mnist", tmp_path)
    for path in sorted(tmp_path.rglob("*.gz")):
        path.with_suffix("").write_bytes(gzip.decompress(path.read_bytes()))
        path.unlink()
    after = data.load("mnist", tmp_path)
    assert data.sources.get("mnist").present(tmp_path)
    assert torch.equal(before.test.images, after.test.images)


def test_cifar_rows_are_three_planes_and_batches_keep_their_order(tmp_path: Path) -> None:
    write_cifar10(tmp_path)
    loaded = data.load("cifar10", tmp_path)
    expected = np.concatenate([pixels(2, 3072, seed=k) for k in range(1, 6)]).reshape(10, 3, 32, 32)
    np.testing.assert_array_equal(loaded.train.images.numpy(), expected)
    assert loaded.train.labels.tolist() == [1, 0, 2, 0, 3, 0, 4, 0, 5, 0]
    assert loaded.classes[3] == "class 3"


def test_svhn_calls_class_ten_the_digit_zero_and_moves_the_image_axis_first(tmp_path: Path) -> None:
    WRITERS["svhn"](tmp_path)
    split = data.load("svhn", tmp_path).train
    assert split.labels.tolist() == [1, 2, 0, 4]
    original = pixels(32, 32, 3, 4)
    assert all(split.images[i, c, y, x] == original[y, x, c, i] for i, c, y, x in [(0, 1, 2, 3), (3, 2, 31, 5)])


def test_celeba_tells_who_is_who(tmp_path: Path) -> None:
    WRITERS["celeba"](tmp_path)
    split = data.load("celeba", tmp_path).train
    assert split.identity is not None
    assert split.identity.tolist() == [100, 101, 102, 103]
    assert split.select([2]).identity is not None


def test_digits_need_no_files_and_are_the_same_every_time(tmp_path: Path) -> None:
    from sklearn.datasets import load_digits

    loaded, again = data.load("digits", tmp_path), data.load("digits", tmp_path)
    assert torch.equal(loaded.test.images, again.test.images)
    assert loaded.input_shape == (1, 8, 8)
    assert loaded.train.images.unique().tolist() == [round(k * 255 / 16) for k in range(17)]

    everything = torch.cat([loaded.train.inputs(), loaded.test.inputs()])[:, 0]
    original = torch.from_numpy(load_digits().images).float() / 16
    assert torch.allclose(everything.sum(0), original.sum(0), atol=0.002 * len(original))
    shares = data.class_counts(loaded.test, 10) / data.class_counts(loaded.train, 10)
    assert shares.sub(0.25).abs().max() < 0.01


@pytest.mark.parametrize(("name", "path"), FILES)
@pytest.mark.parametrize("damage", ["cut in half", "emptied", "of noise"])
def test_a_damaged_file_is_named_in_one_sentence(name: str, path: str, damage: str, tmp_path: Path) -> None:
    WRITERS[name](tmp_path)
    content = (tmp_path / path).read_bytes()
    replacement = {"cut in half": content[: len(content) // 2], "emptied": b"", "of noise": pixels(500).tobytes()}
    (tmp_path / path).write_bytes(replacement[damage])
    with pytest.raises(DataError, match=Path(path).name) as caught:
        data.load(name, tmp_path)
    assert "get the published" in str(caught.value)


@pytest.mark.parametrize(("name", "path"), FILES)
def test_a_missing_file_is_named_with_the_way_to_get_it(name: str, path: str, tmp_path: Path) -> None:
    WRITERS[name](tmp_path)
    (tmp_path / path).unlink()
    with pytest.raises(DataError) as caught:
        data.load(name, tmp_path)
    assert str(tmp_path / path) in str(caught.value)
    assert f"gradveil data explain {name}" in str(caught.value)
    assert (f"gradveil data download {name}" in str(caught.value)) == (name != "celeba")


def test_idx_files_of_another_kind_are_refused(tmp_path: Path) -> None:
    write_mnist(tmp_path)
    images = tmp_path / "MNIST/raw/train-images-idx3-ubyte.gz"
    images.write_bytes(gzip.compress(idx(pixels(6))))
    with pytest.raises(DataError, match=r"must begin with 00000803.*got 00000801"):
        data.load("mnist", tmp_path)
    images.write_bytes(gzip.compress(idx(pixels(6, 28, 28))[:-1]))
    with pytest.raises(DataError, match="announces 6 x 28 x 28 bytes but holds 4703"):
        data.load("mnist", tmp_path)
    images.write_bytes(gzip.compress(idx(pixels(6, 28, 28))[:7]))
    with pytest.raises(DataError, match="holds 0"):
        data.load("mnist", tmp_path)


def test_images_and_labels_must_be_equally_many(tmp_path: Path) -> None:
    write_mnist(tmp_path)
    write(tmp_path / "MNIST/raw/train-labels-idx1-ubyte.gz", gzip.compress(idx(pixels(5))))
    with pytest.raises(DataError, match="6 images but 5 labels"):
        data.load("mnist", tmp_path)


def test_labels_out_of_range_are_refused(tmp_path: Path) -> None:
    write_mnist(tmp_path)
    labels = np.array([0, 1, 10], dtype=np.uint8)
    write(tmp_path / "MNIST/raw/t10k-labels-idx1-ubyte.gz", gzip.compress(idx(labels)))
    with pytest.raises(DataError, match="test split of mnist must be 0 to 9, got 0 to 10"):
        data.load("mnist", tmp_path)


def test_an_empty_data_set_is_refused(tmp_path: Path) -> None:
    write_mnist(tmp_path)
    write(tmp_path / "MNIST/raw/t10k-images-idx3-ubyte.gz", gzip.compress(idx(pixels(0, 28, 28))))
    write(tmp_path / "MNIST/raw/t10k-labels-idx1-ubyte.gz", gzip.compress(idx(pixels(0))))
    with pytest.raises(DataError, match="test split of mnist holds no images"):
        data.load("mnist", tmp_path)


def test_npz_files_with_other_or_pickled_arrays_are_refused(tmp_path: Path) -> None:
    write_npz(tmp_path / "dermamnist.npz", {"train_images": pixels(2, 28, 28, 3)})
    with pytest.raises(DataError, match=r"no array train_labels.*holds train_images"):
        data.load("ham10000", tmp_path)
    names = ("train_images", "train_labels", "test_images", "test_labels")
    write_npz(tmp_path / "dermamnist.npz", {name: np.array([{}], dtype=object) for name in names})
    with pytest.raises(DataError, match="allow_pickle"):
        data.load("ham10000", tmp_path)
    write_npz(tmp_path / "dermamnist.npz", {name: pixels(2, 28, 28) for name in names})
    with pytest.raises(DataError, match=r"must be \(N, H, W, 3\)"):
        data.load("ham10000", tmp_path)


def test_mat_files_with_other_arrays_are_refused(tmp_path: Path) -> None:
    WRITERS["svhn"](tmp_path)
    for arrays, message in (
        ({"Z": pixels(2)}, "arrays X and y"),
        ({"X": pixels(2, 2), "y": pixels(2)}, "four axes"),
        ({"X": np.zeros((32, 32, 3, 2)), "y": pixels(2)}, "uint8"),
        ({"X": pixels(32, 32, 3, 2), "y": np.array([0.5, 1.5])}, "whole numbers"),
    ):
        buffer = io.BytesIO()
        savemat(buffer, arrays)
        write(tmp_path / "svhn/train_32x32.mat", buffer.getvalue())
        with pytest.raises(DataError, match=message):
            data.load("svhn", tmp_path)


def test_celeba_identities_must_fit_the_images(tmp_path: Path) -> None:
    arrays = {"train_images": pixels(2, 32, 32, 3), "train_male": pixels(2) % 2, "train_identity": pixels(3)}
    write_npz(tmp_path / "celeba_32.npz", arrays)
    with pytest.raises(DataError, match="train_identity"):
        data.load("celeba", tmp_path)


def test_cifar_files_without_the_right_entries_are_refused(tmp_path: Path) -> None:
    write_cifar10(tmp_path)
    cases: list[tuple[dict[str, Entry], str]] = [
        ({"labels": [1]}, "no entry 'data'"),
        ({"data": [1], "labels": [1]}, "'data' in .* must be an array"),
        ({"data": pixels(1, 100), "labels": [1]}, "array of CIFAR images"),
        ({"data": pixels(1, 3072), "labels": ["one"]}, "must be a list of int"),
    ]
    for entries, message in cases:
        write(tmp_path / "cifar-10-batches-py/test_batch", python2_pickle(entries))
        with pytest.raises(DataError, match=message):
            data.load("cifar10", tmp_path)


def test_unknown_names_come_with_the_nearest_known_one() -> None:
    with pytest.raises(UnknownNameError, match="cifar10"):
        data.load("cifar-10")
