"""Who holds what: every rule against what its definition says."""

import doctest
import io

import numpy as np
import pytest
import torch
from PIL import Image

from gradveil.data import Split
from gradveil.errors import DataError, GradVeilError, SpecError
from gradveil.federated.partition import (
    Dirichlet,
    Iid,
    NaturalId,
    Pathological,
    Size,
    _base,
    _picture,
    partition,
    partition_picture,
    partitioners,
)

SAMPLES, CLASSES = 600, 6
RULES = ("iid", "dirichlet:alpha=0.5", "pathological:2", "size:60+50+40+30+20+10+10+10+10+10", "natural-id")


def samples(identities: int = 10) -> Split:
    draw = np.random.default_rng(0)
    labels = torch.from_numpy(draw.integers(CLASSES, size=SAMPLES))
    identity = torch.from_numpy(draw.permutation(SAMPLES) % identities)
    return Split(torch.zeros(SAMPLES, 1, 1, 1, dtype=torch.uint8), labels, identity)


def test_every_rule_is_listed() -> None:
    assert partitioners.names() == ("dirichlet", "iid", "natural-id", "pathological", "size")


@pytest.mark.parametrize("rule", RULES)
def test_no_sample_is_held_twice_and_every_client_holds_some(rule: str) -> None:
    found = partition(samples(), rule, clients=10)
    together = torch.cat(found.indices)
    assert len(together) == len(together.unique())
    assert len(found) == 10
    assert min(found.sizes) > 0


@pytest.mark.parametrize("rule", RULES)
def test_the_seed_decides(rule: str) -> None:
    first, again, other = (torch.cat(partition(samples(), rule, clients=10, seed=s).indices) for s in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize("rule", ["iid", "dirichlet:alpha=0.5", "natural-id"])
def test_all_samples_are_handed_out(rule: str) -> None:
    assert sum(partition(samples(), rule, clients=10).sizes) == SAMPLES


def test_iid_shares_differ_by_one_at_most() -> None:
    sizes = partition(samples(), Iid(), clients=7).sizes
    assert sizes == (86, 86, 86, 86, 86, 85, 85)


def test_iid_counts_are_near_even() -> None:
    counts = partition(samples(), Iid(), clients=3).counts(samples().labels, CLASSES)
    assert float((counts / counts.sum(1, keepdim=True) - 1 / CLASSES).abs().max()) < 0.08


@pytest.mark.parametrize(("alpha", "low", "high"), [(0.1, 0.55, 1.0), (100.0, 0.0, 0.25)])
def test_alpha_decides_how_uneven_the_classes_are(alpha: float, low: float, high: float) -> None:
    rule = Dirichlet(alpha=alpha, min_partition_size=1)
    counts = partition(samples(), rule, clients=5, seed=3).counts(samples().labels, CLASSES).double()
    largest = (counts.max(1).values / counts.sum(1)).mean()
    assert low < float(largest) < high


def test_dirichlet_shares_of_a_class_follow_the_drawn_proportions() -> None:
    split = Split(torch.zeros(1000, 1, 1, 1, dtype=torch.uint8), torch.zeros(1000, dtype=torch.long))
    sizes = partition(split, Dirichlet(alpha=1.0, min_partition_size=1), clients=4, seed=5).sizes
    generator = np.random.default_rng(5)
    generator.permutation(np.arange(1000))
    expected = generator.dirichlet(np.full(4, 1.0)) * 1000
    assert np.abs(np.array(sizes) - expected).max() <= 1


def test_self_balancing_brings_sizes_together() -> None:
    free, balanced = (
        partition(samples(), Dirichlet(alpha=0.3, min_partition_size=1, self_balancing=b), clients=5, seed=1).sizes
        for b in (False, True)
    )
    assert np.std(balanced) < np.std(free)


@pytest.mark.parametrize("mode", ["random", "deterministic", "first-deterministic"])
def test_pathological_clients_hold_exactly_so_many_classes_in_equal_shares(mode: str) -> None:
    rule = partitioners.build(f"pathological:num_classes_per_partition=2,class_assignment_mode={mode}")
    counts = partition(samples(), rule, clients=12).counts(samples().labels, CLASSES)
    assert ((counts > 0).sum(1) == 2).all()
    for column in counts.T:
        held = column[column > 0]
        assert not len(held) or int(held.max() - held.min()) <= 1


def test_deterministic_classes_go_round() -> None:
    rule = Pathological(num_classes_per_partition=2, class_assignment_mode="deterministic")
    counts = partition(samples(), rule, clients=6).counts(samples().labels, CLASSES)
    assert [row.nonzero().flatten().tolist() for row in counts] == [[0, 1], [1, 2], [2, 3], [3, 4], [4, 5], [0, 5]]


def test_sizes_are_those_asked_for() -> None:
    assert partition(samples(), Size(partition_sizes=(5, 100, 1))).sizes == (5, 100, 1)


def test_a_client_is_one_person() -> None:
    split = samples(identities=8)
    assert split.identity is not None
    for person, own in enumerate(partition(split, NaturalId()).indices):
        assert (split.identity[own] == person).all()
        assert len(own) == int((split.identity == person).sum())


def test_fewer_clients_than_people_take_the_first() -> None:
    assert len(partition(samples(8), NaturalId(), clients=3)) == 3


def test_splits_hold_the_samples_of_their_clients() -> None:
    split = samples()
    found = partition(split, "iid", clients=4)
    for own, part in zip(found.indices, found.apply(split), strict=True):
        assert torch.equal(part.labels, split.labels[own])


@pytest.mark.parametrize(
    ("rule", "clients", "kind", "words"),
    [
        ("iid", None, SpecError, "say how many"),
        ("iid", 601, DataError, "fewer clients"),
        ("dirichlet:alpha=0", 3, SpecError, "alpha must be above 0"),
        ("dirichlet:alpha=0.01,min_partition_size=80", 7, DataError, "raise alpha"),
        ("pathological:9", 3, DataError, "lower num_classes_per_partition"),
        ("size:500+200", None, DataError, "asks for 700"),
        ("size:5+2", 3, SpecError, "names 2 clients"),
        ("natural-id", 11, SpecError, "10 identities"),
        ("dirichlett", 3, GradVeilError, "did you mean dirichlet"),
    ],
)
def test_what_cannot_be_is_refused_in_one_sentence(
    rule: str, clients: int | None, kind: type[Exception], words: str
) -> None:
    with pytest.raises(kind, match=words):
        partition(samples(), rule, clients=clients)


def test_natural_id_needs_identities() -> None:
    split = samples()
    with pytest.raises(DataError, match="whose image"):
        partition(Split(split.images, split.labels), "natural-id")


def test_the_picture_shows_longer_bars_for_larger_clients() -> None:
    with Image.open(io.BytesIO(partition_picture(torch.tensor([[40, 40], [20, 0]])))) as picture:
        pixels = np.asarray(picture.convert("RGB")).astype(int)
    colored = (pixels.max(2) - pixels.min(2) > 30).sum(1)
    assert colored[8] == pytest.approx(4 * colored[26], rel=0.02)


def test_the_picture_takes_many_classes_and_refuses_wrong_names() -> None:
    assert partition_picture(torch.ones(3, 100, dtype=torch.long))[1:4] == b"PNG"
    with pytest.raises(DataError, match="2 classes, but 1 names"):
        partition_picture(torch.ones(3, 2), classes=["one"])


def test_examples_run() -> None:
    for module in (_base, _picture):
        assert doctest.testmod(module).failed == 0
