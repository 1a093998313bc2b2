"""Membership and tracing on cases small enough to count by hand."""

import math

import pytest
import torch
from torch import Tensor, nn

from gradveil.errors import DataError
from gradveil.metrics import membership_by_classifier, membership_by_label, trace


def flat(*greys: float) -> Tensor:
    """Return (n, 1, 2, 2) images of one grey each."""
    return torch.tensor(greys).view(-1, 1, 1, 1).expand(-1, 1, 2, 2)


TRUTH = torch.stack([flat(0.0, 0.5, 1.0), flat(0.2, 0.6, 0.8)])
LABELS = torch.tensor([[4, 5, 6], [1, 1, 2]])


def test_a_label_counts_for_the_image_it_was_recovered_with() -> None:
    guess = torch.stack([flat(0.9, 0.1, 0.4), flat(0.25, 0.55, 0.85)])  # the first victim's images come as 2, 0, 1
    labels = torch.tensor([[6, 5, 4], [1, 1, 0]])
    # First victim: 6 is right, 4 and 5 are swapped. Second: the last is wrong.
    assert membership_by_label(guess, labels, TRUTH, LABELS).tolist() == pytest.approx([2 / 3, 1 / 3])
    soft = torch.nn.functional.one_hot(labels, 7).float() * 0.6
    assert membership_by_label(guess, soft, TRUTH, LABELS).tolist() == pytest.approx([2 / 3, 1 / 3])


def test_a_sample_without_a_guess_is_not_recovered() -> None:
    assert membership_by_label(TRUTH[:, :2], LABELS[:, :2], TRUTH, LABELS).tolist() == pytest.approx([1 / 3, 1 / 3])


class Brightness(nn.Module):
    """Class 0 below a threshold, class 1 above; another answer in train mode."""

    def forward(self, images: Tensor) -> Tensor:
        bright = images.mean((1, 2, 3)) > 0.5
        return torch.nn.functional.one_hot(torch.zeros_like(bright).long() if self.training else bright.long(), 2)


def test_the_classifier_judges_reconstructions_in_eval_mode_and_is_left_alone() -> None:
    guess = torch.stack([flat(0.9, 0.1, 0.4), flat(0.3, 0.45, 2.0)])
    labels = torch.tensor([[0, 0, 1], [0, 1, 1]])  # of the truth 0.0, 0.5, 1.0 and 0.2, 0.6, 0.8
    network = Brightness()
    # First victim: 0.1, 0.4, 0.9 are 0, 0, 1, all right. Second: 0.3, 0.45, 2.0 are 0, 0, 1, the middle one wrong.
    distances = membership_by_classifier(guess, TRUTH, labels, network=network)
    assert distances.tolist() == pytest.approx([0.0, 1 / 3])
    assert network.training


def test_the_nearest_reconstruction_decides_the_participant() -> None:
    queries, holders = flat(0.0, 0.3, 0.45, 0.7, 1.0), torch.tensor([0, 0, 1, 1, 2])
    guesses, owners, made_of = flat(0.35, 0.05, 0.9), torch.tensor([1, 0, 2]), torch.tensor([2, 0, 4])
    found = trace(guesses, owners, queries, holders, made_of=made_of)
    assert found.nearest.tolist() == [1, 0, 0, 2, 2]
    assert found.participants.tolist() == [0, 1, 1, 2, 2]
    assert found.reconstructed.tolist() == [True, False, True, False, True]
    assert found.success.tolist() == [True, False, True, False, True]
    assert found.distance == pytest.approx(2 / 5)
    assert found.distance_of_reconstructed == 0.0


def test_reconstructions_of_something_else_count_for_nobody() -> None:
    found = trace(flat(0.5), torch.tensor([3]), flat(0.4, 0.6), torch.tensor([3, 1]), made_of=torch.tensor([-1]))
    assert found.distance == pytest.approx(0.5)
    assert not found.reconstructed.any()
    assert math.isnan(found.distance_of_reconstructed)


def test_tracing_many_queries_is_tracing_one_at_a_time() -> None:
    generator = torch.Generator().manual_seed(3)
    guesses, queries = (torch.rand(count, 3, 4, 4, generator=generator) for count in (20, 300))
    owners, holders = torch.arange(20) % 4, torch.arange(300) % 4
    found = trace(guesses, owners, queries, holders, made_of=torch.arange(20))
    for number, query in enumerate(queries):
        errors = [float((query - guess).double().square().mean()) for guess in guesses]
        assert int(found.nearest[number]) == errors.index(min(errors))
    assert found.distance == pytest.approx(1 - float((owners[found.nearest] == holders).double().mean()))


def test_shapes_that_do_not_go_together_are_refused() -> None:
    one, two = torch.tensor([0]), torch.tensor([0, 0])
    with pytest.raises(DataError, match="of the same images"):
        trace(flat(0.1), one, torch.zeros(1, 3, 2, 2), one, made_of=one)
    with pytest.raises(DataError, match="do not go with 2 owners"):
        trace(flat(0.1), two, flat(0.2), one, made_of=one)
    with pytest.raises(DataError, match="made_of names query 5"):
        trace(flat(0.1), one, flat(0.2), one, made_of=torch.tensor([5]))
