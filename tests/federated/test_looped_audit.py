"""Recorded updates of models that no map over victims takes, from the federation to the report."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from test_deployment import ABOUT, ONE_STEP
from tiny_federation import averaged, network, private, trained
from torch import Tensor, nn
from typer.testing import CliRunner

from gradveil import record
from gradveil.cli import app
from gradveil.federated import Federation, Probe, Sighting, audit_recorded, federate, recorded_from, save_update, vet
from gradveil.types import Knowledge, LocalTraining


class Branching(nn.Module):
    def forward(self, inputs: Tensor) -> Tensor:
        return inputs if float(inputs.detach().sum()) < 1e9 else -inputs


def make_branching() -> nn.Module:
    return nn.Sequential(*network().children(), Branching())


def make_dropping() -> nn.Module:
    return nn.Sequential(*network().children(), nn.Dropout(0.5))


def recorded_file(model: nn.Module, folder: Path, settings: Federation = ONE_STEP) -> Path:
    """Record the first update of a small federation."""
    seen: list[Sighting] = []
    settings = replace(settings, rounds=1)
    federate(model, private(), settings=settings, watch=seen.append, knowledge=Knowledge.LOCAL_TRAINING)
    save_update(recorded_from(seen[0], ABOUT), folder / "one.safetensors")
    return folder / "one.safetensors"


def test_a_recorded_branching_model_is_attacked_like_one_that_maps(tmp_path: Path) -> None:
    attack, guesses = "inverting-gradients:steps=10,signed=false", []
    for name, make in {"maps": network, "branches": make_branching}.items():
        file = recorded_file(make(), tmp_path / name)
        (made,) = audit_recorded([file], attack=attack, out=tmp_path / name / "run", model=make())
        assert made.guess is not None
        guesses.append(made.guess.inputs)
        remarks = record.read(tmp_path / name / "run" / "cells" / "one").outcome.remarks
        assert len(remarks) == (name == "branches")
    torch.testing.assert_close(guesses[1], guesses[0], rtol=0, atol=1e-6)
    assert "module 4 (Branching)" in remarks[0]
    assert "module 4 (Branching)" in (tmp_path / "branches" / "run" / "report.html").read_text()


def test_the_command_audits_such_a_file_and_says_once_why_it_is_slow(tmp_path: Path) -> None:
    file = recorded_file(make_branching(), tmp_path)
    command = ["audit", "--recorded", str(file), str(file), "--attack", "inverting-gradients:steps=2", "--quiet"]
    command += ["--model", "import:test_looped_audit:make_branching"]
    shown = CliRunner().invoke(app, [*command, "--out", str(tmp_path / "run")])
    assert shown.exit_code == 0, shown.output
    assert shown.stdout.count("note: the victims were attacked one after another: module 4 (Branching)") == 1
    told = CliRunner().invoke(app, [*command, "--json", "--out", str(tmp_path / "again")])
    assert ["one after another" in cell["remarks"][0] for cell in json.loads(told.stdout)["cells"]] == [True, True]


def test_the_command_finds_a_model_where_it_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = recorded_file(network(), tmp_path)
    (tmp_path / "not_installed.py").write_text("from tiny_federation import network as make\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [*sys.path])
    command = ["audit", "--recorded", str(file), "--attack", "inverting-gradients:steps=1", "--out", "run", "--quiet"]
    found = CliRunner().invoke(app, [*command, "--model", "import:not_installed:make"])
    assert found.exit_code == 0, found.output


def test_a_recorded_model_with_dropout_is_attacked_without_it(tmp_path: Path) -> None:
    file = recorded_file(make_dropping(), tmp_path, replace(ONE_STEP, mode="train"))
    attack = "inverting-gradients:steps=2"
    (made,) = audit_recorded([file], attack=attack, out=tmp_path / "run", model=make_dropping())
    assert made.record.status == "done"
    assert ["dropout" in remark for remark in made.record.outcome.remarks] == [True]


def test_an_attack_that_does_not_search_makes_no_remarks(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 3), Branching()).double()
    file = recorded_file(model, tmp_path)
    (made,) = audit_recorded([file], attack="analytic", out=tmp_path / "run", model=model)
    assert (made.record.status, made.record.outcome.remarks) == ("done", [])


def test_a_model_without_slope_fails_its_cell_in_one_sentence(tmp_path: Path) -> None:
    class Prototypes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.centers = nn.Parameter(torch.eye(3, dtype=torch.float64))

        def forward(self, inputs: Tensor) -> Tensor:
            return -torch.cdist(inputs, self.centers)

    model = nn.Sequential(*network().children(), Prototypes())
    (made,) = audit_recorded([recorded_file(model, tmp_path)], attack="dlg:steps=1", out=tmp_path / "run", model=model)
    assert made.record.status == "failed"
    assert "has no slope to follow" in made.record.error


def test_own_samples_vet_such_a_model_too() -> None:
    (split,) = private((6,))
    probe = Probe(inputs=split.inputs(dtype=torch.float64), labels=split.labels)
    assert vet(make_branching(), probe=probe) == vet(network(), probe=probe)


class Centering(nn.Module):
    """Subtracts a running mean of its own, which it writes in place."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros((), dtype=torch.float64))

    def forward(self, inputs: Tensor) -> Tensor:
        if self.training:
            self.mean.mul_(0.8).add_(inputs.detach().mean(), alpha=0.2)  # type: ignore[operator]
        return inputs - self.mean  # type: ignore[operator]


@pytest.mark.parametrize("last", [nn.Identity, Branching], ids=["stacked", "one by one"])
def test_statistics_that_a_model_writes_itself_move_as_in_a_literal_loop(last: type[nn.Module]) -> None:
    start = nn.Sequential(Centering(), *network().children(), last())
    clients = private((8, 8, 12))
    settings = Federation(rounds=2, batch_size=None, local_epochs=3, local=LocalTraining(lr=0.2))
    found = federate(start, clients, settings=settings).model.state_dict()
    model = start
    for _ in range(2):
        batches = [(split.inputs(dtype=torch.float64), split.labels) for split in clients]
        model.load_state_dict(averaged([trained(model, [own] * 3, lr=0.2) for own in batches], (8, 8, 12)))
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(found[name], tensor, rtol=0, atol=1e-12)
    assert float(found["0.mean"]) > 0.1
