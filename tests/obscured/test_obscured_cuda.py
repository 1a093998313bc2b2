"""Obscuring and decoding on a GPU."""

import dataclasses

import pytest
import torch

from gradveil.attacks._decode_magnitudes import solve_magnitudes
from gradveil.attacks._decode_regression import least_squares
from gradveil.data import Split, load
from gradveil.defenses import InstaHide, Loda, Mixup
from gradveil.engine import Precision, Runtime
from gradveil.models import build
from gradveil.models.training import PRESETS, Training, train
from gradveil.obscuring import objective, obscure_images
from gradveil.streams import Streams

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

DIGITS = load("digits")
IMAGES, POOL = DIGITS.train.inputs(range(24)), DIGITS.train.inputs(range(100, 140))


def test_captured_steps_obscure_as_those_on_a_cpu_do() -> None:
    defense, runtime = Loda(steps=40), Runtime(precision="float32", chunk=10)
    expected = obscure_images(IMAGES, defense, pool=POOL, runtime=runtime)
    found = obscure_images(IMAGES.cuda(), defense, pool=POOL.cuda(), runtime=runtime).cpu()
    assert float((found - expected).abs().mean()) < 2e-3


def test_mixed_precision_lowers_the_objective_too() -> None:
    defense, images = Loda(steps=60), IMAGES.cuda()
    features, c = defense.features(images), defense.descent.c
    start = obscure_images(images, dataclasses.replace(defense, steps=0), pool=POOL.cuda())
    ends = [
        obscure_images(images, defense, pool=POOL.cuda(), runtime=Runtime(precision=precision))
        for precision in ("float32", "bf16")
    ]
    before, exact, mixed = (objective(found, images, features, c=c) for found in (start, *ends))
    assert bool((mixed < before).all())
    assert float((before - mixed).mean()) > 0.9 * float((before - exact).mean())


def test_regression_is_exact_where_networks_may_use_tf32() -> None:
    generator = torch.Generator().manual_seed(5)
    weights = torch.rand(1, 300, 12, generator=generator).pow(4).cuda()
    images = torch.randn(1, 12, 200, generator=generator).cuda()
    mixtures = (weights.double() @ images.double()).float()
    with Runtime(precision="tf32").numerics():
        linear = least_squares(weights, mixtures)
        seen, streams = mixtures.unflatten(2, (2, 10, 10)), Streams(purpose="test").bind(1)
        found = solve_magnitudes(
            weights, seen, solver="alternating", steps=50, lr=0.01, streams=streams, runtime=Runtime()
        )
    assert float((linear - images).abs().max()) < 1e-4
    assert float((found.abs() - images.abs()).abs().max()) < 1e-2


@pytest.mark.parametrize(("dtype", "precision"), [(torch.float64, "float32"), (torch.float32, "bf16")], ids=str)
def test_a_replayed_training_equals_an_eager_one(
    dtype: torch.dtype, precision: Precision, monkeypatch: pytest.MonkeyPatch
) -> None:
    split = Split(DIGITS.train.images[:600], DIGITS.train.labels[:600])
    # Not in float32: there convolutions add in an order that may change, and training enlarges what that changes.
    model = build("convnet:width=8", input_shape=DIGITS.input_shape, num_classes=10).to(dtype)
    settings = Training(epochs=1, batch_size=60, lr=0.05, augment="crop-flip", precision=precision)
    replayed = train(model, split, training=settings, test=DIGITS.test, device="cuda")
    monkeypatch.setattr("gradveil.models._steps.capture", lambda step, state: None)
    eager, again = (train(model, split, training=settings, test=DIGITS.test, device="cuda") for _ in range(2))
    states = [made.network.state_dict() for made in (replayed, eager, again)]
    for name, expected in states[1].items():
        spread = float((states[2][name] - expected).abs().max())
        slack = 1e-9 if dtype == torch.float64 else 10 * spread + 1e-5
        assert float((states[0][name] - expected).abs().max()) <= slack, name
    assert [e.loss for e in replayed.history] == pytest.approx([e.loss for e in eager.history], rel=1e-3)


@pytest.mark.parametrize("defense", [Mixup(k=4, classes=10), InstaHide(k=4, classes=10, mean=(0.3,))], ids=str)
def test_training_under_mixtures_draws_them_on_the_device(defense: Mixup | InstaHide) -> None:
    split = Split(DIGITS.train.images[:600], DIGITS.train.labels[:600])
    model = build("convnet:width=8", input_shape=DIGITS.input_shape, num_classes=10)
    settings = dataclasses.replace(PRESETS["fast"], epochs=8, batch_size=60, lr=0.1, augment="none")
    found = train(model, split, training=settings, defenses=[defense], test=DIGITS.test, device="cuda")
    assert (found.accuracy or 0) > 0.3
