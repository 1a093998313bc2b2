import math
import typing

import pytest
import torch
from torch import nn

from gradveil import models
from gradveil.errors import UnsupportedModelError
from gradveil.models._base import Shape
from gradveil.models._init import RULES, initialize

SHAPE: Shape = (3, 16, 16)


def network(init: str) -> nn.Module:
    return models.build(f"convnet:width=16,init={init}", input_shape=SHAPE, num_classes=10)


def test_every_name_has_a_rule() -> None:
    assert set(RULES) == set(typing.get_args(models.Init))


@pytest.mark.parametrize(("init", "bound"), [("uniform-0.5", 0.5), ("uniform-0.3", 0.3)])
def test_uniform_fills_weights_and_biases_up_to_the_bound(init: str, bound: float) -> None:
    model = network(init)
    for name in ("conv3.weight", "conv8.bias", "fc.weight"):
        values = model.get_parameter(name).detach()
        assert values.abs().max() <= bound
        assert values.abs().max() > 0.9 * bound
        assert abs(values.mean()) < 0.3 * bound


def test_kaiming_is_normal_by_the_fan_out() -> None:
    model = network("kaiming")
    weight = model.get_parameter("conv2.weight").detach()
    assert weight.std().item() == pytest.approx(math.sqrt(2 / (32 * 9)), rel=0.05)
    assert weight.abs().max() > 3 * weight.std()
    assert not model.get_parameter("conv2.bias").any()
    features = model.get_submodule("fc").in_features
    assert isinstance(features, int)
    assert 0.9 < model.get_parameter("fc.weight").abs().max().item() * math.sqrt(features) <= 1


def test_kaiming_uniform_is_bounded_by_the_fan_in() -> None:
    weight = network("kaiming-uniform").get_parameter("conv2.weight").detach()
    bound = math.sqrt(6 / (16 * 9))
    assert 0.99 * bound < weight.abs().max() <= bound * (1 + 1e-6)


def test_default_is_what_torch_does() -> None:
    ours = models.build("mlp:hidden=7,init=default", input_shape=(1, 3, 3), num_classes=2, seed=4)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(4)
        theirs = nn.Sequential(nn.Linear(9, 7), nn.Linear(7, 2))
    assert all(torch.equal(a, b) for a, b in zip(ours.parameters(), theirs.parameters(), strict=True))


def test_default_convolutions_are_what_torch_does() -> None:
    ours = models.build("lenet:init=default", input_shape=(3, 8, 8), num_classes=2, seed=4).get_submodule("conv1")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(4)
        theirs = nn.Conv2d(3, 12, 5)
    assert all(torch.equal(a, b) for a, b in zip(ours.parameters(), theirs.parameters(), strict=True))


@pytest.mark.parametrize("init", sorted(RULES))
def test_normalization_starts_as_the_identity(init: str) -> None:
    norm = network(init).get_submodule("bn4")
    state = {name: tensor.double().unique().tolist() for name, tensor in norm.state_dict().items()}
    ones, zeros = [1.0], [0.0]
    assert state == {
        "weight": ones,
        "bias": zeros,
        "running_mean": zeros,
        "running_var": ones,
        "num_batches_tracked": zeros,
    }


def test_refuses_layers_it_cannot_fill() -> None:
    with pytest.raises(UnsupportedModelError, match="no rule to initialize PReLU at '1'"):
        initialize(nn.Sequential(nn.Linear(2, 2), nn.PReLU()), "default", generator=torch.Generator())
