"""Labels read off the last layer, against the labels themselves and against rules written out by hand."""

from typing import get_args

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gradveil.attacks import GradientMatching, InvertingGradients, recover_labels
from gradveil.attacks._labels import LabelMethod
from gradveil.client import observe
from gradveil.engine import Runtime
from gradveil.errors import KnowledgeError
from gradveil.metrics import label_accuracy
from gradveil.models import build
from gradveil.streams import Streams
from gradveil.types import Batch, Knowledge, LocalTraining, Observation

METHODS: tuple[LabelMethod, ...] = get_args(LabelMethod)
NETWORKS = ("mlp:hidden=48", "lenet:activation=relu,init=default", "lenet:activation=tanh,init=default")
CLASSES, VICTIMS = 10, 12


def see(network: str, labels: Tensor, local: LocalTraining | None = None) -> Observation:
    streams = Streams(seed=2, purpose="test").bind(len(labels))
    images = streams.uniform("images", (labels.shape[1], 1, 8, 8))
    model = build(network, input_shape=(1, 8, 8), num_classes=CLASSES, seed=1)
    knowledge = Knowledge.LOCAL_TRAINING if local else Knowledge.NOTHING
    return observe(Batch(images, labels), model, F.cross_entropy, local=local, knowledge=knowledge)


def distinct(size: int) -> Tensor:
    return Streams(seed=4, purpose="test").bind(VICTIMS).permutation("labels", CLASSES)[:, :size]


def repeated(size: int) -> Tensor:
    return Streams(seed=4, purpose="test").bind(VICTIMS).integers("labels", CLASSES, (size,))


@pytest.mark.parametrize("network", NETWORKS[:2])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("size", [1, 3, 5])
def test_distinct_labels_up_to_half_the_classes_are_exact(network: str, method: LabelMethod, size: int) -> None:
    labels = distinct(size)
    assert torch.equal(recover_labels(see(network, labels), method=method), labels.sort(1).values)


@pytest.mark.parametrize("network", NETWORKS)
def test_counts_of_a_batch_larger_than_the_number_of_classes_are_nearly_exact(network: str) -> None:
    labels = repeated(64)
    assert label_accuracy(recover_labels(see(network, labels)), labels).mean() >= 0.97


@pytest.mark.parametrize("method", METHODS)
def test_every_method_gives_as_many_labels_as_samples(method: LabelMethod) -> None:
    for size in (8, 25):
        labels = recover_labels(see(NETWORKS[0], repeated(size)), method=method)
        assert labels.shape == (VICTIMS, size)
        assert bool(((labels >= 0) & (labels < CLASSES) & (labels == labels.sort(1).values)).all())


def test_the_signs_of_the_bias_name_no_class_that_is_absent() -> None:
    labels = repeated(8)
    found = recover_labels(see(NETWORKS[0], labels), method="analytic")
    assert all(set(guess) <= set(truth) for guess, truth in zip(found.tolist(), labels.tolist(), strict=True))


@pytest.mark.parametrize(("method", "correction"), [("wainakh", 1 + 1 / CLASSES), ("bias-corrected", 1.0)])
def test_takes_a_sample_from_the_class_that_was_given_a_label(method: LabelMethod, correction: float) -> None:
    seen = see(NETWORKS[0], repeated(7))
    weight, bias = seen.update[-2], seen.update[-1]
    found = recover_labels(seen, method=method)
    for victim in range(VICTIMS):
        scores = (weight[victim].sum(1) if method == "wainakh" else bias[victim]).tolist()
        assert found[victim].tolist() == two_stages(scores, 7, correction)


def two_stages(scores: list[float], size: int, correction: float) -> list[int]:
    """Write out the two stages of Wainakh et al., with the index of the chosen class."""
    impact = sum(score for score in scores if score < 0) * correction / size
    labels = [c for c, score in enumerate(scores) if score < 0][:size]
    scores = [score - impact if c in labels else score for c, score in enumerate(scores)]
    while len(labels) < size:
        chosen = min(range(len(scores)), key=lambda c: scores[c])
        labels.append(chosen)
        scores[chosen] -= impact
    return sorted(labels)


def test_a_known_sum_over_samples_or_step_length_is_taken_out() -> None:
    labels = repeated(32)
    for local in (LocalTraining(reduction="sum"), LocalTraining(shares="difference", lr=0.05)):
        found = recover_labels(see(NETWORKS[0], labels, local))
        assert label_accuracy(found, labels).mean() >= 0.97


def test_a_victim_is_read_as_if_it_were_alone() -> None:
    seen = see(NETWORKS[0], repeated(16))
    for method in METHODS:
        together = recover_labels(seen, method=method)
        alone = [recover_labels(seen.select([v]), method=method) for v in range(VICTIMS)]
        assert torch.equal(together, torch.cat(alone))


def test_says_what_to_do_without_a_last_bias() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 3, bias=False))
    batch = Batch(torch.full((1, 1, 1, 4, 4), 0.5), torch.tensor([[2]]))
    seen = observe(batch, model, F.cross_entropy)
    assert recover_labels(seen, method="idlg").tolist() == [[2]]
    with pytest.raises(KnowledgeError, match="use wainakh or yin"):
        recover_labels(seen)


@pytest.mark.parametrize("make", [InvertingGradients, GradientMatching])
def test_attacks_read_the_labels_of_a_batch_by_the_method_they_are_given(
    make: type[InvertingGradients] | type[GradientMatching],
) -> None:
    labels = distinct(3)[:2]
    seen = see(NETWORKS[1], labels)
    read = make(steps=1, labels="least-squares")(seen, streams=Streams(), runtime=Runtime(chunk=2))
    optimized = make(steps=1)(seen, streams=Streams(), runtime=Runtime(chunk=2))
    assert read.labels is not None
    assert torch.equal(read.labels, labels.sort(1).values)
    assert optimized.labels is not None
    assert optimized.labels.shape == (2, 3, CLASSES)
