"""Exact inversion of batches, and the algebra it rests on against the true factors."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from gradveil.attacks import SPEAR
from gradveil.attacks._input_layer import InputLayer
from gradveil.attacks._sparse_factors import LowRank, invert, pick, refine, zeros
from gradveil.client import observe
from gradveil.defenses import GaussianNoise
from gradveil.engine import Runtime, normalized
from gradveil.errors import UnsupportedModelError
from gradveil.metrics import PSNR, align, arrange
from gradveil.models import build
from gradveil.streams import Streams
from gradveil.types import Batch, Observation

SHAPE, VICTIMS = (3, 6, 6), 10


def private(size: int) -> Batch:
    streams = Streams(seed=3, purpose="test").bind(VICTIMS)
    return Batch(streams.uniform("images", (size, *SHAPE)), streams.integers("labels", 10, (size,)))


def see(batch: Batch, *, width: int = 200, standardized: bool = False, noise: float = 0.0) -> Observation:
    model = build(f"mlp:hidden={width}", input_shape=SHAPE, num_classes=10, seed=1)
    model = normalized(model, [0.5] * 3, [0.25] * 3) if standardized else model
    return observe(batch, model, F.cross_entropy, defenses=[GaussianNoise(std=noise)])


def worst(guess: Tensor, truth: Tensor) -> Tensor:
    return PSNR()(arrange(guess, align(guess, truth)), truth).amin(1)


@pytest.mark.parametrize("standardized", [False, True])
def test_inverts_nine_of_ten_batches_of_eight_exactly(standardized: bool) -> None:
    batch = private(8)
    guess = SPEAR()(see(batch, standardized=standardized), streams=Streams(seed=0), runtime=Runtime(chunk=VICTIMS))
    assert int((worst(guess.inputs, batch.inputs) > 60).sum()) >= 9
    assert guess.objective.median() < 0.01
    assert guess.steps.max() <= 64


@pytest.mark.parametrize("size", [1, 2])
def test_small_batches_take_one_round(size: int) -> None:
    batch = private(size)
    guess = SPEAR()(see(batch, width=64), streams=Streams(seed=0), runtime=Runtime(chunk=VICTIMS))
    assert worst(guess.inputs, batch.inputs).min() > 60
    assert guess.steps.tolist() == [1] * VICTIMS


def test_the_objective_tells_failure_from_success() -> None:
    batch = private(4)
    clean, noisy = (
        SPEAR(rounds=2, draws=256)(see(batch, noise=noise), streams=Streams(seed=0), runtime=Runtime(chunk=VICTIMS))
        for noise in (0.0, 1e-2)
    )
    assert worst(noisy.inputs, batch.inputs).median() < 20
    assert noisy.objective.min() > 0.1
    assert clean.objective.max() < 0.02


def test_a_larger_tolerance_bears_more_noise() -> None:
    batch, solved = private(6), {}
    seen = see(batch, standardized=True, noise=1e-4)
    for tolerance in (1e-5, 1e-3):
        attack = SPEAR(rounds=2, draws=1024, tolerance=tolerance)
        guess = attack(seen, streams=Streams(seed=0), runtime=Runtime(chunk=VICTIMS))
        solved[tolerance] = int((worst(guess.inputs, batch.inputs) > 30).sum())
    assert solved[1e-3] >= 8 > solved[1e-5]


def test_the_true_directions_are_the_sparsest_and_give_the_inputs() -> None:
    batch = private(5)
    seen = see(batch)
    layer = InputLayer.of(seen)
    factors = LowRank.of(*layer.gradients(seen.update), 5, tolerance=1e-4)
    inputs = batch.inputs.flatten(2).double()
    columns = factors.right @ torch.linalg.pinv(inputs)
    true = (columns / columns.norm(dim=1, keepdim=True)).transpose(1, 2)

    weight, bias = layer.weight.double(), layer.bias.double()
    silent = (inputs @ weight.T + bias <= 0) & factors.live[:, None]
    assert (zeros(factors, true) == silent).double().mean() > 0.999

    mixtures = F.normalize(true + true.roll(1, 1), dim=2)
    picked = pick(factors, torch.cat([mixtures, true], 1))
    assert torch.equal(picked.sort(1).values, true.sort(1).values)

    order = zeros(factors, true).sum(2).argsort(dim=1, descending=True, stable=True)
    shaken = picked + 1e-6 * torch.ones_like(picked)
    found = invert(factors, refine(factors, shaken), weight, bias)
    expected = inputs.gather(1, order[:, :, None].expand_as(inputs))
    torch.testing.assert_close(found.inputs, expected, atol=1e-3, rtol=0)
    assert found.agreement.min() > 0.97


def test_a_batch_beyond_the_width_is_refused() -> None:
    with pytest.raises(UnsupportedModelError, match="as wide as the batch of 4"):
        SPEAR()(see(private(4), width=3), streams=Streams(seed=0))


def test_two_equal_samples_are_a_failure_and_not_an_error() -> None:
    batch = private(2)
    twins = Batch(batch.inputs[:, :1].expand(-1, 2, -1, -1, -1).contiguous(), batch.labels)
    guess = SPEAR(rounds=2, draws=32)(see(twins, width=32), streams=Streams(seed=0), runtime=Runtime(chunk=VICTIMS))
    assert bool(torch.isfinite(guess.inputs).all())
    assert guess.objective.min() > 0.03
