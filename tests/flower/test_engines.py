"""The same weights on every engine; the engines are processes of their own, on loopback, and none is left."""

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from torch import Tensor

pytest.importorskip("flwr", reason="flwr is not installed; install the extra gradveil[flower] to test Flower")

from safetensors.torch import load_file

from gradveil import data
from gradveil.federated import federate
from gradveil.federated.partition import partition
from gradveil.flower import Plan, client_app, run_in_process, server_app
from gradveil.flower.launching import (
    Certificates,
    Engine,
    LaunchError,
    descendants,
    free_port,
    run_deployed,
    run_simulated,
)

CLIENTS = 4
NEEDS_RAY = pytest.mark.skipif(find_spec("ray") is None, reason="ray is not installed; install gradveil[flower]")
PROJECT = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "federation"
version = "1.0.0"
description = "The ready apps"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "gradveil"

[tool.flwr.app.components]
serverapp = "federation.server_app:app"
clientapp = "federation.client_app:app"

[tool.flwr.app.config]
"""
CONFIG = {
    "model": "mlp:hidden=16",
    "data": "digits",
    "rounds": 3,
    "seed": 5,
    "client-seed": 5,
    "settings": "batch_size=32,local_steps=2",
    "clients": CLIENTS,
    "timeout": 200.0,
}
DEFENSES = ["none", "gaussian-noise:std=0.01", "spn", "dp-sgd:norm=1,noise_multiplier=0.5"]


def write_app(folder: Path) -> Path:
    values = "".join(f"{key} = {value!r}\n".replace("'", '"') for key, value in CONFIG.items())
    package = folder / "federation"
    package.mkdir(parents=True)
    (folder / "pyproject.toml").write_text(f'{PROJECT}{values}defenses = ""\nout = ""\n')
    (package / "__init__.py").write_text("")
    for name in ("client_app", "server_app"):
        (package / f"{name}.py").write_text(f"from gradveil.flower import {name}\n\napp = {name}()\n")
    return folder


def simulated_here(defenses: str) -> dict[str, Tensor]:
    """Return the weights of GradVeil's own simulation."""
    plan = Plan.read({**CONFIG, "defenses": defenses})
    train = data.load("digits").train
    clients = partition(train, "iid", clients=CLIENTS, seed=5).apply(train)
    return dict(
        federate(plan.client().model, clients, settings=plan.federation, defenses=plan.defenses).model.state_dict()
    )


def assert_close(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> None:
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        torch.testing.assert_close(found[name], tensor, rtol=0, atol=1e-5)


def test_one_process_gives_the_weights_of_the_local_simulation(tmp_path: Path) -> None:
    config = {**CONFIG, "defenses": "gaussian-noise:std=0.01", "out": str(tmp_path)}
    run_in_process(server_app(), client_app(), clients=CLIENTS, config=config)
    assert_close(load_file(tmp_path / "model.safetensors"), simulated_here("gaussian-noise:std=0.01"))


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("defenses", DEFENSES)
@pytest.mark.parametrize("engine", [pytest.param(run_simulated, marks=NEEDS_RAY), run_deployed])
def test_every_engine_of_flower_gives_the_weights_of_the_local_simulation(
    engine: Callable[..., str], defenses: str, tmp_path: Path
) -> None:
    words = "" if defenses == "none" else defenses
    app, out = write_app(tmp_path / "app"), tmp_path / "out"
    engine(app, clients=CLIENTS, config={"defenses": words, "out": str(out)}, timeout=800.0)
    assert_close(load_file(out / "model.safetensors"), simulated_here(words))
    assert [line.split(",")[1:3] for line in (out / "rounds.csv").read_text().splitlines()[1:]] == [["4", "0"]] * 3
    assert descendants(os.getpid()) == []


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_server_that_is_killed_goes_on_and_loses_no_finished_round(tmp_path: Path) -> None:
    app, out = write_app(tmp_path / "app"), tmp_path / "out"
    config = {"defenses": "gaussian-noise:std=0.01", "out": str(out)}
    turnout = out / "checkpoint" / "turnout.csv"
    with Engine.start() as engine:
        engine.open_link()
        (link,) = engine.running
        for number in range(CLIENTS):
            engine.open_node(number, CLIENTS)
        engine.begin(app, config)
        limit = time.monotonic() + 400
        while not finished(turnout) and time.monotonic() < limit:
            time.sleep(0.05)
        for pid in [link.pid, *descendants(link.pid)]:  # the SuperLink and the ServerApp that it started
            os.kill(pid, signal.SIGKILL)
    before = finished(turnout)
    assert before
    assert before[0] == "1"
    assert not (out / "model.safetensors").exists()

    run_deployed(app, clients=CLIENTS, config=config, timeout=800.0)
    assert finished(turnout) == ["1", "2", "3"]
    assert_close(load_file(out / "model.safetensors"), simulated_here("gaussian-noise:std=0.01"))
    assert descendants(os.getpid()) == []


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_run_that_fails_is_not_reported_as_success(tmp_path: Path) -> None:
    config = {"defenses": "gaussian-nose", "out": str(tmp_path / "out")}
    with pytest.raises(LaunchError, match=r"ended as finished:failed.*gaussian-nose"):
        run_deployed(write_app(tmp_path / "app"), clients=2, config=config, timeout=250.0)
    assert descendants(os.getpid()) == []


def test_a_simulation_without_ray_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(LaunchError, match=r"runs on Ray, which is not installed; install gradveil\[flower\]"):
        run_simulated(tmp_path, clients=2)


def make_certificates(folder: Path) -> Certificates:
    """Make an authority and a certificate for 127.0.0.1, by the commands of docs/federation.md."""
    signing = "x509 -req -in server.csr -CA ca.crt -CAkey ca.key -CAcreateserial -copy_extensions copy -out server.pem"
    for command in (
        "req -x509 -newkey rsa:3072 -noenc -days 365 -subj /CN=federation -keyout ca.key -out ca.crt",
        "req -newkey rsa:3072 -noenc -subj /CN=server -addext subjectAltName=IP:127.0.0.1 -keyout server.key "
        "-out server.csr",
        signing,
    ):
        subprocess.run(["openssl", *command.split()], cwd=folder, check=True, capture_output=True)
    return Certificates(authority=folder / "ca.crt", certificate=folder / "server.pem", key=folder / "server.key")


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed, so nobody makes certificates")
def test_a_deployment_under_tls_gives_the_same_weights_and_lets_nobody_in_without_it(tmp_path: Path) -> None:
    app, out = write_app(tmp_path / "app"), tmp_path / "out"
    config = {"defenses": "gaussian-noise:std=0.01", "out": str(out)}
    with Engine.start(make_certificates(tmp_path)) as engine:
        engine.open_link()
        with socket.create_connection(("127.0.0.1", engine.port), timeout=30) as plain:
            plain.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            assert not plain.recv(64).startswith(b"HTTP/1.1 2")
        for number in range(CLIENTS):
            engine.open_node(number, CLIENTS)
        engine.submit(app, config, 800.0)
    assert_close(load_file(out / "model.safetensors"), simulated_here("gaussian-noise:std=0.01"))
    assert descendants(os.getpid()) == []


def finished(turnout: Path) -> list[str]:
    """List the rounds that a server wrote down."""
    return [line.split(",")[0] for line in turnout.read_text().splitlines()[1:]] if turnout.exists() else []


def test_ports_are_free() -> None:
    assert free_port() != free_port()
