from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import nn

from gradveil import models
from gradveil.models import checkpoints
from gradveil.models.checkpoints import CheckpointError

ABOUT = {"model": "convnet:width=4", "input_shape": "1x8x8", "num_classes": "3", "accuracy": "0.91", "defenses": ""}


def convnet(*, seed: int = 0, classes: int = 3) -> nn.Module:
    return models.build(ABOUT["model"], input_shape=(1, 8, 8), num_classes=classes, seed=seed)


def trained() -> nn.Module:
    model = convnet(seed=1)
    model(torch.rand(5, 1, 8, 8, generator=torch.Generator().manual_seed(0)))
    return model


def test_brings_back_parameters_and_buffers_and_what_was_said(tmp_path: Path) -> None:
    stored, fresh, path = trained(), convnet(seed=2), tmp_path / "new" / "model.safetensors"
    checkpoints.save(stored, path, about=ABOUT)
    assert checkpoints.load(path, fresh) == checkpoints.read_about(path) == ABOUT
    assert list(fresh.state_dict()) == list(stored.state_dict())
    assert all(torch.equal(tensor, fresh.state_dict()[name]) for name, tensor in stored.state_dict().items())
    assert fresh.state_dict()["bn1.num_batches_tracked"] == 1
    assert [file.name for file in path.parent.iterdir()] == ["model.safetensors"]


def test_keeps_the_number_format_of_the_model(tmp_path: Path) -> None:
    path, model = tmp_path / "model.safetensors", convnet().double()
    checkpoints.save(trained(), path, about={})
    assert checkpoints.load(path, model) == {}
    assert model.get_parameter("fc.weight").dtype == torch.float64


def test_stores_layers_that_share_a_weight(tmp_path: Path) -> None:
    def tied() -> nn.Sequential:
        first, second = nn.Linear(2, 2), nn.Linear(2, 2)
        second.weight = first.weight
        return nn.Sequential(first, second)

    stored, fresh = tied(), tied()
    checkpoints.save(stored, tmp_path / "tied.safetensors", about={})
    checkpoints.load(tmp_path / "tied.safetensors", fresh)
    assert torch.equal(stored.get_parameter("0.weight"), fresh.get_parameter("1.weight"))
    assert fresh.get_parameter("0.weight") is fresh.get_parameter("1.weight")


def test_an_interrupted_write_leaves_the_older_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model.safetensors"
    checkpoints.save(trained(), path, about={"epochs": "1"})
    older = path.read_bytes()

    def fail(_: int) -> None:
        raise OSError("no space left")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(OSError, match="no space left"):
        checkpoints.save(convnet(seed=9), path, about={"epochs": "2"})
    assert path.read_bytes() == older
    assert list(tmp_path.iterdir()) == [path]


def test_who_reads_the_older_file_meanwhile_sees_all_of_it(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    checkpoints.save(trained(), path, about={})
    older = path.read_bytes()
    with path.open("rb") as reader:
        checkpoints.save(convnet(seed=9), path, about={})
        assert reader.read() == older
    assert path.read_bytes() != older


def test_says_that_a_file_is_missing(tmp_path: Path) -> None:
    for path in (tmp_path / "none.safetensors", tmp_path):
        with pytest.raises(CheckpointError, match="there is no checkpoint at"):
            checkpoints.load(path, convnet())


@pytest.mark.parametrize("damage", ["cut", "text", "empty"])
def test_says_that_a_file_is_damaged(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "model.safetensors"
    checkpoints.save(trained(), path, about=ABOUT)
    path.write_bytes({"cut": path.read_bytes()[:-100], "text": b"weights, honestly", "empty": b""}[damage])
    with pytest.raises(CheckpointError, match="is not a whole safetensors file"):
        checkpoints.load(path, convnet())


def test_names_shapes_that_differ_and_changes_nothing(tmp_path: Path) -> None:
    path, model = tmp_path / "model.safetensors", convnet(seed=4, classes=5)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    checkpoints.save(trained(), path, about=ABOUT)
    with pytest.raises(CheckpointError, match=r"'fc.weight' has shape \(3, 16\) instead of \(5, 16\), 'fc.bias'"):
        checkpoints.load(path, model)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


def test_names_the_first_few_keys_that_differ(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    safetensors.torch.save_file({"weight": torch.zeros(2, 2), "extra": torch.zeros(1)}, path)
    with pytest.raises(CheckpointError, match="'bias' is missing, 'extra' is unknown to the model; build"):
        checkpoints.load(path, nn.Linear(2, 2))
    with pytest.raises(CheckpointError, match=r"'conv1.weight' is missing, .* and \d+ more"):
        checkpoints.load(path, convnet())


def test_refuses_notes_that_are_no_text(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="'epochs' about a checkpoint must be text, got 3"):
        checkpoints.save(convnet(), tmp_path / "model.safetensors", about={"epochs": 3})  # type: ignore[dict-item]
    assert not list(tmp_path.iterdir())
