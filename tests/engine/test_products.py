"""Products of gradients, layer by layer, against gradients made one sample at a time."""

import gc
import weakref

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gradveil.engine import Trial, gradient_function, trainable
from gradveil.engine._tapped import TappedGradients
from gradveil.engine.products import Products, product_function, tapped_products


class Twice(nn.Module):
    """Uses one layer twice, and one not at all."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.idle = nn.Linear(8, 8), nn.Linear(2, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        first: Tensor = self.layer(inputs)
        second: Tensor = self.layer(first.tanh())
        return second


class Cubed(nn.Module):
    """Uses a parameter as no layer does, which the fast path refuses."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.linspace(0.1, 1.0, 8))

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs * self.scale**3


def network(last: nn.Module) -> nn.Module:
    """Make a network of a wide convolution with few pixels, one with many, norms and a last layer of 8."""
    torch.manual_seed(0)
    layers = [
        nn.Conv2d(3, 2, 3, padding=1),
        nn.BatchNorm2d(2),
        nn.Tanh(),
        nn.Conv2d(2, 16, 3, stride=4, padding=1, bias=False),
        nn.GroupNorm(2, 16),
        nn.Flatten(),
        nn.Linear(64, 8),
    ]
    model = nn.Sequential(*layers, last).double().eval()
    for buffer in model.buffers():
        if buffer.dtype == torch.float64:
            buffer.uniform_(0.5, 1.5)
    return model


def slow_products(model: nn.Module, inputs: Tensor, labels: Tensor) -> Products:
    with_last, squares = [], []
    for group, label in zip(inputs, labels, strict=True):
        losses = [F.cross_entropy(model(sample[None]), label[None]) for sample in group]
        each = [torch.autograd.grad(loss, list(model.parameters()), materialize_grads=True) for loss in losses]
        with_last.append(torch.tensor([[(a * b).sum() for a, b in zip(g, each[-1], strict=True)] for g in each]))
        squares.append(torch.tensor([[a.square().sum() for a in g] for g in each]))
    return Products(*(torch.stack(found).permute(2, 0, 1) for found in (with_last, squares)))


@pytest.mark.parametrize("last", [nn.Identity, Twice, Cubed])
def test_equal_those_of_gradients_made_one_by_one(last: type[nn.Module]) -> None:
    model = network(last())
    generator = torch.Generator().manual_seed(1)
    inputs = torch.rand(2, 3, 3, 8, 8, generator=generator, dtype=torch.float64)
    labels, trial = torch.tensor([3, 5]), Trial.like(inputs[:1, 0], 8)
    names = trainable(model)
    fast = gradient_function(model, F.cross_entropy, names=names, trial=trial)
    assert isinstance(fast, TappedGradients) == (last is not Cubed)
    function = product_function(model, F.cross_entropy, names=names, precision="float32", trial=trial)
    expected = slow_products(model, inputs, labels)
    for found, wanted in zip(function(inputs, labels), expected, strict=True):
        assert found.shape == (len(names), 2, 3)
        assert torch.allclose(found, wanted.to(found.dtype), rtol=1e-8, atol=1e-14)


@pytest.mark.parametrize("kind", ["gradients", "factors", "products"])
def test_what_layers_saw_is_gone_as_soon_as_the_gradients_are_made(kind: str) -> None:
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3)).eval()
    names = tuple(name for name, _ in model.named_parameters())
    tapped = TappedGradients(model, F.cross_entropy, names, "eval", "float32")
    seen: list[weakref.ref[Tensor]] = []
    model[0].register_forward_hook(lambda *call: seen.append(weakref.ref(call[-1])))
    inputs, labels = torch.rand(2, 1, 1, 6, 6), torch.tensor([[1], [2]])
    gc.disable()  # a cycle would live until the collector comes by, and with it the memory of the device
    try:
        if kind == "gradients":
            tapped(inputs, labels)
        elif kind == "factors":
            tapped.factors(inputs, labels)
        else:
            tapped_products(tapped, names, inputs, labels[:, 0])
        assert seen[0]() is None
    finally:
        gc.enable()
