"""Records know a feature extractor by its weights too: what lies at its path may change."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from click.testing import Result
from typer.testing import CliRunner

from gradveil import record
from gradveil.cli import app
from gradveil.errors import SpecError
from gradveil.grid import Settings, run_audit
from gradveil.models import build
from gradveil.obscuring import Extractor, TrainedExtractor, mark_of, save_extractor
from gradveil.reproducing import Means, _decodings, _trainings
from gradveil.reproducing.plans import Part
from gradveil.spec import build_defenses, spec_from

LODA = "loda:steps=1,extractor=e.safetensors"
SETTINGS = Settings(device=torch.device("cpu"), redact=True)
MEANS = Means(settings=SETTINGS)


def put(seed: int) -> None:
    """Put an extractor where the defense looks for it."""
    model = build("lenet", input_shape=(1, 8, 8), num_classes=10, seed=seed)
    about = {"model": "lenet", "input_shape": "[1, 8, 8]", "num_classes": "10", "mean": "[0]", "std": "[1]"}
    made = TrainedExtractor(extractor=Extractor("e", model, channels=1), about=about, accuracy=0.0, seconds=0.0)
    save_extractor(made, "e.safetensors")


@pytest.fixture(autouse=True)
def first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    put(0)
    return mark_of(build_defenses(LODA))


def test_a_mark_is_that_of_the_weights(first: str) -> None:
    assert len(first) == 32
    assert mark_of(build_defenses("loda:steps=7,extractor=./e.safetensors")) == first
    put(1)
    assert mark_of(build_defenses(LODA)) != first
    assert mark_of(build_defenses("mixup + loda:steps=1")) == ""


@pytest.mark.parametrize(
    ("line", "file"),
    [
        (f"obscure images out --count 2 --defense {LODA}", "obscured.json"),
        (f"decode out --defense {LODA} --decoder decode-loda:steps=1 --images 2 --rounds 1 --redact", "decoding.json"),
    ],
)
def test_a_command_leaves_the_record_of_another_extractor_alone(line: str, file: str, first: str) -> None:
    def run() -> Result:
        return CliRunner().invoke(app, [*line.split(), "--device", "cpu", "--quiet"])

    assert [run().exit_code, run().exit_code] == [0, 0]
    before = (Path("out") / file).read_bytes()
    assert json.loads(before)["extractor"] == first
    put(1)
    refused = run()
    assert (refused.exit_code, "another extractor" in " ".join(refused.stderr.split())) == (2, True)
    assert (Path("out") / file).read_bytes() == before


def test_an_audit_does_not_take_over_a_cell_of_another_extractor(first: str) -> None:
    table = {"models": "mlp:hidden=4", "states": "untrained", "victims": 1, "defenses": LODA, "adaptive": False}
    spec = spec_from({"audit": {**table, "attacks": "inverting-gradients:steps=1", "decoys": 5, "null_victims": 0}})
    (made,) = run_audit(spec, Path("run"), settings=SETTINGS)
    assert (made.status, made.extractor) == ("done", first)
    assert run_audit(spec, Path("run"), settings=SETTINGS) == [made]
    put(1)
    with pytest.raises(SpecError, match="another extractor"):
        run_audit(spec, Path("run"), settings=SETTINGS)
    (cell,) = Path("run/cells").iterdir()
    assert record.read(cell) == made


def test_an_interrupted_attack_does_not_go_on_under_another_extractor() -> None:
    table = {"models": "mlp:hidden=4", "states": "untrained", "victims": 1, "defenses": LODA, "adaptive": False}
    spec = spec_from({"audit": {**table, "attacks": "inverting-gradients:steps=60", "decoys": 5, "null_victims": 0}})

    def interrupt(name: str, done: int, total: int) -> None:
        if done > 55:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_audit(spec, Path("run"), settings=replace(SETTINGS, progress=interrupt, save_every=0.0))
    assert len([*Path("run").glob("cells/*/unfinished/*")]) == 1
    put(1)
    found, expected = (run_audit(spec, Path(folder), settings=SETTINGS)[0].scores for folder in ("run", "fresh"))
    assert found == expected
    assert not [*Path("run").glob("cells/*/unfinished")]


def test_a_reproduction_does_not_take_over_parts_of_another_extractor(first: str) -> None:
    network = {"model": "mlp:hidden=4", "defenses": [LODA]}
    training = Part(name="t", kind="training", tables={"network": network, "training": {"epochs": 1}})
    few = {"images": 2, "decoys": 5, "public_images": 5, "attack": "", "decoders": ["decode-loda:steps=1"]}
    decoding = Part(name="d", kind="decoding", tables={"decoding": {"defenses": [LODA], **few}})
    for _ in range(2):
        _trainings.run(training, Path("t"), MEANS)
        _decodings.run(decoding, Path("d"), MEANS)
    files = [*Path("t").glob("*/network.json"), *Path("d").glob("*/decoding.json")]
    assert [json.loads(file.read_text())["extractor"] for file in files] == [first] * 2
    put(1)
    with pytest.raises(SpecError, match="another extractor"):
        _trainings.run(training, Path("t"), MEANS)
    with pytest.raises(SpecError, match="another extractor"):
        _decodings.run(decoding, Path("d"), MEANS)
