"""The real data sets, where GRADVEIL_DATA points at a folder that holds them."""

import os
from functools import cache
from pathlib import Path

import pytest

from gradveil import data

ROOT = Path(os.environ.get("GRADVEIL_DATA") or "/nowhere")

FIRST_TEST_LABELS = {
    "mnist": [7, 2, 1, 0, 4, 1, 4, 9],
    "fashion-mnist": [9, 2, 1, 1, 6, 1, 4, 6],
    "cifar100": [49, 33, 72, 51, 71, 92, 15, 14],
}
COUNTS = {"mnist": (60_000, 10_000), "fashion-mnist": (60_000, 10_000), "cifar100": (50_000, 10_000)}
SHAPES = {
    "mnist": (1, 28, 28),
    "fashion-mnist": (1, 28, 28),
    "cifar10": (3, 32, 32),
    "cifar100": (3, 32, 32),
    "svhn": (3, 32, 32),
    "ham10000": (3, 28, 28),
    "celeba": (3, 32, 32),
}


@cache
def real(name: str) -> data.Dataset:
    if not data.sources.get(name).present(ROOT):
        pytest.skip(f"{name} is not in GRADVEIL_DATA")
    return data.load(name, ROOT)


@pytest.mark.parametrize("name", SHAPES)
def test_shapes_classes_and_statistics_are_those_of_the_data_set(name: str) -> None:
    loaded = real(name)
    assert loaded.input_shape == SHAPES[name]
    assert (data.class_counts(loaded.train, loaded.num_classes) > 0).all()
    measured = data.mean_image(loaded.train).mean((1, 2)).tolist()
    # CelebA is normalized by convention, not by its own statistics.
    assert measured == pytest.approx(loaded.mean, abs=0.15 if name == "celeba" else 0.02)


@pytest.mark.parametrize("name", COUNTS)
def test_counts_and_order_are_as_published(name: str) -> None:
    loaded = real(name)
    assert (len(loaded.train), len(loaded.test)) == COUNTS[name]
    assert loaded.test.labels[:8].tolist() == FIRST_TEST_LABELS[name]
    assert data.class_counts(loaded.test, loaded.num_classes).sum() == len(loaded.test)


def test_cifar100_has_its_hundred_names_and_balance() -> None:
    loaded = real("cifar100")
    assert loaded.classes[:3] == ("apple", "aquarium_fish", "baby")
    assert loaded.classes[49] == "mountain"
    assert set(data.class_counts(loaded.train, 100).tolist()) == {500}


def test_nobody_is_in_both_splits_of_celeba() -> None:
    loaded = real("celeba")
    assert loaded.train.identity is not None
    assert loaded.test.identity is not None
    assert not set(loaded.train.identity.tolist()) & set(loaded.test.identity.tolist())


def test_the_papers_victims_are_the_first_test_images() -> None:
    batch = data.draw_victims(real("cifar100").test, victims=4, batch_size=2)
    assert batch.inputs.shape == (4, 2, 3, 32, 32)
    assert batch.labels.flatten().tolist() == FIRST_TEST_LABELS["cifar100"]
