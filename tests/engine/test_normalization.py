import copy

import pytest
import torch
from torch import nn
from torch.func import functional_call, vmap

from gradveil.engine import Standardize, find_normalization, normalized

MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.3, 0.4)


def plain() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 2, 3), nn.Flatten())


def pixels(*shape: int) -> torch.Tensor:
    return torch.rand(*shape, 3, 5, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def test_standardizes_before_the_first_layer_and_keeps_names_and_weights() -> None:
    model = plain().double()
    copied, images = normalized(model, MEAN, STD), pixels(4)
    mean, std = torch.tensor([MEAN, STD], dtype=torch.float64).view(2, 3, 1, 1)
    torch.testing.assert_close(copied(images), model((images - mean) / std))
    assert copied.state_dict().keys() == model.state_dict().keys()
    assert not model._forward_pre_hooks
    copied[0].weight.data.zero_()  # type: ignore[index]
    assert model[0].weight.any()  # type: ignore[index]


def test_pixels_undo_standardization_also_for_stacks() -> None:
    standard = Standardize(MEAN, STD)
    for images in (pixels(4), pixels(2, 4), pixels(4).float()):
        there = standard.standardize(images)
        assert there.dtype == images.dtype
        torch.testing.assert_close(standard.pixels(there), images)


def test_works_inside_vmap_and_functional_call() -> None:
    model, images = normalized(plain().double(), MEAN, STD), pixels(2, 4)
    mapped = vmap(lambda own: functional_call(model, {}, (own,)))(images)
    torch.testing.assert_close(mapped, torch.stack([model(own) for own in images]))


def test_a_model_without_normalization_changes_nothing() -> None:
    found = find_normalization(plain())
    assert found.mean == ()
    images = pixels(4)
    assert torch.equal(found.standardize(images), images)
    assert torch.equal(found.pixels(images), images)


def test_is_found_again_on_copies() -> None:
    model = normalized(plain(), MEAN, STD)
    model(pixels(1).float())
    for copied in (model, copy.deepcopy(model), copy.deepcopy(model).double()):
        assert find_normalization(copied) == Standardize(MEAN, STD)


def test_refuses_what_cannot_be_meant() -> None:
    with pytest.raises(ValueError, match="normalized already"):
        normalized(normalized(plain(), MEAN, STD), MEAN, STD)
    with pytest.raises(ValueError, match="one number per channel, got 3 and 1"):
        normalized(plain(), MEAN, [0.1])
    with pytest.raises(ValueError, match="std must be above 0, got 0"):
        normalized(plain(), MEAN, [0.1, 0.0, 0.1])
