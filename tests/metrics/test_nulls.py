import pytest
import torch
from torch import Tensor

from gradveil.errors import DataError
from gradveil.metrics import PSNR, align, arrange, null_guesses, other_of_class
from gradveil.streams import Streams

STREAMS = Streams(seed=0, purpose="null")


def images(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed))


def test_constants_are_what_their_names_say() -> None:
    truth, reference = images(2, 3, 3, 4, 4), images(10, 3, 4, 4, seed=1)
    nulls = null_guesses(
        truth,
        torch.zeros(2, 3, dtype=torch.long),
        reference_inputs=reference,
        reference_labels=torch.arange(10) % 2,
        streams=STREAMS,
    )
    assert list(nulls) == ["grey", "own-mean", "mean-image", "other-of-class"]
    assert all(guess.shape == truth.shape for guess in nulls.values())
    assert (nulls["grey"] == 0.5).all()
    torch.testing.assert_close(nulls["own-mean"][1, 2, :, 3, 1], truth[1, 2].flatten(1).mean(1))
    torch.testing.assert_close(nulls["mean-image"][1, 2], reference.sum(0) / 10)


def test_own_mean_is_the_best_constant() -> None:
    truth, reference = images(20, 1, 3, 4, 4), images(9, 3, 4, 4, seed=1)
    labels = torch.zeros(20, 1)
    nulls = null_guesses(truth, labels, reference_inputs=reference, reference_labels=torch.zeros(9), streams=STREAMS)
    assert (PSNR()(nulls["own-mean"], truth) >= PSNR()(nulls["grey"], truth)).all()


def draw(truth: Tensor, labels: Tensor, reference: Tensor, classes: Tensor, streams: Streams = STREAMS) -> Tensor:
    """Return (V, B) indices of the references that were drawn."""
    drawn = other_of_class(truth, labels, reference_inputs=reference, reference_labels=classes, streams=streams)
    return (drawn[:, :, None] == reference).flatten(3).all(3).long().argmax(2)


def test_draws_another_image_of_the_class() -> None:
    reference, classes = images(30, 1, 4, 4), torch.arange(30) % 3
    truth, labels = reference[:20].reshape(10, 2, 1, 4, 4), classes[:20].reshape(10, 2)
    drawn = draw(truth, labels, reference, classes)
    assert torch.equal(classes[drawn].sort(1).values, labels.sort(1).values)
    own = torch.arange(20).reshape(10, 1, 2)
    assert (drawn[..., None] != own).all()


def test_matches_what_it_draws_as_guesses_are_matched() -> None:
    reference, classes = images(30, 1, 4, 4), torch.arange(30) % 3
    truth, labels = images(5, 6, 1, 4, 4, seed=1), torch.zeros(5, 6)
    drawn = other_of_class(truth, labels, reference_inputs=reference, reference_labels=classes, streams=STREAMS)
    assert torch.equal(arrange(drawn, align(drawn, truth)), drawn)


def test_draws_all_others_alike_and_the_image_itself_never() -> None:
    reference, classes = images(6, 1, 2, 2), torch.tensor([0, 0, 0, 0, 0, 1])
    drawn = draw(reference[:1].expand(2000, 1, 1, 2, 2), torch.zeros(2000, 1), reference, classes)
    shares = torch.bincount(drawn.flatten(), minlength=6) / 2000
    assert shares.tolist() == pytest.approx([0, 0.25, 0.25, 0.25, 0.25, 0], abs=0.04)


def test_takes_any_other_image_where_the_class_has_none() -> None:
    reference, classes = images(5, 1, 2, 2), torch.tensor([7, 1, 1, 2, 2])
    assert draw(reference[None, :1], torch.tensor([[7]]), reference, classes).item() > 0
    soft = torch.nn.functional.one_hot(torch.tensor([[3]]), 5).float()
    assert draw(reference[None, :1], soft, reference, classes).item() > 0


def test_a_victim_draws_the_same_whoever_else_is_in_the_stack() -> None:
    reference, classes = images(40, 1, 2, 2), torch.arange(40) % 2
    truth, labels, bound = images(4, 2, 1, 2, 2, seed=1), torch.zeros(4, 2), STREAMS.bind(4)
    stacked = draw(truth, labels, reference, classes, bound)
    alone = draw(truth[2:3], labels[2:3], reference, classes, bound.select([2]))
    assert torch.equal(stacked[2:3], alone)
    assert not torch.equal(stacked, draw(truth, labels, reference, classes, bound.fork("null-1")))


def test_refuses_references_that_hold_nothing_else() -> None:
    image = images(1, 1, 2, 2)
    with pytest.raises(DataError, match="in the private batch"):
        draw(image[None], torch.zeros(1, 1), image.repeat(3, 1, 1, 1), torch.zeros(3))
    with pytest.raises(DataError, match="references"):
        draw(image[None], torch.zeros(1, 1), images(3, 1, 5, 5), torch.zeros(3))
