from itertools import permutations

import pytest
import torch
from torch import Tensor

from gradveil.errors import DataError
from gradveil.metrics import align, aligned_label_accuracy, arrange, label_accuracy


def images(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed))


def test_undoes_a_permutation_of_each_victim() -> None:
    truth = images(3, 5, 1, 6, 6)
    order = torch.stack([torch.randperm(5, generator=torch.Generator().manual_seed(v)) for v in range(3)])
    guess = arrange(truth, order) + 0.05 * images(3, 5, 1, 6, 6, seed=1)
    indices = align(guess, truth)
    assert torch.equal(order.gather(1, indices), torch.arange(5).expand(3, 5))


def test_finds_the_least_total_error_of_all_permutations() -> None:
    guess, truth = images(4, 4, 1, 2, 2), images(4, 4, 1, 2, 2, seed=1)
    indices = align(guess, truth)
    for victim in range(4):
        errors = {p: (guess[victim, list(p)] - truth[victim]).square().sum().item() for p in permutations(range(4))}
        assert tuple(indices[victim].tolist()) == min(errors, key=lambda p: errors[p])


def test_leaves_samples_without_a_guess() -> None:
    truth = images(1, 4, 1, 4, 4)
    indices = align(truth[:, [2, 1]], truth)
    assert indices.tolist() == [[-1, 1, 0, -1]]
    arranged = arrange(truth[:, [2, 1]], indices)
    assert torch.equal(arranged[:, 1:3], truth[:, 1:3])
    assert (arranged[:, [0, 3]] == 0.5).all()


def test_picks_the_right_ones_from_more_guesses() -> None:
    truth = images(2, 3, 1, 4, 4)
    guess = torch.cat([images(2, 4, 1, 4, 4, seed=1), truth.flip(1)], dim=1)
    assert align(guess, truth).tolist() == [[6, 5, 4]] * 2


def test_matches_guesses_that_are_not_numbers_as_grey() -> None:
    truth = torch.stack([torch.zeros(1, 2, 2), torch.ones(1, 2, 2), torch.full((1, 2, 2), 0.5)])[None]
    guess = truth[:, [1, 2, 0]].clone()
    guess[0, 1] = float("nan")
    assert align(guess, truth).tolist() == [[2, 0, 1]]


def test_refuses_images_that_differ_in_size() -> None:
    with pytest.raises(DataError, match="align matches"):
        align(images(1, 2, 1, 4, 4), images(1, 2, 1, 5, 4))


@pytest.mark.parametrize(
    ("guess", "truth", "accuracy"),
    [
        ([[0, 1, 2]], [[2, 0, 1]], 1.0),
        ([[0, 0, 0]], [[0, 1, 0]], 2 / 3),
        ([[3, 3]], [[3, 3]], 1.0),
        ([[5, 6]], [[7, 8]], 0.0),
        ([[1]], [[1, 1, 2, 3]], 0.25),
        ([[0, 1, 2, 3]], [[1]], 0.25),
        ([[-1, 4]], [[4, 9]], 0.5),
    ],
)
def test_labels_match_as_multisets(guess: list[list[int]], truth: list[list[int]], accuracy: float) -> None:
    assert label_accuracy(torch.tensor(guess), torch.tensor(truth)).tolist() == pytest.approx([accuracy])


def test_the_largest_soft_label_counts() -> None:
    soft = torch.tensor([[[0.2, 0.8, 0.0], [0.1, 0.3, 0.6]], [[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]])
    assert label_accuracy(soft, torch.tensor([[2, 1], [0, 1]])).tolist() == [1.0, 0.5]


def test_aligned_labels_must_sit_with_their_image() -> None:
    guess, truth = torch.tensor([[4, 5], [4, 5]]), torch.tensor([[5, 4], [5, 4]])
    indices = torch.tensor([[1, 0], [0, -1]])
    assert aligned_label_accuracy(guess, truth, indices).tolist() == [1.0, 0.0]


def test_refuses_labels_of_other_victims() -> None:
    with pytest.raises(DataError, match="same victims"):
        label_accuracy(torch.zeros(2, 3), torch.zeros(1, 3))
