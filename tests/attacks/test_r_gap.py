"""The way back through a network, layer by layer, against the way there."""

import dataclasses

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gradveil.attacks import RGAP
from gradveil.attacks._recursion import derivative, enter_convolution, enter_linear, slope_before, undo
from gradveil.client import observe
from gradveil.defenses import GaussianNoise
from gradveil.engine import Runtime, normalized
from gradveil.errors import GradVeilError
from gradveil.metrics import PSNR
from gradveil.streams import Streams
from gradveil.types import Batch

VICTIMS = 3
STREAMS = Streams(seed=611, purpose="test").bind(VICTIMS)
LIKE = torch.zeros((), dtype=torch.float64)


def private(size: int = 1) -> Batch:
    return Batch(STREAMS.uniform("images", (size, 2, 6, 6)), STREAMS.integers("labels", 5, (size,)))


def network(seed: int = 31) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        first = (nn.Conv2d(2, 6, 3, padding=1, bias=False), nn.LeakyReLU(0.2))
        second = (nn.Conv2d(6, 8, 3, stride=2, padding=1), nn.Sigmoid())
        head = nn.Sequential(nn.Linear(72, 16, bias=False), nn.Tanh(), nn.Linear(16, 5))
        return nn.Sequential(*first, *second, nn.Flatten(), head)


def psnr(guess: Tensor) -> Tensor:
    return PSNR()(guess, private().inputs).flatten()


@pytest.mark.parametrize("standardized", [False, True])
def test_reads_one_image_exactly_through_a_deep_network(standardized: bool) -> None:
    model = normalized(network(), [0.5, 0.4], [0.2, 0.3]) if standardized else network()
    guess = RGAP()(observe(private(), model, F.cross_entropy), streams=Streams(seed=0))
    assert float(psnr(guess.inputs).min()) > 60
    assert guess.details["residuals"].shape == (VICTIMS, 4)
    assert float(guess.details["residuals"].max()) < 1e-3
    assert guess.labels is not None


def test_reads_networks_that_differ_between_victims() -> None:
    seen = observe(private(), network(), F.cross_entropy)
    others = [observe(private(), network(seed), F.cross_entropy).select([seed]) for seed in range(VICTIMS)]
    update = tuple(torch.cat(tensors) for tensors in zip(*(other.update for other in others), strict=True))
    states = [dict(network(seed).named_parameters()) for seed in range(VICTIMS)]
    parameters = {name: torch.stack([state[name].detach() for state in states]) for name in states[0]}
    mixed = dataclasses.replace(seen, update=update, parameters=parameters)
    assert float(psnr(RGAP()(mixed, streams=Streams(seed=0)).inputs).min()) > 60


def test_noise_shows_in_the_residuals_and_in_the_image() -> None:
    noisy = observe(private(), network(), F.cross_entropy, defenses=[GaussianNoise(std=1e-2)])
    guess = RGAP()(noisy, streams=Streams(seed=0), runtime=Runtime(chunk=VICTIMS))
    assert float(psnr(guess.inputs).max()) < 40
    assert float(guess.objective.min()) > 0.01


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(3, 5, 3, padding=1),
        nn.Conv2d(3, 8, 3, stride=2, padding=1),
        nn.Conv2d(3, 4, (2, 3), dilation=(2, 1), padding=(1, 0)),
    ],
    ids=str,
)
def test_a_convolution_is_solved_for_what_entered_it(layer: nn.Conv2d) -> None:
    shape = (3, 5, 6)
    weight = STREAMS.normal("weight", layer.weight.shape, like=LIKE)
    inputs = STREAMS.normal("inputs", shape, like=LIKE).requires_grad_()
    assert not isinstance(layer.padding, str)
    for victim in range(VICTIMS):
        own, entered = weight[victim].requires_grad_(), inputs[victim][None]
        outputs = F.conv2d(entered, own, None, layer.stride, layer.padding, layer.dilation)
        slope = STREAMS.normal("slope", outputs.shape[1:], like=LIKE)[victim][None]
        gradient, before = torch.autograd.grad(outputs, (own, entered), slope)
        flat, pulled = outputs.detach().flatten(2), slope.flatten(2)
        solved = enter_convolution(layer, own[None].detach(), gradient[None], flat, pulled, shape)
        torch.testing.assert_close(solved.inputs, entered.detach(), rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(slope_before(layer, own[None].detach(), pulled, shape), before)


def test_a_linear_layer_is_divided_by_its_slope() -> None:
    inputs, slope = STREAMS.normal("inputs", (7,), like=LIKE), STREAMS.normal("slope", (4,), like=LIKE)
    solved = enter_linear(slope[:, :, None] * inputs[:, None], slope)
    torch.testing.assert_close(solved.inputs, inputs)
    assert float(solved.residual.max()) < 1e-12


@pytest.mark.parametrize("activation", [nn.Sigmoid(), nn.Tanh(), nn.LeakyReLU(0.1), nn.Identity()], ids=str)
def test_activations_are_undone(activation: nn.Module) -> None:
    values = torch.linspace(-2, 2, 9, dtype=torch.float64)
    torch.testing.assert_close(undo(activation, activation(values)), values)
    step = 1e-6
    numeric = (activation(values + step) - activation(values - step)) / (2 * step)
    torch.testing.assert_close(derivative(activation, values)[:4], numeric[:4], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("model", "size", "said"),
    [
        (network(), 2, "batches of one image, got 2"),
        (
            nn.Sequential(nn.Conv2d(2, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(32, 5)),
            1,
            "cannot go back through ReLU",
        ),
        (nn.Sequential(nn.Conv2d(2, 2, 3), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8, 5)), 1, "through MaxPool2d"),
        (nn.Sequential(nn.Conv2d(2, 5, 6), nn.Flatten()), 1, "begins at a linear last layer"),
        (nn.Sequential(nn.Flatten(), nn.Linear(72, 5, bias=False)), 1, "which the update lacks"),
        (nn.Sequential(nn.Conv2d(2, 2, 3, groups=2), nn.Flatten(), nn.Linear(32, 5)), 1, "of one group"),
    ],
    ids=["batch", "relu", "pool", "end", "bias", "groups"],
)
def test_refuses_what_it_cannot_undo(model: nn.Module, size: int, said: str) -> None:
    with pytest.raises(GradVeilError, match=said):
        RGAP()(observe(private(size), model, F.cross_entropy), streams=Streams(seed=0))
