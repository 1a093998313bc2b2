"""Recorded updates: attacked without the truth, alone or added up."""

import doctest
import json
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest
import torch
import torch.nn.functional as F
from tiny_federation import network, private
from torch import Tensor, nn
from typer.testing import CliRunner

from gradveil import record
from gradveil.cli import app
from gradveil.client import Client, step
from gradveil.engine import normalized
from gradveil.errors import RecordError, SpecError
from gradveil.federated import (
    About,
    Federation,
    Recorded,
    Sighting,
    aggregate,
    aggregating,
    audit_recorded,
    example,
    federate,
    importing,
    observing,
    recorded_from,
    save_update,
)
from gradveil.grid import claim
from gradveil.metrics import PSNR
from gradveil.models import build
from gradveil.spec import AuditSpec
from gradveil.streams import Streams
from gradveil.types import Batch, Knowledge, LocalTraining

ABOUT = About(loss="cross-entropy", defenses="")
ONE_STEP = Federation(rounds=2, batch_size=None, mode="eval", local=LocalTraining(lr=0.25))


def make_model() -> nn.Module:
    return network()


def recordings(folder: Path, settings: Federation = ONE_STEP, about: About = ABOUT) -> list[Path]:
    """Record a small federation."""
    files = []

    def keep(seen: Sighting) -> None:
        who = "-".join(map(str, seen.clients))
        files.append(folder / f"round-{seen.round}-client-{who}.safetensors")
        save_update(recorded_from(seen, about), files[-1])

    federate(network(), private(), settings=settings, watch=keep, knowledge=Knowledge.LOCAL_TRAINING)
    return files


def test_every_file_is_a_cell_of_a_deployment_case_without_truth(tmp_path: Path) -> None:
    files = recordings(tmp_path / "updates")
    made = audit_recorded(files, attack="inverting-gradients:steps=2", out=tmp_path / "run", model=make_model())
    assert [one.name for one in made] == [file.stem for file in files]
    for one in made:
        cell = tmp_path / "run" / "cells" / one.name
        read = record.read(cell)
        assert (read.status, read.threat.case, read.scores, read.labels) == ("done", "deployment", {}, [])
        assert set(record.read_images(cell, read)) == {"guess"}
        assert json.loads((cell / "preflight.json").read_text())["checks"]
    page = (tmp_path / "run" / "report.html").read_text()
    assert page.count("data:image/png") >= 2 * (8 + 8 + 12)  # every guess, though nobody has the private images


KNOWN = About(loss="cross-entropy", defenses="", model="mlp:hidden=8", mean=(0.5,), std=(0.5,))


def known_recordings(folder: Path, seeds: int = 0) -> list[Path]:
    """Record a federation of a model that GradVeil can build from the files."""
    files = []

    def keep(seen: Sighting) -> None:
        files.append(folder / f"round-{seen.round}-client-{seen.clients[0]}.safetensors")
        save_update(recorded_from(seen, KNOWN), files[-1])

    plain = build("mlp:hidden=8", input_shape=(1, 4, 4), num_classes=3, seed=seeds)
    settings = replace(ONE_STEP, rounds=1)
    federate(normalized(plain, (0.5,), (0.5,)), private(), settings=settings, watch=keep)
    return files


def test_the_same_folder_resumes_and_refuses_what_would_write_over_it(tmp_path: Path) -> None:
    files, out = known_recordings(tmp_path / "updates"), tmp_path / "run"
    first, last = files[0].stem, files[-1].stem
    audit_recorded(files, attack="inverting-gradients:steps=2", out=out)
    (out / "cells" / last / "record.json").unlink()
    kept = (out / "cells" / first / "record.json").read_bytes()

    again = audit_recorded(files, attack="inverting-gradients:steps=2", out=out)
    assert [one.guess is None for one in again] == [True] * (len(files) - 1) + [False]
    assert [one.record.status for one in again] == ["done"] * len(files)
    assert record.read_images(out / "cells" / first, record.read(out / "cells" / first))
    with pytest.raises(SpecError, match=f"{first} holds an audit with another attack"):
        audit_recorded(files, attack="inverting-gradients:steps=3", out=out)
    with pytest.raises(SpecError, match="with another seed; name a new folder"):
        audit_recorded(files, attack="inverting-gradients:steps=2", out=out, seed=1)
    with pytest.raises(SpecError, match="with another update"):
        audit_recorded(known_recordings(tmp_path / "other", 1), attack="inverting-gradients:steps=2", out=out)
    assert (out / "cells" / first / "record.json").read_bytes() == kept
    audit_recorded(files, attack="inverting-gradients:steps=2", out=out, redact=True)
    assert not list(out.rglob("*.npz"))


def test_recorded_and_simulated_updates_do_not_share_a_folder(tmp_path: Path) -> None:
    files = known_recordings(tmp_path / "updates")
    (tmp_path / "grid").mkdir()
    spec = AuditSpec(dataset="digits", victims=1, models=("mlp",), attacks=("dlg:steps=1",))
    claim(tmp_path / "grid", spec)
    with pytest.raises(SpecError, match="holds an audit of simulated clients"):
        audit_recorded(files, attack="analytic", out=tmp_path / "grid")
    audit_recorded(files, attack="analytic", out=tmp_path / "recorded")
    with pytest.raises(SpecError, match="holds an audit of recorded updates"):
        claim(tmp_path / "recorded", spec)


def dense() -> nn.Module:
    generator = torch.Generator().manual_seed(3)
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, 3)).double()
    for tensor in model.parameters():
        tensor.data.copy_(torch.randn(tensor.shape, generator=generator, dtype=torch.float64) / 4)
    return model


def test_a_recorded_single_image_is_recovered(tmp_path: Path) -> None:
    """The strength bound: a wrong layer, shape or model of the observation breaks it."""
    (split,) = private((1,), seed=21)
    local = LocalTraining(lr=0.1, shares="difference")
    client = Client(model=dense(), loss=F.cross_entropy, local=local)
    inputs = split.inputs(dtype=torch.float64)
    taken = step(Batch(inputs[None], split.labels[None]), client, streams=Streams(seed=0, purpose="client"))
    sent = {name: tensor[0] for name, tensor in zip(taken.observation.names, taken.observation.update, strict=True)}
    known = About(loss="cross-entropy", mode="eval", batch_size=1, num_classes=3, input_shape=(1, 4, 4))
    about = known.filled(About.of_local(local))
    recorded = Recorded(before=dict(dense().named_parameters()), buffers={}, update=sent, about=about)
    save_update(recorded, tmp_path / "one.safetensors")
    (made,) = audit_recorded([tmp_path / "one.safetensors"], attack="analytic", out=tmp_path / "run", model=dense())
    assert made.guess is not None
    assert float(PSNR()(made.guess.inputs.double(), inputs[None])) > 60


def test_a_step_is_read_as_its_gradient_exactly() -> None:
    clients = [split.inputs(dtype=torch.float64) for split in private((6,))]
    batch = Batch(clients[0][None], private((6,))[0].labels[None])
    plain = step(batch, Client(model=network(), loss=F.cross_entropy), streams=Streams(purpose="client"))
    reductions: tuple[Literal["mean", "sum"], ...] = ("mean", "sum")
    for reduction in reductions:
        local = LocalTraining(lr=0.05, shares="difference", reduction=reduction)
        taken = step(
            batch, Client(model=network(), loss=F.cross_entropy, local=local), streams=Streams(purpose="client")
        )
        update = dict(zip(taken.observation.names, (t[0] for t in taken.observation.update), strict=True))
        about = replace(About.of_local(local), batch_size=6)
        read, words = observing.as_gradient(Recorded(before={}, buffers={}, update=update, about=about))
        assert words == "the gradient of its one step"
        for name, wanted in zip(plain.observation.names, plain.observation.update, strict=True):
            torch.testing.assert_close(read.update[name], wanted[0])


def test_an_update_of_unknown_training_keeps_its_size() -> None:
    recorded = Recorded(before={}, buffers={}, update={"w": torch.ones(2)}, about=About(shares="difference", lr=0.1))
    read, words = observing.as_gradient(recorded)
    assert read is recorded
    assert "unknown factor" in words


def test_what_is_unknown_rules_attacks_out_and_the_cell_says_so(tmp_path: Path) -> None:
    weights = {name: tensor.detach() for name, tensor in network().named_parameters()}
    recorded = Recorded(before=weights, buffers={}, update=weights)
    save_update(recorded, tmp_path / "one.safetensors")
    (made,) = audit_recorded([tmp_path / "one.safetensors"], attack="dlg", out=tmp_path / "run")
    assert made.record.status == "failed"
    assert "does not say input_shape" in made.record.error
    assert set(made.ruled_out) >= {"dlg", "inverting-gradients"}
    known = About(input_shape=(1, 4, 4), num_classes=3, batch_size=1, mode="eval")
    (again,) = audit_recorded(
        [tmp_path / "one.safetensors"],
        attack="inverting-gradients:steps=1",
        out=tmp_path / "again",
        about=known,
        model=network(),
        loss=F.cross_entropy,
    )
    assert again.record.status == "done"
    assert "it needs defenses" in again.ruled_out["bayes-optimal"]


def test_stated_defenses_let_an_informed_adversary_in() -> None:
    def made(words: str | None) -> Recorded:
        return Recorded(before={}, buffers={}, update={}, about=About(defenses=words))

    assert observing.grantable(made("clipping:norm=1 + gaussian-noise:std=0.001")) is Knowledge.DEFENSES
    for words in (None, "", "our own secret sauce"):
        assert observing.grantable(made(words)) is Knowledge.NOTHING


def test_a_file_does_not_choose_what_is_imported(tmp_path: Path) -> None:
    about = About(
        model="import:os:getcwd", input_shape=(1, 4, 4), num_classes=3, batch_size=1, mode="eval", loss="cross-entropy"
    )
    recorded = Recorded(before={"w": torch.ones(1)}, buffers={}, update={"w": torch.ones(1)}, about=about)
    with pytest.raises(RecordError, match="is not imported for a file"):
        observing.to_observation(recorded)


def test_the_mean_of_recordings_is_what_an_observer_of_the_sum_sees(tmp_path: Path) -> None:
    sums: list[Sighting] = []
    watched = replace(ONE_STEP, view="aggregate")
    federate(network(), private(), settings=watched, watch=sums.append, knowledge=Knowledge.LOCAL_TRAINING)
    alone: list[Sighting] = []
    federate(network(), private(), settings=ONE_STEP, watch=alone.append, knowledge=Knowledge.LOCAL_TRAINING)
    whole = aggregate([recorded_from(one, ABOUT) for one in alone if one.round == 1])
    for name, tensor in zip(sums[0].observation.names, sums[0].observation.update, strict=True):
        torch.testing.assert_close(whole.update[name], tensor[0])
    assert whole.about.batch_size == sums[0].observation.input_shape[0] == 28
    assert whole.about.client is None


def test_rounds_are_added_up_and_attacked_together(tmp_path: Path) -> None:
    files = recordings(tmp_path / "updates")
    made = audit_recorded(
        files, attack="inverting-gradients:steps=1", out=tmp_path / "run", model=make_model(), together=True
    )
    assert [one.name for one in made] == ["round-1-of-3-clients", "round-2-of-3-clients"]
    assert made[0].guess is not None
    assert made[0].guess.inputs.shape[1] == 28


def test_updates_of_different_models_have_no_mean() -> None:
    def sent(**tensors: Tensor) -> Recorded:
        return Recorded(before=tensors, buffers={}, update=tensors)

    for other in (sent(w=torch.zeros(2)), sent(v=torch.ones(2)), sent(w=torch.ones(3))):
        with pytest.raises(RecordError, match="no mean"):
            aggregate([sent(w=torch.ones(2)), other])
    with pytest.raises(RecordError, match="at least 1"):
        aggregate([])
    with pytest.raises(SpecError, match="at least 1 file"):
        audit_recorded([], attack="dlg", out="nowhere")


def test_the_command_attacks_files_and_fails_where_one_could_not_be(tmp_path: Path) -> None:
    files = [str(file) for file in recordings(tmp_path / "updates")[:2]]
    flags = ["--attack", "inverting-gradients:steps=1", "--json"]
    model = ["--model", "import:test_deployment:make_model"]
    done = CliRunner().invoke(app, ["audit", "--recorded", *files, *flags, *model, "--out", str(tmp_path / "a")])
    assert done.exit_code == 0, done.output
    assert [cell["status"] for cell in json.loads(done.stdout)["cells"]] == ["done", "done"]
    failed = CliRunner().invoke(app, ["audit", "--recorded", *files, *flags, "--out", str(tmp_path / "b")])
    assert failed.exit_code == 1
    assert "which model" in json.loads(failed.stdout)["cells"][0]["error"]
    again = CliRunner().invoke(app, ["report", str(tmp_path / "a")])
    assert "undecided" in again.stdout
    assert "statistics over" not in again.stdout
    shown = CliRunner().invoke(
        app, ["audit", "--recorded", *files, *flags[:2], *model, "--quiet", "--out", str(tmp_path / "c")]
    )
    assert "report:" in shown.stdout


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--recorded", "a", "--defense", "none"], "--defense says how to simulate clients"),
        (["--recorded", "a", "--attack", "dlg", "--attack", "idlg"], "take one --attack, got 2"),
        (["a.safetensors"], "belong to --recorded FILE..."),
        (["--together"], "belong to --recorded FILE..."),
        (["--workers", "dask"], "workers must be ray, got 'dask'"),
    ],
)
def test_flags_that_do_not_fit_are_answered_in_one_sentence(flags: list[str], words: str, tmp_path: Path) -> None:
    found = CliRunner().invoke(app, ["audit", *flags, "--quiet", "--out", str(tmp_path / "run")])
    assert found.exit_code == 2
    assert words in " ".join(found.stderr.split())


def test_the_example_is_written_into_an_empty_folder_alone(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["init", "flower", str(tmp_path / "app")])
    assert done.exit_code == 0, done.output
    assert (tmp_path / "app" / "federation" / "client_app.py").is_file()
    again = CliRunner().invoke(app, ["init", "flower", str(tmp_path / "app")])
    assert again.exit_code == 2
    for file in (tmp_path / "app").rglob("*.py"):
        compile(file.read_text(), str(file), "exec")


@pytest.mark.parametrize("module", [aggregating, example, importing, observing], ids=lambda m: m.__name__)
def test_the_examples_run(module: object) -> None:
    failed, tried = doctest.testmod(module)  # type: ignore[arg-type]
    assert failed == 0
    assert tried > 0
