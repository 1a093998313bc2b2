"""The architectures of the papers, on both paths."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from slow_gradients import distance, one_at_a_time, relative_error, slow_matching
from torch import Tensor, nn

from gradveil.engine import Trial, gradient_function, trainable
from gradveil.engine._tapped import TappedGradients
from gradveil.engine._vmapped import VmappedGradients
from gradveil.models import architectures
from gradveil.types import Mode

SIDE = {"alexnet": 32, "vgg16": 32}
THINNER = dict.fromkeys(("alexnet", "convnet", "densenet121", "resnet18", "resnet20-4", "resnet34", "vgg16"), 8)
ROWS = [
    *((name, mode, THINNER.get(name, 1)) for name in architectures.names() for mode in ("eval", "train")),
    pytest.param("resnet18", "train", 1, marks=pytest.mark.slow),
]
"""Networks whose width alone makes them slow have an eighth of their channels, and one has all."""


def build(name: str, thinner: int) -> tuple[nn.Module, Tensor, Tensor]:
    """Make a network in float64 with batches for two victims; sigmoid keeps zeros out of its gradients."""
    side = SIDE.get(name, 16)
    leaf = architectures.build(name)
    model = leaf.build(input_shape=(3, side, side), num_classes=5, seed=1)
    model = (model if thinner == 1 else thinned(model, thinner)).double()
    generator = torch.Generator().manual_seed(2)
    inputs = torch.rand(2, 2, 3, side, side, generator=generator, dtype=torch.float64)
    return model, inputs, torch.randint(5, (2, 2), generator=generator)


def thinned(model: nn.Module, factor: int) -> nn.Module:
    """Divide the channels of every layer, but those of the image and of the classes, and keep how they are joined."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(4)
        for path, layer in list(model.named_modules()):
            if isinstance(layer, nn.Conv2d):
                inside = layer.in_channels if layer.in_channels == 3 else layer.in_channels // factor
                shape: Any = {name: getattr(layer, name) for name in ("kernel_size", "stride", "padding")}
                shape["bias"] = layer.bias is not None
                model.set_submodule(path, nn.Conv2d(inside, layer.out_channels // factor, **shape))
            elif isinstance(layer, nn.BatchNorm2d):
                model.set_submodule(path, nn.BatchNorm2d(layer.num_features // factor))
            elif isinstance(layer, nn.Linear):
                outside = layer.out_features if layer.out_features == 5 else layer.out_features // factor
                model.set_submodule(path, nn.Linear(layer.in_features // factor, outside))
    return model


@pytest.mark.parametrize(("name", "mode", "thinner"), ROWS)
def test_both_paths_equal_one_victim_at_a_time_and_the_fast_one_is_taken(name: str, mode: Mode, thinner: int) -> None:
    model, inputs, labels = build(name, thinner)
    names = trainable(model)
    expected = one_at_a_time(model, inputs, labels, mode=mode)
    general = VmappedGradients(model, F.cross_entropy, names, mode, {}, {}, "float32")
    fast = TappedGradients(model, F.cross_entropy, names, mode, "float32")
    for function in (general, fast):
        found = function(inputs, labels)
        assert relative_error(found.gradients, expected.gradients) <= 1e-10
        for buffer, tensor in found.buffers.items():
            torch.testing.assert_close(tensor, expected.buffers[buffer], rtol=1e-9, atol=1e-12)

    trial = Trial.like(inputs[0], 5)
    assert isinstance(gradient_function(model, F.cross_entropy, names=names, mode=mode, trial=trial), TappedGradients)


@pytest.mark.parametrize(("name", "mode", "thinner"), ROWS)
def test_second_derivatives_equal_one_victim_at_a_time(name: str, mode: Mode, thinner: int) -> None:
    model, inputs, labels = build(name, thinner)
    target = [torch.randn(2, *p.shape, generator=torch.Generator().manual_seed(3)).double() for p in model.parameters()]
    _, expected = slow_matching(model, inputs, labels, target, mode=mode)
    fast = TappedGradients(model, F.cross_entropy, trainable(model), mode, "float32")
    leaf = inputs.clone().requires_grad_()
    (found,) = torch.autograd.grad(distance(fast(leaf, labels).gradients, target).sum(), leaf)
    assert relative_error([found], [expected]) <= 1e-9
