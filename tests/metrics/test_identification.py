import pytest
import torch
from scipy.ndimage import gaussian_filter
from sklearn.datasets import load_digits
from torch import Tensor, nn

from gradveil.errors import DataError
from gradveil.metrics import VIEWS, View, blurred, correlation, draw_decoys, features, identify, pixels
from gradveil.streams import Streams


def images(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed))


def digits() -> Tensor:
    return torch.from_numpy(load_digits().images).float()[:, None] / 16


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS.keys())
def test_agrees_with_counting_nearer_decoys_one_by_one(view: View) -> None:
    guess, truth, decoys = images(2, 3, 1, 8, 8), images(2, 3, 1, 8, 8, seed=1), images(300, 1, 8, 8, seed=2)
    ranks = identify(guess, truth, decoys, view=view)
    for g, t, rank in zip(guess.flatten(0, 1), truth.flatten(0, 1), ranks.flatten(), strict=True):
        distances = [(view(g[None]) - view(other[None])).norm().item() for other in (t, *decoys)]
        assert rank.item() == sum(distance < distances[0] for distance in distances[1:])


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS.keys())
def test_a_noisy_copy_is_identified_among_real_pictures(view: View) -> None:
    data = digits()
    guess = data[:20] + 0.1 * torch.randn(20, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    assert (identify(guess[:, None], data[:20, None], data[20:1020], view=view) == 0).all()


def test_copies_of_the_truth_do_not_compete() -> None:
    data = digits()[:200]
    guess = torch.full_like(data[:1], 0.5)
    without = identify(guess[None], data[None, :1], data[1:], view=pixels)
    assert torch.equal(identify(guess[None], data[None, :1], torch.cat([data, data[:1]]), view=pixels), without)
    assert identify(data[None, :1], data[None, :1], data, view=pixels).item() == 0


def test_a_guess_without_content_lands_in_the_middle() -> None:
    data = digits()[:401]
    assert identify(torch.full((1, 1, 1, 8, 8), 0.3), data[None, :1], data[1:], view=correlation).item() == 200


def test_ties_count_half() -> None:
    truth, decoys = torch.tensor(0.8).reshape(1, 1, 1, 1, 1), torch.tensor([0.2, 0.2, 0.45, 0.9]).reshape(4, 1, 1, 1)
    assert identify(torch.full((1, 1, 1, 1, 1), 0.5), truth, decoys, view=pixels).item() == 1 + 2 * 0.5


def test_a_random_guess_is_identified_at_the_rate_of_chance() -> None:
    truth, decoys = images(4000, 1, 1, 2, 2, seed=1), images(9, 1, 2, 2, seed=2)
    rate = (identify(images(4000, 1, 1, 2, 2), truth, decoys, view=pixels) == 0).float().mean().item()
    assert rate == pytest.approx(0.1, abs=0.03)


def test_correlation_is_blind_to_brightness_and_contrast_where_pixels_are_not() -> None:
    data = digits()
    faint = 0.7 + 0.1 * data[:10, None]
    assert (identify(faint, data[:10, None], data[10:1010], view=correlation) == 0).all()
    assert (identify(faint, data[:10, None], data[10:1010], view=pixels) > 0).all()


def test_blurring_agrees_with_scipy() -> None:
    image = images(1, 1, 32, 32).double()
    expected = gaussian_filter(image[0, 0].numpy(), 2.0, mode="nearest", truncate=3.0)
    torch.testing.assert_close(blurred(image), torch.from_numpy(expected).reshape(1, -1))


def test_features_leave_the_network_alone() -> None:
    network = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.9), nn.Flatten()).train()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    data = digits()
    ranks = identify(data[:5, None], data[:5, None], data[5:300], view=features(network))
    assert (ranks == 0).all()
    assert network.training
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())


def test_draws_the_same_distinct_decoys_for_every_stack() -> None:
    data, streams = digits(), Streams(seed=3, purpose="audit")
    drawn = draw_decoys(data, count=50, streams=streams)
    assert len(drawn.flatten(1).unique(dim=0)) == 50
    assert torch.equal(drawn, draw_decoys(data, count=50, streams=streams.bind(7)))
    assert not torch.equal(drawn, draw_decoys(data, count=50, streams=Streams(seed=4, purpose="audit")))
    assert len(draw_decoys(data[:20], streams=streams)) == 20


def test_refuses_decoys_of_another_shape() -> None:
    with pytest.raises(DataError, match="decoys"):
        identify(images(1, 1, 1, 8, 8), images(1, 1, 1, 8, 8), images(5, 1, 8, 9), view=pixels)
