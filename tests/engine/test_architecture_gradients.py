"""The architectures of the papers, on both paths."""

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

HEAVY = {"alexnet", "convnet", "densenet121", "resnet18", "resnet20-4", "resnet34", "vgg16"}
SIDE = {"alexnet": 32, "vgg16": 32}
ROWS = [
    pytest.param(name, mode, marks=[pytest.mark.slow] if name in HEAVY else [])
    for name in architectures.names()
    for mode in ("eval", "train")
]


def build(name: str) -> tuple[nn.Module, Tensor, Tensor]:
    """Make a network in float64 with batches for two victims; sigmoid keeps zeros out of its gradients."""
    side = SIDE.get(name, 16)
    leaf = architectures.build(name)
    model = leaf.build(input_shape=(3, side, side), num_classes=5, seed=1).double()
    generator = torch.Generator().manual_seed(2)
    inputs = torch.rand(2, 2, 3, side, side, generator=generator, dtype=torch.float64)
    return model, inputs, torch.randint(5, (2, 2), generator=generator)


@pytest.mark.parametrize(("name", "mode"), ROWS)
def test_both_paths_equal_one_victim_at_a_time_and_the_fast_one_is_taken(name: str, mode: Mode) -> None:
    model, inputs, labels = build(name)
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


@pytest.mark.parametrize(("name", "mode"), ROWS)
def test_second_derivatives_equal_one_victim_at_a_time(name: str, mode: Mode) -> None:
    model, inputs, labels = build(name)
    target = [torch.randn(2, *p.shape, generator=torch.Generator().manual_seed(3)).double() for p in model.parameters()]
    _, expected = slow_matching(model, inputs, labels, target, mode=mode)
    fast = TappedGradients(model, F.cross_entropy, trainable(model), mode, "float32")
    leaf = inputs.clone().requires_grad_()
    (found,) = torch.autograd.grad(distance(fast(leaf, labels).gradients, target).sum(), leaf)
    assert relative_error([found], [expected]) <= 1e-9
