"""How many clients train at once follows from what one of them takes."""

import pytest
import torch
from torch import nn

from gradveil.data import Split
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


def test_large_networks_are_measured_and_those_that_refuse_an_image_say_so_themselves() -> None:
    assert usual_runtime(nn.Linear(1000, 1001), [split()], batch_size=4).chunk is None
    assert usual_runtime(nn.Linear(7, 10), [split()], batch_size=4).chunk == 10
