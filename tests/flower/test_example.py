import importlib
import os
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("flwr", reason="flwr is not installed; install the extra gradveil[flower] to test Flower")

from gradveil.federated import load_update, preflight
from gradveil.federated.example import write_example
from gradveil.flower import run_in_process
from gradveil.flower.launching import descendants, run_deployed, run_simulated

NEEDS_RAY = pytest.mark.skipif(find_spec("ray") is None, reason="ray is not installed; install gradveil[flower]")
CONFIG = {"rounds": 3, "clients": 4, "out": "results"}


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = tmp_path / "app"
    write_example(folder)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("UPDATES", str(tmp_path / "updates"))
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    for name in [name for name in sys.modules if name.partition(".")[0] == "federation"]:
        del sys.modules[name]


def test_the_example_trains_protected_and_what_it_records_passes_the_pre_flight(example: Path) -> None:
    client, server = (importlib.import_module(f"federation.{name}_app").app for name in ("client", "server"))
    run_in_process(server, client, clients=4, config=CONFIG)
    assert_all_took_part_and_recorded(example)


def assert_all_took_part_and_recorded(example: Path) -> None:
    """See that four clients trained for three rounds, and that what they recorded passes the pre-flight."""
    turnout = (example / "results" / "turnout.csv").read_text().splitlines()
    assert [row.split(",")[:4] for row in turnout[1:]] == [[str(number), "4", "4", "0"] for number in (1, 2, 3)]
    files = sorted((example / "updates").iterdir())
    assert len(files) == 12
    model = importlib.import_module("federation.task").make_model()
    for file in files:
        recorded = load_update(file)
        assert [check.reason for check in preflight(recorded, model) if check.outcome != "passed"] == []
        assert recorded.about.defenses == "clipping:norm=1 + gaussian-noise:std=0.001"
        recorded.about.local()  # everything that an attack needs is stated


def test_the_example_under_secure_aggregation_gives_a_protected_sum(example: Path) -> None:
    client, server = (importlib.import_module(f"federation.secure_{name}").app for name in ("client", "server"))
    run_in_process(server, client, clients=4, config={**CONFIG, "rounds": 1})
    assert_protected_sum(example)


def assert_protected_sum(example: Path) -> None:
    """See that the mean of the clients' clipped updates came out, with their noise and without their masks."""
    with np.load(example / "results" / "secure.npz") as arrays:
        final = [torch.from_numpy(arrays[name]) for name in arrays.files]
    moved = [torch.stack(parts).mean(0) for parts in zip(*(clipped_update(client) for client in range(4)), strict=True)]
    for found, start, update in zip(final, first_weights(), moved, strict=True):
        # The noise of four clients, of 1e-3 each, is in the mean; the masks are not.
        assert 1e-4 < float((found - (start - update)).abs().max()) < 3e-3
    assert max(float(update.abs().max()) for update in moved) > 6e-3


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("engine", [pytest.param(run_simulated, marks=NEEDS_RAY), run_deployed])
def test_the_example_runs_on_the_engines_of_flower(engine: Callable[..., str], example: Path) -> None:
    engine(example / "app", clients=4, config={"out": str(example / "results")}, timeout=800.0)
    assert_all_took_part_and_recorded(example)
    assert descendants(os.getpid()) == []


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("engine", [pytest.param(run_simulated, marks=NEEDS_RAY), run_deployed])
def test_the_example_under_secure_aggregation_runs_on_the_engines_of_flower(
    engine: Callable[..., str], example: Path
) -> None:
    project = example / "app" / "pyproject.toml"
    text = project.read_text()
    for part in ("server", "client"):
        text = text.replace(f"federation.{part}_app:app", f"federation.secure_{part}:app", 1)
    project.write_text(text)
    engine(example / "app", clients=4, config={"out": str(example / "results"), "rounds": 1}, timeout=800.0)
    assert_protected_sum(example)
    assert descendants(os.getpid()) == []


def first_weights() -> list[Tensor]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model: nn.Module = importlib.import_module("federation.task").make_model()
    return [tensor.clone() for tensor in model.state_dict().values()]


def clipped_update(client: int) -> list[Tensor]:
    """Train a client by itself, and clip what it would share to length 1."""
    task = importlib.import_module("federation.task")
    model, start = task.make_model(), first_weights()
    model.load_state_dict(dict(zip(model.state_dict(), start, strict=True)))
    task.train(model, *task.load_data(client, 4))
    update = [before - after for before, after in zip(start, model.state_dict().values(), strict=True)]
    length = float(torch.cat([tensor.flatten() for tensor in update]).norm())
    return [tensor / max(length, 1.0) for tensor in update]
