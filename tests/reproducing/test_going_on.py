"""A table that was run in part is completed from what was kept, without running that again."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_artefact import tiny_artefact

from gradveil.errors import SpecError
from gradveil.grid import Settings
from gradveil.reproducing import Artefact, Means, _federations, keep, reproduce, take_kept

MEANS = Means(settings=Settings(device=torch.device("cpu"), redact=True))
SPEC = """
[smoke]
clients = 2
[small]
clients = 3
[paper]
clients = 4
[shared.federation]
model = "mlp:hidden=8"
clients = "$clients"
rounds = 1
[parts.runs]
kind = "federation"
[parts.runs.federation]
defenses = ["none", "sign"]
[[values]]
part = "runs"
column = "accuracy"
take = "accuracy"
rows = { first = "none", second = "sign" }
"""


@pytest.fixture
def artefact(tmp_path: Path) -> Artefact:
    """Return an experiment with the federations of two defenses."""
    return tiny_artefact(tmp_path, SPEC)


@pytest.fixture
def half(artefact: Artefact, tmp_path: Path) -> Artefact:
    """Return it with the first of its two federations kept."""
    reproduce(artefact, "small", tmp_path / "run", means=MEANS)
    second = next(file for file in (tmp_path / "run" / "runs").glob("*/federation.json") if "sign" in file.parent.name)
    second.unlink()
    keep(artefact, "small", tmp_path / "run")
    return artefact


def test_what_was_kept_is_not_run_again(half: Artefact, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran, federate = [], _federations._federate

    def counted(spec: dict[str, Any], defenses: str, *rest: Any) -> _federations.FederationRecord:
        ran.append(defenses)
        return federate(spec, defenses, *rest)

    monkeypatch.setattr(_federations, "_federate", counted)
    assert half.missing() == 1
    assert take_kept(half, "small", tmp_path / "other") == 1
    reproduce(half, "small", tmp_path / "other", means=MEANS)
    assert ran == ["sign"]
    keep(half, "small", tmp_path / "other")
    assert half.missing() == 0


def test_own_records_stay(half: Artefact, tmp_path: Path) -> None:
    own = next((tmp_path / "run" / "runs").glob("*/federation.json"))
    own.write_text("mine")
    assert take_kept(half, "small", tmp_path / "run") == 0
    assert own.read_text() == "mine"


def test_only_what_is_kept_in_that_size_can_be_gone_on_from(half: Artefact, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="a small result of tiny is kept, so there is no paper one"):
        take_kept(half, "paper", tmp_path / "other")
    (half.folder / "result.json").unlink()
    with pytest.raises(SpecError, match="no result of tiny is kept"):
        take_kept(half, "small", tmp_path / "other")
    assert not (tmp_path / "other").exists()
