import json
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from gradveil.cli import app
from gradveil.models import generators
from gradveil.obscuring import load_extractor

TINY = "--settings epochs=1,batch_size=256 --device cpu --quiet"


def gradveil_(line: str) -> Result:
    return CliRunner().invoke(app, line.split())


@pytest.fixture
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_generator_is_trained_and_kept(inside: Path) -> None:
    line = "train generator g.safetensors --settings epochs=1,width=8,latent_size=4 --device cpu --json"
    result = gradveil_(line)
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["psnr"] > 0
    assert generators.load(inside / "g.safetensors").latent_size == 4
    assert not (inside / "g.unfinished").exists()


def test_an_extractor_is_trained_and_named_by_a_study(inside: Path) -> None:
    made = gradveil_(f"train extractor e.safetensors --dataset digits --model lenet {TINY}")
    assert made.exit_code == 0, made.output
    assert load_extractor(inside / "e.safetensors").channels == 1
    line = f"obscure weights study --c 5 --c 20 --model mlp:hidden=8 --count 32 --precision float32 {TINY} --json"
    result = gradveil_(f"{line} --defense loda:extractor=e.safetensors,steps=1")
    assert result.exit_code == 0, result.output
    rows = json.loads((inside / "study/study.json").read_text())["rows"]
    assert [row["c"] for row in rows] == [None, 5.0, 20.0]
    assert json.loads(result.stdout)["defense"] == "loda:steps=1,extractor=e.safetensors"


def test_several_architectures_are_studied_in_one_command(inside: Path) -> None:
    line = f"obscure models study --model mlp:hidden=8 --model lenet --count 32 --precision float32 {TINY}"
    result = gradveil_(f"{line} --defense loda:steps=1")
    assert result.exit_code == 0, result.output
    rows = json.loads((inside / "study/study.json").read_text())["rows"]
    assert [row["architecture"] for row in rows] == ["mlp:hidden=8", "mlp:hidden=8", "lenet", "lenet"]
    assert "accuracy" in result.stdout


def test_obscured_images_come_with_a_sheet(inside: Path) -> None:
    result = gradveil_("obscure images out --count 9 --defense loda:steps=1 --public digits --device cpu --quiet")
    assert result.exit_code == 0, result.output
    assert (inside / "out/sheet.png").read_bytes().startswith(b"\x89PNG")
    assert (inside / "out/obscured.safetensors").exists()


def test_a_network_is_still_trained_without_a_word_for_it(inside: Path) -> None:
    for line in ("train a.safetensors", "train network b.safetensors"):
        assert gradveil_(f"{line} --model mlp:hidden=4 --settings epochs=1 --device cpu").exit_code == 0
    assert (inside / "a.safetensors").exists()
    assert (inside / "b.safetensors").exists()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("train generator . --settings epochs=1", "is a folder; name the file to write"),
        ("train generator g.safetensors --settings epochs=0", "epochs must be at least 1"),
        ("train extractor e.safetensors --dataset digits --settings epoch=1", "did you mean epochs"),
        ("obscure images out --defense mixup", "images are obscured by loda, got 'mixup'"),
        ("obscure weights out --defense loda --settings lr=0", "lr must be above 0"),
    ],
)
def test_wrong_use_is_one_sentence(inside: Path, line: str, message: str) -> None:
    result = gradveil_(line)
    assert result.exit_code == 2
    assert message in " ".join(result.output.split())
    assert not any(inside.iterdir())
