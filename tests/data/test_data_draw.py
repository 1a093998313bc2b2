"""Drawing victims, and the numbers taken of a split."""

from dataclasses import replace

import pytest
import torch

from gradveil.data import Dataset, Split, class_counts, draw_victims, mean_image
from gradveil.data._stratified import channel_moments, stratified
from gradveil.errors import DataError


def numbered(count: int, classes: int = 3) -> Split:
    """Make a split whose image i has the single pixel i."""
    images = torch.arange(count, dtype=torch.uint8).reshape(count, 1, 1, 1)
    return Split(images, torch.arange(count) % classes)


def drawn(split: Split, **settings: int | None) -> list[list[int]]:
    batch = draw_victims(split, **settings)  # type: ignore[arg-type]
    assert torch.equal(batch.labels, (batch.inputs.flatten(1) * 255).round().long() % 3)
    rows: list[list[int]] = (batch.inputs.flatten(1) * 255).round().long().tolist()
    return rows


def test_takes_the_first_images_in_their_order() -> None:
    assert drawn(numbered(10), victims=2, batch_size=3) == [[0, 1, 2], [3, 4, 5]]
    assert drawn(numbered(10), victims=2, batch_size=2, start=5) == [[5, 6], [7, 8]]


def test_random_draws_repeat_with_the_seed_and_take_no_image_twice() -> None:
    split = numbered(20)
    first = drawn(split, victims=5, batch_size=4, start=None, seed=1)
    assert first == drawn(split, victims=5, batch_size=4, start=None, seed=1)
    assert first != drawn(split, victims=5, batch_size=4, start=None, seed=2)
    assert sorted(image for batch in first for image in batch) == list(range(20))


def test_distinct_labels_skip_repetitions_and_keep_them_for_later() -> None:
    split = Split(torch.arange(6, dtype=torch.uint8).reshape(6, 1, 1, 1), torch.tensor([0, 0, 0, 1, 2, 1]))
    batch = draw_victims(split, victims=2, batch_size=2, distinct_labels=True)
    assert (batch.inputs.flatten(1) * 255).round().tolist() == [[0, 3], [1, 4]]
    assert batch.labels.tolist() == [[0, 1], [0, 2]]


def test_distinct_labels_hold_for_random_draws_too() -> None:
    batch = draw_victims(numbered(60, classes=6), victims=8, batch_size=5, start=None, distinct_labels=True)
    assert all(len(set(row)) == 5 for row in batch.labels.tolist())
    assert batch.inputs.flatten().unique().numel() == 40


def test_marks_travel_with_their_images() -> None:
    split = replace(numbered(10), sensitive=torch.arange(10) > 6)
    batch = draw_victims(split, victims=5, batch_size=2, start=None, seed=3)
    assert batch.sensitive is not None
    assert torch.equal(batch.sensitive, (batch.inputs.flatten(1) * 255).round() > 6)
    chosen = split.select([9, 0]).sensitive
    assert chosen is not None
    assert chosen.tolist() == [True, False]
    assert draw_victims(numbered(4), victims=1, batch_size=2).sensitive is None
    with pytest.raises(DataError, match=r"sensitive must be \(10,\) of torch.bool, as many as images, got"):
        replace(numbered(10), sensitive=torch.ones(10))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"victims": 4, "batch_size": 3}, "need 12 images, but only 10 of 10"),
        ({"victims": 2, "batch_size": 3, "start": 5}, "need 6 images, but only 5 of 10"),
        ({"victims": 1, "batch_size": 1, "start": 10}, "start must be an index of the 10 images"),
        ({"victims": 1, "batch_size": 1, "start": -1}, "start must be an index"),
        ({"victims": 0, "batch_size": 1}, "at least 1"),
        ({"victims": 1, "batch_size": 4, "distinct_labels": True}, "needs 4 distinct labels, but 3 are left"),
    ],
)
def test_says_why_it_cannot_draw(settings: dict[str, int], message: str) -> None:
    with pytest.raises(DataError, match=message):
        draw_victims(numbered(10), **settings)  # type: ignore[arg-type]


def test_an_empty_split_gives_no_victims_and_no_mean() -> None:
    with pytest.raises(DataError, match="only 0 of 0"):
        draw_victims(numbered(0), victims=1, batch_size=1)
    with pytest.raises(DataError, match="empty split"):
        mean_image(numbered(0))


def test_mean_image_is_the_mean_of_the_inputs() -> None:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(256, (2500, 3, 4, 4), dtype=torch.uint8, generator=generator)
    split = Split(images, torch.zeros(2500, dtype=torch.int64))
    assert torch.allclose(mean_image(split), split.inputs(dtype=torch.float64).mean(0).float())
    assert class_counts(split, 2).tolist() == [2500, 0]


def test_channel_moments_are_mean_and_standard_deviation() -> None:
    images = torch.randint(256, (50, 3, 4, 4), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    mean, std = channel_moments(images)
    values = images.double() / 255
    assert mean == pytest.approx(values.mean((0, 2, 3)).tolist())
    assert std == pytest.approx(values.std((0, 2, 3), correction=0).tolist())
    assert channel_moments(torch.zeros(2, 1, 1, 1, dtype=torch.uint8)) == ((0.0,), (1.0,))


def test_stratified_parts_are_disjoint_complete_and_leave_no_class_out() -> None:
    labels = torch.tensor([0] * 50 + [1] * 9 + [2] * 2 + [3]).numpy()
    train, test = stratified(labels, test_fraction=0.2)
    assert sorted([*train, *test]) == list(range(62))
    assert [int((labels[test] == k).sum()) for k in range(4)] == [10, 2, 1, 0]


def test_inputs_are_the_bytes_over_255() -> None:
    split = numbered(4)
    assert split.inputs().flatten().tolist() == pytest.approx([0, 1 / 255, 2 / 255, 3 / 255])
    assert split.inputs(torch.tensor([3, 0]), dtype=torch.float64).dtype == torch.float64
    assert split.images.tolist() == numbered(4).images.tolist()
    assert split.select([3, 1]).labels.tolist() == [0, 1]


def test_a_split_checks_its_tensors() -> None:
    images, labels = numbered(3).images, numbered(3).labels
    for bad_images, bad_labels, identity in (
        (images.float(), labels, None),
        (images[0], labels, None),
        (images, labels[:2], None),
        (images, labels.float(), None),
        (images, labels, labels[:1]),
    ):
        with pytest.raises(DataError, match="must be"):
            Split(bad_images, bad_labels, identity)


def test_a_data_set_checks_its_splits() -> None:
    good = numbered(3)
    wide = Split(torch.zeros(3, 1, 1, 2, dtype=torch.uint8), good.labels)
    names = ("a", "b", "c")
    with pytest.raises(DataError, match="one shape"):
        Dataset(name="x", train=good, test=wide, classes=names, mean=(0.5,), std=(0.5,))
    with pytest.raises(DataError, match="must be 0 to 1, got 0 to 2"):
        Dataset(name="x", train=good, test=good, classes=names[:2], mean=(0.5,), std=(0.5,))
    with pytest.raises(ValueError, match="one number per channel"):
        Dataset(name="x", train=good, test=good, classes=names, mean=(0.5,), std=(0.0,))
