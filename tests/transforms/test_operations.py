"""The 50 operations against Pillow, and their differentiable versions against the exact ones."""

import math
import os
from pathlib import Path

import pytest
import torch
from pillow_reference import by_pillow
from torch import Tensor

from gradveil import data
from gradveil.errors import DataError
from gradveil.transforms import (
    OPERATIONS,
    Variants,
    Views,
    canonical_index,
    crop_flip,
    to_bytes,
    transform_bytes,
    transform_smoothly,
)
from gradveil.transforms._table import KINDS

ROOT = Path(os.environ.get("GRADVEIL_DATA") or "nowhere")
SIGNS = (1, -1)


def random_images(shape: tuple[int, ...], *, low: int = 0, high: int = 256, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(low, high, shape, generator=generator).to(torch.uint8)


def smooth_images(count: int = 3) -> Tensor:
    """Images whose neighbours are alike, as in photographs, but of all levels."""
    coarse = random_images((count, 3, 8, 8)).float()
    return torch.nn.functional.interpolate(coarse, 32, mode="bilinear").round().to(torch.uint8)


SETS = {
    "colour": random_images((3, 3, 32, 32)),
    "grey": random_images((3, 1, 28, 28)),
    "oblong": random_images((2, 3, 17, 31)),
    "few levels": random_images((2, 3, 32, 32), low=100, high=103),
    "one level": torch.full((1, 3, 32, 32), 77, dtype=torch.uint8),
    "photographs": smooth_images(),
}


def signs_of(code: int) -> tuple[int, ...]:
    return SIGNS if OPERATIONS[code].signed else (1,)


def same(images: Tensor, code: int, sign: int) -> Variants:
    shape = (len(images), 1)
    return Variants(torch.full(shape, code), torch.full(shape, sign))


@pytest.mark.parametrize("name", SETS)
def test_every_operation_equals_pillow_to_the_bit(name: str) -> None:
    images = SETS[name]
    for code in range(50):
        for sign in signs_of(code):
            ours, theirs = transform_bytes(images, same(images, code, sign)), by_pillow(images, [code], [sign])
            assert torch.equal(ours, theirs), f"{code} ({OPERATIONS[code]}), sign {sign}"


@pytest.mark.parametrize("name", ["cifar100", "mnist"])
def test_every_function_equals_pillow_on_all_test_images_of_a_class(name: str) -> None:
    if not data.sources.get(name).present(ROOT):
        pytest.skip(f"{name} is not in GRADVEIL_DATA")
    split = data.load(name, ROOT).test
    images = split.images[split.labels == 7][:100]  # all of that class in CIFAR-100
    for code in sorted({canonical_index(code) for code in range(50)}):
        for sign in signs_of(code):
            ours, theirs = transform_bytes(images, same(images, code, sign)), by_pillow(images, [code], [sign])
            assert torch.equal(ours, theirs), f"{code} ({OPERATIONS[code]}), sign {sign}"


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_equals_pillow_at_levels_that_the_table_does_not_use(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from gradveil.transforms import Operation, applying

    images = SETS["oblong"]
    table = tuple(Operation(kind, level) for level in range(10))
    monkeypatch.setattr(applying, "OPERATIONS", table)
    monkeypatch.setattr("pillow_reference.OPERATIONS", table)
    for level in (1, 4, 9):
        for sign in SIGNS:
            ours = transform_bytes(images, same(images, level, sign))
            assert torch.equal(ours, by_pillow(images, [level], [sign])), f"{kind} {level}, sign {sign}"


def test_each_image_goes_through_its_own_operations_and_signs() -> None:
    images = random_images((6, 3, 32, 32))
    codes = torch.tensor([[3, 1, 7], [43, 18, 18], [2, -1, -1], [3, 9, -1], [12, 1, 5], [-1, -1, -1]])
    signs = torch.tensor([[1, -1, 1], [-1, -1, 1], [1, 1, 1], [-1, 1, 1], [1, 1, -1], [1, 1, 1]])
    ours = transform_bytes(images, Variants(codes, signs))
    for image, code, sign, got in zip(images, codes.tolist(), signs.tolist(), ours, strict=True):
        used = [place for place, index in enumerate(code) if index >= 0]
        expected = by_pillow(image[None], [code[p] for p in used], [sign[p] for p in used])
        assert torch.equal(got, expected[0])


@pytest.mark.parametrize(("code", "pixels"), [(3, 15), (7, 3), (21, 8), (43, 5)])
@pytest.mark.parametrize("sign", SIGNS)
def test_translations_leave_the_published_number_of_black_lines(code: int, pixels: int, sign: int) -> None:
    white = torch.full((1, 3, 32, 32), 255, dtype=torch.uint8)
    moved = transform_bytes(white, same(white, code, sign))
    assert int((moved[0, 0] == 0).sum()) == 32 * pixels


PUBLISHED = {
    "invert": {0: 7, 29: 0, 47: 0},
    "contrast": {1: 6, 18: 7},
    "rotate": {2: 2},
    "translate-x": {3: 9, 21: 5},
    "translate-y": {7: 2, 24: 3, 42: 3, 43: 3, 48: 3},
    "sharpness": {4: 1, 5: 3, 14: 9, 19: 5, 25: 6},
    "shear-y": {6: 2, 10: 5},
    "autocontrast": {8: 5, 23: 8, 31: 0, 36: 4, 41: 0, 44: 1, 49: 1},
    "equalize": {9: 2, 16: 5, 17: 1, 22: 7, 30: 0, 32: 8, 33: 4, 35: 5, 46: 5},
    "posterize": {11: 5},
    "color": {12: 3, 20: 5, 27: 8, 34: 5, 39: 0},
    "brightness": {13: 5, 15: 9, 26: 6, 38: 3},
    "solarize": {28: 0, 37: 4, 40: 1, 45: 1},
}


def test_the_table_holds_the_published_kinds_and_levels() -> None:
    entries = {code: (kind, level) for kind, levels in PUBLISHED.items() for code, level in levels.items()}
    assert [entries[code] for code in range(50)] == [(operation.kind, operation.level) for operation in OPERATIONS]


def test_the_table_holds_the_published_values() -> None:
    assert len(OPERATIONS) == 50
    assert len({canonical_index(code) for code in range(50)}) == 29
    assert [code for code, operation in enumerate(OPERATIONS) if operation.identity] == [28, 39]
    values = {0: 0, 1: 1 / 3, 2: 20 / 3, 3: 150 / 331, 10: 1 / 6, 11: 6, 15: 0.5, 28: 256, 37: 142.2222, 45: 227.5556}
    for code, value in values.items():
        assert math.isclose(OPERATIONS[code].value, value, abs_tol=1e-4), code
    unsigned = {"rotate", "posterize", "solarize", "autocontrast", "equalize", "invert"}
    assert {operation.kind for operation in OPERATIONS if not operation.signed} == unsigned


ROUNDED_TWICE = {"color", "contrast", "sharpness"}
"""What they blend with is rounded too: by half a level, of which at most half comes through."""


@pytest.mark.parametrize("code", sorted({canonical_index(code) for code in range(50)}))
@pytest.mark.parametrize("sign", SIGNS)
def test_the_smooth_version_differs_from_the_exact_one_by_rounding_alone(code: int, sign: int) -> None:
    images = smooth_images()
    bound = 1.25 if OPERATIONS[code].kind in ROUNDED_TWICE else 1.0
    exact = transform_bytes(images, same(images, code, sign)).double()
    smooth = transform_smoothly(images.double() / 255, same(images, code, sign)) * 255
    assert float((exact - smooth).abs().max()) <= bound + 1e-6


STRAIGHT = {"posterize", "equalize"}


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in STRAIGHT])
def test_smooth_versions_have_the_derivative_of_what_they_compute(kind: str) -> None:
    images = (torch.rand((2, 3, 4, 4), generator=torch.Generator().manual_seed(1), dtype=torch.float64) * 0.5) + 0.2
    function, value = KINDS[kind].smooth, KINDS[kind].value(4)
    signs = torch.tensor([1, -1])
    assert torch.autograd.gradcheck(lambda x: function(x, value, signs), images.requires_grad_())


@pytest.mark.parametrize("kind", sorted(STRAIGHT))
def test_operations_without_a_derivative_pass_it_straight_through(kind: str) -> None:
    images = torch.rand((2, 3, 32, 32), generator=torch.Generator().manual_seed(1)).requires_grad_()
    function, value = KINDS[kind].smooth, KINDS[kind].value(9)
    made = function(images, value, torch.tensor([1, 1]))
    assert not torch.equal(made, images)
    weights = torch.rand(images.shape, generator=torch.Generator().manual_seed(2))
    (gradient,) = torch.autograd.grad((made * weights).sum(), images)
    assert torch.equal(gradient, weights)


def test_crops_and_mirrors_as_cutting_and_flipping_by_hand() -> None:
    images = random_images((3, 3, 8, 8))
    views = Views(torch.tensor([[4, 4], [0, 8], [7, 3]]), torch.tensor([False, True, True]))
    made = crop_flip(images, views)
    padded = torch.nn.functional.pad(images, [4] * 4)
    assert torch.equal(made[0], images[0])
    assert torch.equal(made[1], padded[1, :, 0:8, 8:16].flip(2))
    assert torch.equal(made[2], padded[2, :, 7:15, 3:11].flip(2))


def test_bytes_survive_the_way_to_numbers_and_back() -> None:
    levels = torch.arange(256, dtype=torch.uint8)
    assert torch.equal(to_bytes(levels.float() / 255), levels)


@pytest.mark.parametrize("shape", [(1, 2, 8, 8), (3, 8, 8), (1, 3, 2, 8)])
def test_refuses_images_that_pillow_would_not_read_so(shape: tuple[int, ...]) -> None:
    images = torch.zeros(shape, dtype=torch.uint8)
    with pytest.raises(DataError, match="1 or 3 channels"):
        transform_bytes(images, same(images, 0, 1))


def test_refuses_numbers_where_bytes_are_meant() -> None:
    images = torch.zeros(1, 3, 8, 8)
    with pytest.raises(DataError, match="take bytes"):
        transform_bytes(images, same(images, 0, 1))
