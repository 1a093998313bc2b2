"""Numbers of rounds for other programs, and epsilon where one exists."""

import csv
import doctest
import importlib.util
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tiny_federation import network, normed, private

from gradveil.defenses import DPSGD, CentralDP, Clipping, Defense, GaussianNoise, LocalDP, Mixup
from gradveil.federated import Federation, _central, _privacy, federate
from gradveil.federated.round_log import append_row, write_tensorboard
from gradveil.privacy import account
from gradveil.storage import TensorFolder

SETTINGS = Federation(rounds=2, batch_size=4, mode="eval", delta=1e-4)


def test_rows_are_added_under_the_columns_of_the_first(tmp_path: Path) -> None:
    path = tmp_path / "rounds.csv"
    append_row(path, {"round": 1, "loss": 0.5, "reason": "a, b"})
    append_row(path, {"round": 2, "reason": "", "loss": None})
    assert list(csv.reader(path.read_text().splitlines())) == [
        ["round", "loss", "reason"],
        ["1", "0.5", "a, b"],
        ["2", "", ""],
    ]


def test_tensorboard_is_written_where_it_is_installed(tmp_path: Path) -> None:
    written = write_tensorboard(tmp_path, [(1, {"loss": 1.0, "epsilon": None}), (2, {"loss": 0.5, "epsilon": 1.0})])
    assert written == (importlib.util.find_spec("tensorboard") is not None)
    assert written == any(tmp_path.glob("events*"))


@pytest.mark.parametrize(
    ("settings", "held", "uses"),
    [
        (SETTINGS, 8, 1),
        (replace(SETTINGS, local_epochs=3), 8, 3),
        (replace(SETTINGS, local_steps=2), 8, 1),
        (replace(SETTINGS, local_steps=3), 8, 2),
        (replace(SETTINGS, batch_size=None, local_steps=5), 8, 5),
        (replace(SETTINGS, algorithm="fedsgd", local_epochs=4), 8, 1),
    ],
)
def test_a_sample_is_used_so_often_in_a_round(settings: Federation, held: int, uses: int) -> None:
    """Count the rows that a client's training takes."""
    assert _privacy.passes(settings, held) == uses


@pytest.mark.parametrize("defense", [GaussianNoise(std=1.0), DPSGD(noise_multiplier=0), LocalDP(noise_multiplier=0)])
def test_a_heuristic_has_no_epsilon(defense: Defense) -> None:
    history = federate(network(), private((8, 8)), settings=SETTINGS, defenses=[defense])
    assert [one.epsilon for one in history.rounds] == [None, None]


@pytest.mark.skipif(importlib.util.find_spec("opacus") is None, reason="opacus is not installed, so nobody accounts")
@pytest.mark.parametrize(
    "defense",
    [
        DPSGD(norm=1.0, noise_multiplier=2.0),
        LocalDP(norm=1.0, noise_multiplier=4.0),
        CentralDP(norm=1.0, noise_multiplier=2.0),
    ],
)
def test_epsilon_is_that_of_the_accountant_after_every_round(defense: Defense, tmp_path: Path) -> None:
    store = TensorFolder(tmp_path)
    settings = replace(SETTINGS, local_epochs=2)
    history = federate(network(), private((8, 8)), settings=settings, defenses=[defense], store=store)
    uses, accounted = 1, defense
    if isinstance(defense, DPSGD):  # a sample is used in both passes, and replaced: twice the norm
        uses, accounted = 2, replace(defense, noise_multiplier=defense.noise_multiplier / 2)
    expected = [account(accounted, steps=n * uses, delta=1e-4, accountant="rdp").epsilon for n in (1, 2)]
    assert [one.epsilon for one in history.rounds] == pytest.approx(expected)
    resumed = federate(network(), private((8, 8)), settings=settings, defenses=[defense], store=store, rounds=3)
    assert [one.epsilon for one in resumed.rounds][:2] == pytest.approx(expected)
    assert "epsilon" in history.to_csv().splitlines()[0]


@pytest.mark.skipif(importlib.util.find_spec("opacus") is None, reason="opacus is not installed, so nobody accounts")
def test_no_epsilon_where_running_statistics_leave_or_clipping_is_not_last() -> None:
    central = CentralDP(norm=1.0, noise_multiplier=2.0)
    train = replace(SETTINGS, rounds=1, mode="train")
    for model, settings, defenses, known in (
        (normed(), train, [central], False),
        (normed(), replace(train, share_buffers=False), [central], True),
        (network(), train, [central], True),
        (network(), train, [central, Clipping(norm=3.0)], False),
        (network(), train, [Clipping(norm=3.0), central], True),
        (network(), train, [Mixup(k=2, classes=4), DPSGD(noise_multiplier=2.0)], False),
        (network(), train, [DPSGD(noise_multiplier=2.0)], True),
    ):
        history = federate(model, private((8, 8)), settings=settings, defenses=defenses)
        assert (history.rounds[0].epsilon is not None) == known


def test_the_examples_run() -> None:
    assert doctest.testmod(_privacy) == (0, 2)
    assert doctest.testmod(_central) == (0, 1)
    assert torch.is_grad_enabled()
