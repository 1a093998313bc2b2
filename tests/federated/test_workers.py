"""Cells over Ray's processes give the records of one process, and resume like them."""

import importlib.util
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gradveil import workers
from gradveil.cli import app
from gradveil.cli.audit import merge
from gradveil.errors import SpecError
from gradveil.grid import Settings, run_audit
from gradveil.record import Record
from gradveil.spec import AuditSpec, spec_from
from gradveil.workers import run_audit_on_ray


def tiny() -> AuditSpec:
    audit = {
        "dataset": "digits",
        "models": ["mlp:hidden=4"],
        "states": ["untrained", "trained"],
        "attacks": ["inverting-gradients:steps=3", "r-gap"],
        "defenses": ["none", "gaussian-noise:std=0.01"],
        "metrics": ["psnr"],
        "victims": 2,
        "adaptive": False,
        "decoys": 8,
    }
    return spec_from({"audit": audit, "training": {"epochs": 1}})


def test_without_ray_the_reason_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SpecError, match=r"need the package ray, which is not installed; install `gradveil\[flower\]`"):
        run_audit_on_ray(tiny(), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def outcome(record: Record) -> tuple[object, ...]:
    scores = {name: found.private for name, found in record.scores.items()}
    return record.title, record.status, record.error, scores, record.outcome.objective, record.network.accuracy


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_ray_gives_the_records_of_one_process_and_resumes(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="ray is not installed; install the extra gradveil[flower]")
    here, there = run_audit(tiny(), tmp_path / "here"), run_audit_on_ray(tiny(), tmp_path / "there")
    assert len(there) == 8
    assert [outcome(record) for record in there] == [outcome(record) for record in here]
    assert {record.status for record in there} == {"done", "failed"}  # r-gap does not take this network
    assert len(list((tmp_path / "there" / "models").glob("*.safetensors"))) == 1

    files = {path: path.stat().st_mtime_ns for path in (tmp_path / "there" / "cells").glob("*/record.json")}
    again = tmp_path / "there" / "cells" / tiny().cells()[0].name / "record.json"
    again.unlink()
    seen: list[tuple[int, int]] = []
    settings = Settings(progress=lambda task, done, total: seen.append((done, total)))
    resumed = run_audit_on_ray(tiny(), tmp_path / "there", settings=settings)
    assert [outcome(record) for record in resumed] == [outcome(record) for record in here]
    failed = sum(record.status == "failed" for record in here)
    assert seen == [(number, 1 + failed) for number in range(1, 2 + failed)]
    done = {cell.name for cell, record in zip(tiny().cells(), here, strict=True) if record.status == "done"}
    kept = {path: time for path, time in files.items() if path.parent.name in done and path != again}
    assert kept
    assert all(path.stat().st_mtime_ns == time for path, time in kept.items())


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_command_runs_on_ray_and_a_dead_process_is_a_failed_cell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ray", reason="ray is not installed; install the extra gradveil[flower]")
    (tmp_path / "spec.toml").write_text(tiny().to_toml())
    flags = ["--attack", "inverting-gradients:steps=1", "--state", "untrained", "--quiet", "--workers", "ray"]
    shown = CliRunner().invoke(
        app, ["audit", "--spec", str(tmp_path / "spec.toml"), *flags, "--out", str(tmp_path / "a")]
    )
    assert shown.exit_code == 0, shown.output
    assert (tmp_path / "a" / "report.html").is_file()

    monkeypatch.setattr(workers, "_run_there", lambda packed, cell, ready: os._exit(9))
    lone = merge(tiny(), {"states": ["untrained"], "attacks": ["r-gap"], "defenses": ["none"]}, epochs=None)
    (first,) = run_audit_on_ray(lone, tmp_path / "b")
    assert first.status == "failed"
    assert "its process ended" in first.error
