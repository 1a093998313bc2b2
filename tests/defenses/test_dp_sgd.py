"""DP-SGD against a literal loop, and its accountants."""

import sys
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from defended import SIZE, VICTIMS, flat, loop_gradient, network, private, protected, update_of
from torch import nn

from gradveil.defenses import DPSGD, SPN, CentralDP, GaussianNoise, LocalDP
from gradveil.errors import UnsupportedModelError
from gradveil.privacy import AccountingError, account
from gradveil.privacy.accounting import Accountant
from gradveil.types import LocalTraining

QUIET = DPSGD(norm=0.3, noise_multiplier=0.0)


def literal(norm: float) -> torch.Tensor:
    """Clip and average sample by sample, (V, n)."""
    batch, model = private(), network()
    rows = []
    for victim in range(VICTIMS):
        total = torch.zeros(())
        for sample in range(SIZE):
            gradient = loop_gradient(model, batch.inputs[victim, sample][None], batch.labels[victim, sample][None])
            vector = torch.cat([tensor.flatten() for tensor in gradient])
            total = total + vector * min(1.0, norm / float(vector.norm()))
        rows.append(total / SIZE)
    return torch.stack(rows)


def test_agrees_with_a_literal_loop() -> None:
    assert (flat(update_of(QUIET)) - literal(0.3)).norm() < 1e-12


@pytest.mark.parametrize("at_once", [1, 3])
def test_memory_does_not_change_the_result(at_once: int) -> None:
    torch.testing.assert_close(flat(update_of(replace(QUIET, at_once=at_once))), flat(update_of(QUIET)))


def test_noise_has_the_announced_size_and_is_divided_like_the_sum() -> None:
    noise = flat(update_of(DPSGD(norm=0.3, noise_multiplier=2.0))) - flat(update_of(QUIET))
    assert float(noise.std()) == pytest.approx(2.0 * 0.3 / SIZE, rel=0.05)


def test_divides_by_the_expected_batch_under_poisson_sampling() -> None:
    expected = flat(update_of(QUIET)) * SIZE / 10
    torch.testing.assert_close(flat(update_of(replace(QUIET, expected_batch=10))), expected)


def test_a_summed_loss_is_not_divided() -> None:
    summed = update_of(QUIET, local=LocalTraining(reduction="sum"))
    torch.testing.assert_close(flat(summed), flat(update_of(QUIET)) * SIZE)


def test_clips_every_local_step_at_its_own_weights() -> None:
    local = LocalTraining(lr=0.5, steps=2, shares="difference")
    quiet = DPSGD(norm=float("inf"), noise_multiplier=0.0)
    torch.testing.assert_close(flat(update_of(quiet, local=local)), flat(update_of(local=local)))


def test_works_with_a_private_head() -> None:
    off = DPSGD(norm=float("inf"), noise_multiplier=0.0)
    torch.testing.assert_close(flat(update_of(SPN(bits=8), off)), flat(update_of(SPN(bits=8))))


def test_refuses_batch_norm_in_train_mode_and_names_the_replacement() -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(32, 4)).double()
    protected([QUIET], model=model)
    with pytest.raises(UnsupportedModelError, match=r"'1'.*GroupNorm"):
        protected([QUIET], model=model, mode="train")


def test_an_epsilon_without_opacus_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opacus.accountants", None)
    with pytest.raises(AccountingError, match=r"gradveil\[dp\]"):
        account(DPSGD(), steps=10, delta=1e-5, sampling_rate=0.1)


def test_there_is_no_epsilon_for_plain_noise_or_no_noise() -> None:
    with pytest.raises(AccountingError, match="no epsilon"):
        account(GaussianNoise(std=1.0), steps=10, delta=1e-5)
    with pytest.raises(AccountingError, match="no noise"):
        account(DPSGD(noise_multiplier=0.0), steps=10, delta=1e-5)
    with pytest.raises(AccountingError, match="sampling rate of 1"):
        account(LocalDP(), steps=10, delta=1e-5, sampling_rate=0.1)
    with pytest.raises(AccountingError, match="delta"):
        account(DPSGD(), steps=10, delta=0.0, sampling_rate=0.1)


def test_client_level_epsilons_say_so() -> None:
    pytest.importorskip("opacus")
    central = account(CentralDP(noise_multiplier=1.1), steps=20, delta=1e-5, sampling_rate=0.1, accountant="rdp")
    sample = account(DPSGD(noise_multiplier=1.1), steps=20, delta=1e-5, sampling_rate=0.1, accountant="rdp")
    assert (central.level, sample.level) == ("client", "sample")
    assert central.epsilon == sample.epsilon
    # A replaced update is twice the norm away from the other one.
    local = account(LocalDP(noise_multiplier=2.2), steps=20, delta=1e-5, accountant="rdp")
    removed = account(CentralDP(noise_multiplier=1.1), steps=20, delta=1e-5, accountant="rdp")
    assert local.epsilon == removed.epsilon


@pytest.mark.parametrize("norm", [0.05, 0.3, 1.2, 100.0])
def test_clips_the_sum_that_opacus_clips(norm: float) -> None:
    opacus = pytest.importorskip("opacus")
    batch = private(victims=1, size=7)
    wrapped = opacus.GradSampleModule(network())
    inner = torch.optim.SGD(wrapped.parameters(), lr=1.0)
    optimizer = opacus.optimizers.DPOptimizer(inner, noise_multiplier=0.0, max_grad_norm=norm, expected_batch_size=7)
    F.cross_entropy(wrapped(batch.inputs[0]), batch.labels[0]).backward()
    optimizer.clip_and_accumulate()
    summed = torch.cat([parameter.summed_grad.flatten() for parameter in optimizer.params])
    ours = flat(update_of(replace(QUIET, norm=norm), batch=batch))[0] * 7
    assert float((ours - summed).norm() / summed.norm()) < 1e-5  # opacus adds 1e-6 to every norm


@pytest.mark.parametrize("accountant", ["rdp", "prv"])
@pytest.mark.parametrize(
    ("noise", "rate", "steps"), [(1.1, 0.02, 20), (0.7, 0.004, 500), (4.0, 0.25, 60), (2.0, 1.0, 5)]
)
def test_reports_the_epsilon_of_opacus(noise: float, rate: float, steps: int, accountant: Accountant) -> None:
    opacus = pytest.importorskip("opacus")
    judge = opacus.accountants.create_accountant(accountant)
    for _ in range(steps):
        judge.step(noise_multiplier=noise, sample_rate=rate)
    defense = DPSGD(noise_multiplier=noise)
    found = account(defense, steps=steps, delta=1e-5, sampling_rate=rate, accountant=accountant)
    assert found.epsilon == pytest.approx(judge.get_epsilon(delta=1e-5), rel=1e-9)
    assert (found.level, found.steps, found.sampling_rate, found.delta) == ("sample", steps, rate, 1e-5)
