"""Batch norm and rectifier in one: the same numbers as one after the other, differentiated once and twice."""

import pytest
import torch
import torch.nn.functional as F
from networks import BY_NAME, CLASSES, SHAPE, build
from slow_gradients import distance, one_at_a_time, relative_error, slow_matching
from torch import Tensor

from gradveil.engine import _taps, trainable
from gradveil.engine._rectified import Norm, rectified, take_sums
from gradveil.engine._tapped import TappedGradients

V, B, C = 3, 2, 5


def numbers(seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Inputs, scale, shift, and weights of the outputs."""
    generator = torch.Generator().manual_seed(seed)
    shapes = ((V * B, C, 4, 3), (C,), (C,), (V * B, C, 4, 3))
    inputs, scale, shift, weights = (torch.randn(s, generator=generator, dtype=torch.float64) for s in shapes)
    return inputs, scale, shift, weights


def plainly(inputs: Tensor, scale: Tensor, shift: Tensor, weights: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The gradient at the inputs and the two sums, by autograd alone."""
    normed = inputs * scale[:, None, None] + shift[:, None, None]
    at_norm, at_inputs = torch.autograd.grad(
        (normed.relu().pow(2) * weights).sum(), (normed, inputs), create_graph=True
    )
    plain, product = (t.view(V, B, C, -1).sum((1, 3)) for t in (at_norm, at_norm * inputs))
    return at_inputs, plain, product


def together(inputs: Tensor, scale: Tensor, shift: Tensor, weights: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    norm = Norm(inputs, scale, shift, V)
    output = rectified(norm)
    at_output, at_inputs = torch.autograd.grad((output.pow(2) * weights).sum(), (output, inputs), create_graph=True)
    norm.wanted = False
    plain, product = take_sums(norm, at_output)
    return at_inputs, plain, product


def test_first_derivatives_and_sums_equal_those_of_two_operations() -> None:
    inputs, *rest = numbers(0)
    found, expected = together(inputs.requires_grad_(), *rest), plainly(inputs, *rest)
    assert all(torch.allclose(f, e, rtol=0, atol=1e-12) for f, e in zip(found, expected, strict=True))


def test_second_derivatives_equal_those_of_two_operations() -> None:
    inputs, *rest = numbers(1)
    inputs.requires_grad_()

    def through(values: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        return torch.autograd.grad(sum((v.sin() * (i + 1)).sum() for i, v in enumerate(values)), inputs)[0]  # type: ignore[arg-type]

    assert torch.allclose(through(together(inputs, *rest)), through(plainly(inputs, *rest)), rtol=0, atol=1e-11)


def test_sums_are_found_where_nothing_before_the_norm_is_differentiated_by() -> None:
    inputs, scale, shift, weights = numbers(2)
    norm = Norm(inputs.requires_grad_(), scale, shift, V)
    output = rectified(norm)
    (delta,) = torch.autograd.grad((output.pow(2) * weights).sum(), output)
    expected = plainly(inputs, scale, shift, weights)[1:]
    assert all(torch.allclose(f, e) for f, e in zip(take_sums(norm, delta), expected, strict=True))


@pytest.mark.parametrize("name", ["batch norm", "residual block", "activation in place"])
def test_networks_are_differentiated_alike(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_taps, "fuses", lambda _: True)
    model, generator = build(BY_NAME[name]), torch.Generator().manual_seed(3)
    inputs = torch.rand(V, B, *SHAPE, generator=generator, dtype=torch.float64)
    labels = torch.randint(CLASSES, (V, B), generator=generator)
    target = one_at_a_time(model, inputs.flip(0), labels, mode="eval").gradients
    fast = TappedGradients(model, F.cross_entropy, trainable(model), "eval", "float32")
    inputs.requires_grad_()
    values = distance(fast(inputs, labels).gradients, target)
    expected, by_inputs = slow_matching(model, inputs, labels, target, mode="eval")
    assert torch.allclose(values, expected, rtol=0, atol=1e-10)
    assert relative_error(torch.autograd.grad(values.sum(), [inputs]), [by_inputs]) <= 1e-9
