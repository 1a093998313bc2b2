from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from gradveil.engine.convolution import convolution, weight_gradient_by_groups, weight_gradient_by_patches
from gradveil.engine.geometry import Geometry

Path = Callable[[Tensor, Tensor, Geometry], Tensor]

GEOMETRIES = [
    Geometry((3, 3), (1, 1), (1, 1), (1, 1), 1),
    Geometry((1, 1), (1, 1), (0, 0), (1, 1), 1),
    Geometry((1, 1), (2, 2), (0, 0), (1, 1), 1),
    Geometry((1, 1), (1, 1), (1, 1), (1, 1), 1),
    Geometry((2, 3), (2, 1), (0, 2), (1, 2), 1),
    Geometry((3, 2), (3, 2), (1, 0), (2, 1), 1),
    Geometry((5, 7), (1, 1), (2, 3), (1, 1), 1),
    Geometry((3, 3), (2, 1), (1, 1), (1, 1), 2),
    Geometry((3, 1), (1, 2), (0, 1), (1, 1), 2),
]
ROWS = [
    pytest.param(geometry, path, id=f"{path.__name__}-{geometry}")
    for geometry in GEOMETRIES
    for path in (weight_gradient_by_groups, weight_gradient_by_patches)
    if path is weight_gradient_by_groups or geometry.groups == 1
]


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def convolve(inputs: Tensor, weight: Tensor, geometry: Geometry) -> Tensor:
    return F.conv2d(inputs, weight, None, geometry.stride, geometry.padding, geometry.dilation, geometry.groups)


def one_at_a_time(inputs: Tensor, deltas: Tensor, geometry: Geometry, *, twice: bool = False) -> Tensor:
    """Differentiate each victim's own convolution by its weight."""
    weight = torch.zeros(6, 4 // geometry.groups, *geometry.kernel, dtype=torch.float64, requires_grad=True)
    return torch.stack(
        [
            torch.autograd.grad((convolve(own, weight, geometry) * delta).sum(), weight, create_graph=twice)[0]
            for own, delta in zip(inputs, deltas, strict=True)
        ]
    )


def layers(geometry: Geometry) -> tuple[Tensor, Tensor]:
    inputs = draw(3, 2, 4, 7, 9)
    height, width = geometry.output_size(7, 9)
    return inputs, draw(3, 2, 6, height, width, seed=1)


@pytest.mark.parametrize(("geometry", "path"), ROWS)
def test_weight_gradients_equal_one_victim_at_a_time(geometry: Geometry, path: Path) -> None:
    inputs, deltas = layers(geometry)
    torch.testing.assert_close(path(inputs, deltas, geometry), one_at_a_time(inputs, deltas, geometry))


@pytest.mark.parametrize(("geometry", "path"), ROWS)
def test_weight_gradients_are_differentiable_in_both_arguments(geometry: Geometry, path: Path) -> None:
    inputs, deltas = (tensor.requires_grad_() for tensor in layers(geometry))
    expected = one_at_a_time(inputs, deltas, geometry, twice=True)
    weights = draw(*expected.shape, seed=2)
    slow = torch.autograd.grad((expected.square() * weights).sum(), (inputs, deltas))
    found = path(inputs, deltas, geometry)
    fast = torch.autograd.grad((found.square() * weights).sum(), (inputs, deltas))
    torch.testing.assert_close(fast, slow)


@pytest.mark.parametrize("geometry", GEOMETRIES, ids=str)
def test_the_output_size_is_that_of_torch(geometry: Geometry) -> None:
    inputs, _ = layers(geometry)
    weight = draw(6, 4 // geometry.groups, *geometry.kernel)
    assert tuple(convolve(inputs[0], weight, geometry).shape[2:]) == geometry.output_size(7, 9)
    torch.testing.assert_close(convolution(inputs[0], weight, geometry), convolve(inputs[0], weight, geometry))


def test_reads_the_geometry_off_a_call() -> None:
    weight = torch.zeros(2, 2, 3, 5)
    assert Geometry.of(weight, 2, "valid", 1, 1) == Geometry((3, 5), (2, 2), (0, 0), (1, 1), 1)
    assert Geometry.of(weight, (1,), "same", (2, 1), 1) == Geometry((3, 5), (1, 1), (2, 2), (2, 1), 1)
    assert Geometry.of(weight, [2, 1], (1, 0), 1, 2) == Geometry((3, 5), (2, 1), (1, 0), (1, 1), 2)
    assert Geometry.of(torch.zeros(2, 2, 2, 3), 1, "same", 1, 1) is None
