import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import gradveil.cli
from gradveil import data
from gradveil.attacks import attacks
from gradveil.cli import app
from gradveil.cli.listing import QUESTIONS, card
from gradveil.report import load_run

AUDIT = "audit --model mlp:hidden=16 --victims 2 --attack inverting-gradients:steps=2 --metric psnr --device cpu"


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GRADVEIL_DATA", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))


def gradveil_(line: str) -> Any:
    """Run a command in this process; the class of what comes back moved between versions of typer."""
    return CliRunner().invoke(app, shlex.split(line))


def ok(line: str) -> Any:
    result = gradveil_(line)
    assert result.exit_code == 0, result.output
    return result


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cli") / "run"
    ok(f"{AUDIT} --defense none --defense pruning --out {folder} --quiet")
    return folder


# What works


def test_an_audit_writes_a_run_folder_and_says_where_the_report_is(tmp_path: Path) -> None:
    result = ok(f"{AUDIT} --out run")
    assert "report: run/report.html" in result.stdout
    assert "mlp" in result.stdout
    assert "statistics over all private images" in result.stdout
    assert result.stdout == ok("report run").stdout
    assert (tmp_path / "run" / "report.html").stat().st_size > 10_000
    ((_, made, images),) = load_run(tmp_path / "run")
    assert made.status == "done"
    assert set(images) == {"private", "protected", "guess"}


def test_without_a_name_the_run_folder_is_named_after_date_and_data(tmp_path: Path) -> None:
    ok(f"{AUDIT} --quiet")
    (folder,) = (tmp_path / "runs").iterdir()
    assert folder.name.endswith("-digits")
    assert (folder / "report.html").exists()


def test_a_spec_file_runs_and_flags_stand_over_it(tmp_path: Path) -> None:
    lines = ['models = "mlp:hidden=16"', "victims = 5", 'attacks = "inverting-gradients:steps=2"', 'metrics = "psnr"']
    (tmp_path / "audit.toml").write_text("\n".join(["[audit]", *lines]))
    ok("audit --spec audit.toml --victims 3 --seed 4 --out run --device cpu --quiet")
    ((_, made, _),) = load_run(tmp_path / "run")
    assert len(made.labels) == 3
    assert made.spec["audit"]["seed"] == 4


def test_the_same_folder_resumes_and_another_spec_is_refused(finished: Path) -> None:
    again = f"{AUDIT} --defense none --defense pruning --out {finished} --quiet"
    assert "report:" in ok(again).stdout
    refused = gradveil_(again + " --seed 5")
    assert refused.exit_code == 2
    assert "holds the run of another spec" in refused.output


def test_json_for_machines_is_all_that_is_printed(tmp_path: Path) -> None:
    def refuse(word: str) -> float:
        raise AssertionError(f"{word} is not JSON")

    result = ok(f"{AUDIT} --defense none --defense clipping --out run --json")
    facts = json.loads(result.stdout, parse_constant=refuse)
    assert facts["folder"] == "run"
    assert facts["report"] == "run/report.html"
    shown = [(cell["defenses"], cell["adaptive"]) for cell in facts["cells"]]
    assert shown == [("none", False), ("clipping", False), ("clipping", True)]
    assert all(isinstance(cell["psnr_mean"], float) for cell in facts["cells"])


def test_the_informed_adversary_stands_beside_the_standard_one_unless_told_otherwise(tmp_path: Path) -> None:
    result = ok(f"{AUDIT} --defense pruning --adversary bayes-optimal:steps=1 --out both --quiet")
    assert "standard and informed adversary" in result.stdout
    assert [made.attack for _, made, _ in load_run(tmp_path / "both")][1] == "bayes-optimal:steps=1"
    assert "Standard and informed adversary, side by side" in (tmp_path / "both" / "report.html").read_text()
    ok(f"{AUDIT} --defense pruning --no-adaptive --out one --quiet")
    ((_, made, _),) = load_run(tmp_path / "one")
    assert "defenses" in made.threat.knowledge


@pytest.mark.parametrize("attack", ["imprint", "trap-weights"])
def test_a_malicious_server_is_audited(attack: str, tmp_path: Path) -> None:
    line = f"audit --attack {attack} --model mlp:hidden=200 --victims 1 --batch-size 4 --metric psnr --device cpu"
    assert "LEAKS" in ok(f"{line} --out run --quiet").stdout
    ((_, made, _),) = load_run(tmp_path / "run")
    assert made.threat.server == "malicious"
    assert max(made.scores["psnr"].private[0]) > 60
    assert "malicious server: may change the model" in (tmp_path / "run" / "report.html").read_text()
    assert json.loads(ok(f"{line} --dry-run --json").stdout)[0]["attack_seconds"] >= 0


@pytest.mark.parametrize("flag", ["", "--json"])
def test_a_dry_run_shows_the_cells_and_writes_nothing(flag: str, tmp_path: Path) -> None:
    result = ok(f"{AUDIT} --model lenet --out run --dry-run {flag}")
    assert not list(tmp_path.iterdir())
    if flag:
        plan = json.loads(result.stdout)
        assert [cell["parameters"] for cell in plan] == [1210, 8026]
        assert all(cell["attack_seconds"] >= 0 for cell in plan)
    else:
        assert "8,026" in result.stdout


def test_a_redacted_audit_keeps_no_picture(tmp_path: Path) -> None:
    ok(f"{AUDIT} --out run --redact --quiet")
    ((_, made, images),) = load_run(tmp_path / "run")
    assert (made.images, images) == ("", {})
    assert not list((tmp_path / "run").rglob("*.npz"))
    assert "data:image/png" not in (tmp_path / "run" / "report.html").read_text()


def test_a_failed_cell_makes_the_command_fail_and_is_in_the_report(tmp_path: Path) -> None:
    result = gradveil_(f"{AUDIT} --state checkpoint:nowhere --state untrained --out run --quiet")
    assert result.exit_code == 1
    assert "there is no checkpoint at nowhere" in " ".join(result.stdout.split())
    assert [made.status for _, made, _ in load_run(tmp_path / "run")] == ["failed", "done"]


def test_a_report_is_built_again_from_records_alone(finished: Path) -> None:
    page = finished / "report.html"
    page.unlink()
    result = ok(f"report {finished}")
    assert f"report: {page}" in result.stdout
    shown = page.read_text()
    ok(f"report --redact {finished}")
    assert len(page.read_text()) < len(shown)
    assert "data:image/png" not in page.read_text()


def test_a_redacted_report_needs_no_images(tmp_path: Path) -> None:
    ok(f"{AUDIT} --out run --quiet")
    (images,) = (tmp_path / "run").rglob("*.npz")
    images.unlink()
    assert "report: run/report.html" in ok("report --redact run").stdout
    refused = gradveil_("report run")
    assert refused.exit_code == 1
    assert "missing or damaged" in refused.output


@pytest.mark.parametrize("kind", ["attacks", "defenses", "metrics", "models", "datasets"])
def test_everything_that_is_in_can_be_listed(kind: str) -> None:
    rows = json.loads(ok(f"list {kind} --json").stdout)
    assert rows
    assert all(row["name"] and row["what it does"] and isinstance(row["settings"], dict) for row in rows)
    assert rows[0]["name"][:8] in ok(f"list {kind}").stdout


def test_a_method_without_a_paper_keeps_its_settings_in_their_column() -> None:
    lines = ok("list defenses").stdout.splitlines()
    (row,) = (line for line in lines if "pruning " in line)
    assert [cell.strip() for cell in row.split("│")][-3:-1] == ["–", "fraction=0.9"]


@pytest.mark.parametrize("kind", ["attacks", "defenses"])
def test_every_attack_and_defense_has_a_card_that_can_be_shown(kind: str) -> None:
    for row in json.loads(ok(f"list {kind} --json").stdout):
        facts = json.loads(ok(f"list {kind} {row['name']} --json").stdout)
        assert all(len(facts.get(words, "")) > 5 for words in QUESTIONS.values()), row["name"]
        assert facts["what it does"].startswith(row["what it does"])
        assert facts["settings"].keys() == row["settings"].keys()


def test_a_card_says_what_the_settings_mean() -> None:
    shown = " ".join(ok("list attacks dlg").stdout.split())
    assert "Zhu" in shown
    assert "outer L-BFGS steps" in shown
    settings = card(attacks, "inverting-gradients")["settings"]
    assert settings["labels"].startswith("optimized: how unknown labels of a batch are found")
    assert settings["labels"].endswith("recovery.")


def test_data_sets_are_listed_and_explained() -> None:
    found = {row["name"]: row["present"] for row in json.loads(ok("data --json --data-dir nowhere").stdout)}
    assert found["digits"] is True
    assert found["cifar100"] is False
    assert "cifar100" in ok("data").stdout
    assert ok("data explain cifar10").stdout.strip() == data.explain("cifar10")
    assert "no download" in ok("data download digits").stdout


@pytest.mark.parametrize(
    "line",
    [
        "train net.safetensors --model mlp:hidden=4 --settings batch_size=512",
        "train generator net.safetensors --settings width=8,latent_size=4",
        "train extractor net.safetensors --dataset digits --model lenet --settings batch_size=512",
    ],
)
def test_training_does_not_write_over_another_network(line: str, tmp_path: Path) -> None:
    ok(f"{line},epochs=1 --device cpu")
    before = (tmp_path / "net.safetensors").read_bytes()
    refused = gradveil_(f"{line},epochs=2 --device cpu")
    assert refused.exit_code == 1
    assert "net.safetensors holds a network of another training; remove it" in " ".join(refused.stderr.split())
    assert (tmp_path / "net.safetensors").read_bytes() == before
    ok(f"{line},epochs=1 --device cpu")


def test_a_network_is_trained_kept_and_audited(tmp_path: Path) -> None:
    line = "train net/model.safetensors --model mlp:hidden=16 --settings epochs=2,batch_size=256 --device cpu"
    result = ok(f"{line} --defense gaussian-noise:std=1e-3")
    assert "after 2 epochs" in result.stdout
    assert sorted(file.name for file in (tmp_path / "net").iterdir()) == ["model.json", "model.safetensors"]
    said = json.loads((tmp_path / "net" / "model.json").read_text())
    assert (said["model"], said["dataset"], said["defenses"]) == ("mlp:hidden=16", "digits", "gaussian-noise:std=1e-3")
    assert (said["seed"], said["recipe"]["epochs"], len(said["history"])) == (0, 2, 2)
    assert said["history"][-1]["accuracy"] == said["accuracy"]
    assert said["seconds"] > 0
    assert said["device"].startswith("CPU")
    assert said["versions"]["torch"]
    ok(f"{AUDIT} --state checkpoint:net/model.safetensors --out run --quiet")
    ((_, made, _),) = load_run(tmp_path / "run")
    assert made.network.accuracy_of == "the checkpoint (gaussian-noise:std=1e-3); its training: model.json"
    assert made.network.training == said


def test_the_attack_is_timed(tmp_path: Path) -> None:
    line = "bench attack --model mlp:hidden=8 --victims 1 --victims 3 --iterations 2 --device cpu --out time.json"
    assert "plain loop" in ok(line).stdout
    content = json.loads((tmp_path / "time.json").read_text())
    assert [row["victims"] for row in content["timings"]] == [1, 1, 3]
    assert content["settings"]["model"] == "mlp:hidden=8"


def test_help_names_every_command() -> None:
    shown = ok("--help").stdout
    assert all(word in shown for word in ("audit", "report", "list", "train", "data", "bench"))


# What does not


SHORT = "audit --attack dlg:steps=1 --out run --quiet --device cpu"
MISTAKES = {
    f"{SHORT} --dataset digitz": "no data set called 'digitz'; did you mean digits?",
    f"{SHORT} --dataset digits:size=3": "no setting of data set digits called 'size'",
    f"{SHORT} --model lenett": "no model called 'lenett'; did you mean lenet",
    f"{SHORT} --model convnet:width=0": "width must be at least 1, got 0",
    f"{SHORT} --model lenet:widht=3": "no setting of model lenet called 'widht'",
    f"{SHORT} --state trainde": "no model state called 'trainde'; did you mean trained",
    f"{SHORT} --attack dgl": "no attack called 'dgl'; did you mean dlg",
    f"{SHORT} --attack dlg:steps=0": "steps must be at least 1, got 0",
    f"{SHORT} --attack dlg:steps=2.5": "steps must be of type int, got '2.5'",
    f"{SHORT} --attack dlg:step=2": "no setting of attack dlg called 'step'; did you mean steps",
    f"{SHORT} --defense prunning": "no defense called 'prunning'; did you mean pruning",
    f"{SHORT} --defense pruning:fraction=2": "fraction must be at least 0 and below 1",
    f"{SHORT} --defense pruning:fraction=half": "fraction must be of type float, got 'half'",
    f"{SHORT} --defense 'soteria + dp-sgd'": "one step can be computed in one way only, got soteria and dp-sgd",
    f"{SHORT} --auxiliary digits --knowledge labels": "auxiliary is for an adversary who has public material",
    f"{SHORT} --adversary dgl": "no attack called 'dgl'; did you mean dlg",
    "audit --model import:mine:network": "no model is imported here; give one of your own to gradveil.audit",
    "list attacks dgl": "no attack called 'dgl'; did you mean dlg",
    "train m.safetensors --defense soteria --defense dp-sgd": "one step can be computed in one way only",
    f"{SHORT} --metric psrn": "no metric called 'psrn'; did you mean psnr",
    f"{SHORT} --knowledge lables": "no knowledge called 'lables'; did you mean labels",
    f"{SHORT} --precision x": "precision must be one of float32, tf32, bf16, got 'x'",
    f"{SHORT} --mode fit": "mode must be one of eval, train, got 'fit'",
    f"{SHORT} --chunk 0": "chunk must be at least 1, got 0",
    f"{SHORT} --victims 0": "victims must be at least 1, got 0",
    f"{SHORT} --batch-size 0": "batch_size must be at least 1, got 0",
    f"{SHORT} --start -2": "start must be at least -1",
    f"{SHORT} --seed -1": "seed must be at least 0",
    f"{SHORT} --epochs 0": "epochs must be at least 1, got 0",
    f"{SHORT} --device abacus": "device must be cpu, cuda or cuda:N, got 'abacus'",
    f"{SHORT} --device meta": "device must be cpu, cuda or cuda:N, got 'meta'",
    f"{SHORT} --device cuda:99": "device cuda:99 was asked for, but torch finds",
    f"{SHORT} --spec nowhere.toml": "there is no spec file at nowhere.toml",
    f"{SHORT} --spec .": "cannot be read (Is a directory)",
    f"{SHORT} --spec bad.toml": "bad.toml is not valid TOML",
    f"{SHORT} --spec stranger.toml": "no setting of [audit] called 'victimes'; did you mean victims",
    "list attack": "no list called 'attack'; did you mean attacks",
    "data explain cifar": "no data set called 'cifar'; did you mean cifar10",
    "data download cifar": "no data set called 'cifar'; did you mean cifar10",
    "train . --settings epochs=1": "is a folder; name the file to write",
    "train m.safetensors --settings epochs=x": "epochs must be of type int, got 'x'",
    "train m.safetensors --settings epochs=0": "epochs must be at least 1, got 0",
    "train m.safetensors --settings epoch=1": "no setting of training called 'epoch'; did you mean epochs",
    "train m.safetensors --preset slow": "no training preset called 'slow'",
    "train m.safetensors --model mlp:hidden=x": "hidden must be of type int, got 'x'",
    "train m.safetensors --defense pruning:fraction=1": "fraction must be at least 0 and below 1",
    "train m.safetensors --device abacus": "device must be cpu, cuda or cuda:N",
    "bench attack --model lenett": "no model called 'lenett'",
    "bench attack --model convnet:width=0": "width must be at least 1",
    "bench attack --victims 0": "victims must be at least 1, got 0",
    "bench attack --precision x": "precision must be one of float32, tf32, bf16, got 'x'",
    "bench attack --device abacus": "device must be cpu, cuda or cuda:N",
}
FAILURES = {
    f"{SHORT} --dataset cifar100 --data-dir nowhere": "cifar100 needs the file nowhere/cifar-100-python/train",
    f"{SHORT} --dataset folder": "folder needs the path of your images",
    f"{SHORT} --dataset folder:nowhere": "nowhere is not a folder",
    f"{SHORT} --victims 9999": "9999 victims of 1 images need 9999 images",
    f"{SHORT} --start 9999": "start must be an index of the 359 images, got 9999",
    f"{SHORT} --out bad.toml": "bad.toml/spec.toml cannot be written",
    "report nowhere": "there is no finished cell in nowhere; name a run folder",
    "report bad.toml": "there is no finished cell in bad.toml",
    f"{SHORT} --extractor nowhere": "there is no checkpoint at nowhere",
    f"{SHORT} --generator nowhere": "there is no checkpoint at nowhere",
    "report damaged": "damaged/record.json is not a record of GradVeil",
    "train bad.toml/m.safetensors --settings epochs=1": "cannot be written",
    "train m.safetensors --dataset folder:nowhere": "nowhere is not a folder",
}


@pytest.mark.parametrize(
    ("line", "message", "code"),
    [*((line, text, 2) for line, text in MISTAKES.items()), *((line, text, 1) for line, text in FAILURES.items())],
)
def test_what_goes_wrong_costs_one_sentence(line: str, message: str, code: int, tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_text("[audit")
    (tmp_path / "stranger.toml").write_text("[audit]\nvictimes = 3")
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "record.json").write_text("{")
    before = sorted(tmp_path.rglob("*"))
    result = gradveil_(line)
    assert result.exit_code == code, result.output
    assert result.exception is None or isinstance(result.exception, SystemExit)
    (sentence,) = result.output.strip().splitlines()
    assert message in sentence
    assert sentence.startswith("wrong use: " if code == 2 else "failed: ")
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    "line", ["audti", "audit --victimes 3", "audit --victims x", "report", "bench attack --victims"]
)
def test_what_cannot_be_parsed_is_wrong_use(line: str) -> None:
    result = gradveil_(line)
    assert result.exit_code == 2
    assert isinstance(result.exception, SystemExit)


def test_a_file_system_that_refuses_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(*_: object, **__: object) -> list[Any]:
        raise PermissionError(13, "Permission denied", "run/spec.toml")

    monkeypatch.setattr("gradveil.cli.audit.run_audit", denied)
    result = gradveil_(f"{AUDIT} --out run --quiet")
    assert result.exit_code == 1
    assert result.output.strip() == "failed: run/spec.toml cannot be used (Permission denied); see that it is there"


def test_an_interruption_has_a_code_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> list[Any]:
        raise KeyboardInterrupt

    monkeypatch.setattr("gradveil.cli.audit.run_audit", interrupted)
    result = gradveil_(f"{AUDIT} --out run --quiet")
    assert result.exit_code == 130
    assert "goes on where it was" in result.output


def test_a_defect_is_one_sentence_unless_asked_for_more(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: object, **__: object) -> list[Any]:
        raise ZeroDivisionError("division by zero [sic]")

    monkeypatch.setattr("gradveil.cli.audit.run_audit", broken)
    monkeypatch.setattr(sys, "argv", ["gradveil", *shlex.split(f"{AUDIT} --out run --quiet")])
    with pytest.raises(SystemExit) as caught:
        gradveil.cli.main()
    assert caught.value.code == 1
    (sentence,) = capsys.readouterr().err.strip().splitlines()
    assert sentence.startswith("failed: ZeroDivisionError: division by zero [sic]; set GRADVEIL_DEBUG=1")
    monkeypatch.setenv("GRADVEIL_DEBUG", "1")
    with pytest.raises(ZeroDivisionError):
        gradveil.cli.main()


@pytest.mark.slow
def test_ctrl_c_leaves_a_folder_that_resumes(tmp_path: Path) -> None:
    line = AUDIT.replace("steps=2", "steps=3000") + " --out run --quiet"
    command = [sys.executable, "-m", "gradveil", *shlex.split(line)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    while process.poll() is None and not (tmp_path / "run" / "spec.toml").exists():
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    # A shell shows 130 for both: Python ends by the signal if it came inside of an `exec`, as imports have some.
    assert process.returncode in {130, -signal.SIGINT}
    assert said.startswith("interrupted")
    assert "Traceback" not in said
    assert not list((tmp_path / "run").rglob("record.json"))
    assert not list((tmp_path / "run").rglob(".*"))
    ok(line)
    assert len(load_run(tmp_path / "run")) == 1
