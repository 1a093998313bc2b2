"""LPIPS on random weights: the arithmetic is tested, not what trained networks see."""

import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torchmetrics.functional.image import lpips as reference

from gradveil.errors import DataError
from gradveil.metrics import LPIPS
from gradveil.metrics._perceptual import Backbone, expected_shapes, load


@pytest.fixture(autouse=True)
def forget_weights() -> Iterator[None]:
    yield
    load.cache_clear()


def torchvision_layers(network: str) -> nn.Sequential:
    """Build the `features` of AlexNet or VGG16 as torchvision numbers them, with random weights."""
    torch.manual_seed(0)
    if network == "alex":
        widths = [(3, 64, 11, 4, 2), (64, 192, 5, 1, 2), (192, 384, 3, 1, 1), (384, 256, 3, 1, 1), (256, 256, 3, 1, 1)]
        blocks = [[nn.Conv2d(*width), nn.ReLU()] for width in widths]
        pool = nn.MaxPool2d(3, 2)
        return nn.Sequential(*blocks[0], pool, *blocks[1], pool, *blocks[2], *blocks[3], *blocks[4], pool)
    found: list[nn.Module] = []
    channels = 3
    for item in [64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 512, 512, 512, 0, 512, 512, 512, 0]:
        found += [nn.Conv2d(channels, item, 3, padding=1), nn.ReLU()] if item else [nn.MaxPool2d(2, 2)]
        channels = item or channels
    return nn.Sequential(*found)


def published_heads(network: str) -> dict[str, Tensor]:
    path = Path(reference.__file__).parent / "lpips_models" / f"{network}.pth"
    heads: dict[str, Tensor] = torch.load(path, map_location="cpu", weights_only=True)
    return heads


def random_weights(network: str) -> dict[str, Tensor]:
    """Give a random backbone the published heads."""
    backbone = torchvision_layers(network).state_dict()
    return {**{f"features.{name}": weight for name, weight in backbone.items()}, **published_heads(network)}


def images(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("network", ["alex", "vgg"])
def test_agrees_with_torchmetrics(network: Backbone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference, "_get_tv_model_features", lambda *_: torchvision_layers(network))
    path = tmp_path / "random.safetensors"
    save_file(random_weights(network), path)
    guess, truth = images(2, 2, 3, 40, 36), images(2, 2, 3, 40, 36, seed=1)

    trusted = reference._LPIPS(pretrained=True, net=network, pnet_rand=True)
    expected = trusted(guess.flatten(0, 1), truth.flatten(0, 1), normalize=True).reshape(2, 2)
    scores = LPIPS(network=network, weights=str(path))(guess, truth)
    torch.testing.assert_close(scores, expected, rtol=1e-4, atol=1e-6)


def test_takes_backbone_and_heads_from_installed_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def get_model(name: str, *, weights: str, progress: bool) -> nn.Module:
        assert (name, weights, progress) == ("alexnet", "IMAGENET1K_V1", False)
        return nn.ModuleDict({"features": torchvision_layers("alex")})

    monkeypatch.setitem(sys.modules, "torchvision", SimpleNamespace(models=SimpleNamespace(get_model=get_model)))
    path = tmp_path / "random.safetensors"
    save_file(random_weights("alex"), path)
    guess, truth = images(1, 2, 3, 32, 32), images(1, 2, 3, 32, 32, seed=1)
    torch.testing.assert_close(LPIPS()(guess, truth), LPIPS(weights=str(path))(guess, truth))


def test_takes_a_grey_image_for_three_equal_channels(tmp_path: Path) -> None:
    path = tmp_path / "random.safetensors"
    save_file(random_weights("alex"), path)
    metric = LPIPS(weights=str(path))
    guess, truth = images(1, 2, 1, 8, 8), images(1, 2, 1, 8, 8, seed=1)
    torch.testing.assert_close(metric(guess, truth), metric(guess.expand(1, 2, 3, 8, 8), truth.expand(1, 2, 3, 8, 8)))
    with pytest.raises(DataError, match="1 or 3 channels"):
        metric(images(1, 1, 4, 8, 8), images(1, 1, 4, 8, 8))


def test_says_what_to_do_when_there_are_no_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchvision", None)
    with pytest.raises(DataError, match="pass weights=FILE"):
        LPIPS()(images(1, 1, 3, 32, 32), images(1, 1, 3, 32, 32))


def test_names_the_entry_that_is_missing_or_wrong(tmp_path: Path) -> None:
    path, image = tmp_path / "random.safetensors", images(1, 1, 3, 32, 32)
    weights = {name: torch.zeros(shape) for name, shape in expected_shapes("alex").items()}
    save_file({name: weight for name, weight in weights.items() if name != "features.3.bias"}, path)
    with pytest.raises(DataError, match=r"features\.3\.bias of shape \(192,\), got nothing"):
        LPIPS(weights=str(path))(image, image)

    save_file({**weights, "lin2.model.1.weight": -torch.ones(1, 384, 1, 1)}, path)
    with pytest.raises(DataError, match=r"lin2\.model\.1\.weight has entries below 0"):
        LPIPS(weights=str(path))(image, image)


def test_refuses_files_that_are_not_safetensors(tmp_path: Path) -> None:
    path, image = tmp_path / "weights.pth", images(1, 1, 3, 32, 32)
    with pytest.raises(DataError, match="cannot read"):
        LPIPS(weights=str(path))(image, image)
    torch.save({}, path)
    with pytest.raises(DataError, match="safetensors"):
        LPIPS(weights=str(path))(image, image)


def test_refuses_an_unknown_network() -> None:
    with pytest.raises(ValueError, match="alex or vgg"):
        LPIPS(network="squeeze")  # type: ignore[arg-type]
