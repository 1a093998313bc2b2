"""`gradveil federate` and `gradveil vet` on the command line."""

import csv
import doctest
import json
from pathlib import Path

import pytest
import torch
import typer
from malicious_models import honest, trapped
from PIL import Image
from typer.testing import CliRunner

from gradveil.cli import federate, vet
from gradveil.errors import DataError, SpecError
from gradveil.federated import load_update, preflight, to_observation
from gradveil.federated.settings import FederationError
from gradveil.models import checkpoints

app = typer.Typer()
app.command("federate")(federate.command)
app.command("vet")(vet.command)
TINY = ("--model", "mlp:hidden=8", "--clients", "4", "--quiet", "--device", "cpu")


def call(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, list(arguments))
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == code, result.output
    return result.stdout


def test_trains_records_and_resumes(tmp_path: Path) -> None:
    arguments = (
        "federate",
        *TINY,
        "--out",
        str(tmp_path),
        "--settings",
        "fraction=0.5,local_steps=2",
        "--record",
        "--json",
    )
    first = json.loads(call(*arguments, "--rounds", "2", "--partition", "dirichlet:1.0"))
    assert len(first) == 2
    again = json.loads(call(*arguments, "--rounds", "3", "--partition", "dirichlet:1.0"))
    assert again[:2] == first
    assert again[2]["accuracy"] > 0.1
    with (tmp_path / "rounds.csv").open() as file:
        assert [line["clients"] for line in csv.DictReader(file)] == ["2", "2", "2"]
    files = sorted((tmp_path / "updates").iterdir())
    assert len(files) == 6
    recorded = load_update(files[0])
    assert {check.outcome for check in preflight(recorded)} == {"passed"}
    assert to_observation(recorded).input_shape[1:] == (1, 8, 8)
    assert checkpoints.read_about(tmp_path / "model.safetensors")["model"] == "mlp:hidden=8"


def test_a_folder_of_other_settings_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    arguments = ("federate", *TINY, "--out", str(tmp_path), "--settings", "local_steps=1", "--rounds", "1")
    call(*arguments)
    before = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
    refused = CliRunner().invoke(app, [*arguments, "--partition", "pathological:2"])
    assert isinstance(refused.exception, FederationError)
    assert {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()} == before


def test_shows_a_table_and_takes_defenses(tmp_path: Path) -> None:
    shown = call(
        "federate", *TINY, "--rounds", "1", "--out", str(tmp_path), "--defense", "gaussian-noise:std=0.01",
        "--settings", "algorithm=decentralized,graph=complete,local_steps=2", "--local", "lr=0.1,momentum=0.9",
    )  # fmt: skip
    assert "accuracy" in shown
    assert not (tmp_path / "updates").exists()


def test_draws_who_holds_what_and_stops(tmp_path: Path) -> None:
    call("federate", "--partition", "pathological:2", "--clients", "6", "--show-partition", "--out", str(tmp_path))
    assert [file.name for file in tmp_path.iterdir()] == ["partition.png"]
    with Image.open(tmp_path / "partition.png") as picture:
        assert picture.size[1] >= 7 * 18


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--settings", "algorithm=fedprox"), "must be one of fedavg"),
        (("--settings", "fraction=2"), "fraction must be above 0"),
        (("--local", "steps=3"), "follows from the federation"),
        (("--local", "optimizer=adam", "--settings", "algorithm=fedsgd"), "so that optimizer of local training would"),
        (("--local", "weight_decay=0.1", "--settings", "algorithm=fedsgd"), "weight_decay of local training would"),
        (("--partition", "dirichlet:-1"), "alpha must be above 0"),
    ],
)
def test_wrong_use_is_one_sentence(arguments: tuple[str, ...], words: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=words):
        call("federate", *TINY, *arguments, "--out", str(tmp_path))


def test_natural_ids_that_are_not_there_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="does not say"):
        call("federate", *TINY, "--partition", "natural-id", "--out", str(tmp_path))


def saved(model: torch.nn.Module, path: Path) -> str:
    checkpoints.save(model, path, about={})
    return str(path)


def test_vetting_refuses_a_malicious_model(tmp_path: Path) -> None:
    bad, good = saved(trapped(), tmp_path / "bad.safetensors"), saved(honest(), tmp_path / "good.safetensors")
    assert "trap-weights in 1" in call("vet", bad, code=1)
    assert "malicious" in call("vet", bad, "--policy", "warn")
    assert "clean; fingerprint" in call("vet", good)
    found = json.loads(call("vet", bad, "--reference", good, "--json", code=1))
    assert found["verdict"] == "malicious"
    assert len(found["fingerprint"]) == 64


def test_examples_run() -> None:
    assert doctest.testmod(federate).failed == 0
