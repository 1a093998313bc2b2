"""Gradients that are not multiplied out: the same squares and products, differentiated alike."""

import pytest
import torch
import torch.nn.functional as F
from networks import BY_NAME, CLASSES, SHAPE, build
from slow_gradients import relative_error
from torch import Tensor, nn

from gradveil.engine import Factored, formed, row_squares_and_products, square_and_product, trainable
from gradveil.engine._tapped import TappedGradients
from gradveil.engine.factors import pays

V, B = 3, 1


def wide(kind: str) -> nn.Module:
    """A network whose last layers see few rows."""
    torch.manual_seed(0)
    layers = {
        "convolution": [nn.Conv2d(3, 8, 3, 4), nn.Sigmoid(), nn.Conv2d(8, 64, 3), nn.Sigmoid(), nn.Flatten()],
        "linear": [nn.Flatten(), nn.Linear(3 * 13 * 13, 20), nn.Sigmoid(), nn.Linear(20, 30), nn.Sigmoid()],
    }
    sample = torch.rand(1, 3, 13, 13)
    body = nn.Sequential(*layers[kind])
    return nn.Sequential(body, nn.Linear(body(sample).shape[1], CLASSES)).double()


def both(kind: str) -> tuple[TappedGradients, Tensor, Tensor, list[Tensor]]:
    model, generator = wide(kind), torch.Generator().manual_seed(4)
    inputs = torch.rand(V, B, 3, 13, 13, generator=generator, dtype=torch.float64, requires_grad=True)
    labels = torch.randint(CLASSES, (V, B), generator=generator)
    fast = TappedGradients(model, F.cross_entropy, trainable(model), "eval", "float32")
    target = [torch.randn(g.shape, generator=generator).to(g) for g in fast(inputs, labels).gradients]
    return fast, inputs, labels, target


@pytest.mark.parametrize("kind", ["convolution", "linear"])
def test_formed_factors_are_the_gradients(kind: str) -> None:
    fast, inputs, labels, _ = both(kind)
    factors = fast.factors(inputs, labels)
    assert {isinstance(factor, Factored) for factor in factors} == {True, False}
    assert relative_error([formed(f) for f in factors], fast(inputs, labels).gradients) <= 1e-12


@pytest.mark.parametrize("kind", ["convolution", "linear"])
def test_rows_equal_those_of_the_gradients(kind: str) -> None:
    fast, inputs, labels, target = both(kind)
    slopes = []
    for trial in (fast.factors(inputs, labels), fast(inputs, labels).gradients):
        pairs = [row_squares_and_products(g, t) for g, t in zip(trial, target, strict=True)]
        for gradient, goal, (squares, products) in zip(trial, target, pairs, strict=True):
            rows, wanted = (t.flatten(2) if t.ndim > 2 else t[:, None] for t in (formed(gradient), goal))
            assert torch.allclose(squares, rows.square().sum(2), rtol=1e-11)
            assert torch.allclose(products, (rows * wanted).sum(2), rtol=1e-9, atol=1e-13)
        value = sum((products * squares.rsqrt()).sin().sum() for squares, products in pairs)
        assert isinstance(value, Tensor)
        slopes.append(torch.autograd.grad(value, inputs)[0])
    assert relative_error(slopes[:1], slopes[1:]) <= 1e-9


@pytest.mark.parametrize("kind", ["convolution", "linear"])
def test_squares_and_products_equal_those_of_the_gradients(kind: str) -> None:
    fast, inputs, labels, target = both(kind)

    def objective(trial: tuple[Tensor | Factored, ...]) -> tuple[Tensor, Tensor]:
        pairs = [square_and_product(g, t) for g, t in zip(trial, target, strict=True)]
        value = sum(square.sqrt() + product.sin() for square, product in pairs)
        assert isinstance(value, Tensor)
        return value.detach(), torch.autograd.grad(value.sum(), inputs)[0]

    value, slope = objective(fast.factors(inputs, labels))
    plain = [g.flatten(1) for g in fast(inputs, labels).gradients]
    wanted = sum(g.square().sum(1).sqrt() + (g * t.flatten(1)).sum(1).sin() for g, t in zip(plain, target, strict=True))
    assert isinstance(wanted, Tensor)
    assert torch.allclose(value, wanted, rtol=1e-12)
    assert relative_error([slope], torch.autograd.grad(wanted.sum(), [inputs])) <= 1e-10


def test_a_weight_that_is_used_twice_is_summed() -> None:
    model, generator = build(BY_NAME["tied weights"]), torch.Generator().manual_seed(1)
    inputs = torch.rand(V, 2, *SHAPE, generator=generator, dtype=torch.float64)
    labels = torch.randint(CLASSES, (V, 2), generator=generator)
    fast = TappedGradients(model, F.cross_entropy, trainable(model), "eval", "float32")
    found = [formed(f) for f in fast.factors(inputs, labels)]
    assert relative_error(found, fast(inputs, labels).gradients) <= 1e-12


def test_each_victim_is_multiplied_by_its_own_number() -> None:
    gradient = Factored(torch.rand(2, 1, 3), torch.rand(2, 1, 4))
    scaled = gradient.times(torch.tensor([2.0, -1.0])).formed()
    assert torch.allclose(scaled, gradient.formed() * torch.tensor([2.0, -1.0])[:, None, None])


def test_factors_of_few_bits_are_multiplied_in_the_format_of_the_inputs() -> None:
    model = wide("convolution").float()
    fast = TappedGradients(model, F.cross_entropy, trainable(model), "eval", "bf16")
    inputs, labels = torch.rand(V, B, 3, 13, 13), torch.zeros(V, B, dtype=torch.long)
    factors = fast.factors(inputs, labels)
    assert {f.deltas.dtype for f in factors if isinstance(f, Factored)} == {torch.float32}
    for factor, gradient in zip(factors, fast(inputs, labels).gradients, strict=True):
        square, product = square_and_product(factor, gradient)
        assert torch.allclose(square, gradient.flatten(1).square().sum(1), rtol=0.02)
        assert torch.allclose(product, square, rtol=0.02)


def test_factors_are_for_few_rows_and_large_gradients() -> None:
    assert pays(1, 10, 10)
    assert not pays(100, 10, 10)
