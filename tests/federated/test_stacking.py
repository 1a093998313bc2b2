"""How many clients train at once follows from what one of them takes."""

import pytest
import torch
from torch import nn

from gradveil.data import Split
from gradveil.defenses import DCS2, DPSGD, Defense
from gradveil.engine._memory import peak
from gradveil.federated import Federation, _stacking, federate
from gradveil.federated._stacking import usual_runtime
from gradveil.models import build

CPU = torch.device("cpu")
HELD = 24


def split(*, size: int = 16) -> Split:
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(256, (HELD, 1, size, size), dtype=torch.uint8, generator=generator)
    return Split(pixels, torch.arange(HELD) % 10)


@pytest.mark.parametrize("architecture", ["convnet:width=4", "lenet"])
def test_a_client_takes_less_than_is_planned_for_it(architecture: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = build(architecture, input_shape=(1, 16, 16), num_classes=10)
    settings = Federation(rounds=1, batch_size=12, local_epochs=1)
    needed = peak(lambda: federate(model, [split()], settings=settings), CPU)
    monkeypatch.setattr(_stacking, "free", lambda device: 4 * needed)
    assert usual_runtime(model, [split()], batch_size=12).chunk in {1, 2}


@pytest.mark.parametrize(("batch_size", "chunk"), [(1, 10), (6, 4), (12, 2), (None, 1), (10**6, 1)])
def test_larger_batches_leave_room_for_fewer_clients(
    batch_size: int | None, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = nn.Sequential(nn.Conv2d(1, 1, 1), nn.Tanh(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    image = 4 * (256 + 256 + 1)
    monkeypatch.setattr(_stacking, "free", lambda device: 2 * (3 * image * 24 + 5 * 8))
    assert usual_runtime(model, [split()], batch_size=batch_size).chunk == chunk


@pytest.mark.parametrize("defense", [DPSGD(), DCS2(steps=2)])
def test_room_is_left_for_what_a_defense_holds_of_every_sample(
    defense: Defense, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(256, 400), nn.Tanh(), nn.Linear(400, 10))
    settings = Federation(rounds=1, batch_size=12, local_steps=1)
    needed = peak(lambda: federate(model, [split()], settings=settings, defenses=[defense]), CPU)
    monkeypatch.setattr(_stacking, "free", lambda device: 4 * needed)
    assert usual_runtime(model, [split()], batch_size=12, defenses=[defense]).chunk in {1, 2}
    assert usual_runtime(model, [split()], batch_size=12).chunk == 10


def test_large_networks_are_planned_for_too(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(256, 4000), nn.Tanh(), nn.Linear(4000, 10))
    monkeypatch.setattr(_stacking, "free", lambda device: 2 * 3 * 5 * 4 * 1_100_000)
    assert usual_runtime(model, [split()], batch_size=4).chunk == 3


def test_a_network_that_refuses_an_image_says_so_itself() -> None:
    assert usual_runtime(nn.Linear(7, 10), [split()], batch_size=4).chunk == 10
