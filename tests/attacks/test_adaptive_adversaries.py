"""Who knows of a private head or of concealed samples sees more than who does not."""

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from gradveil import data
from gradveil.attacks import DLG, Attack, ExtraImage, InvertingGradients, SurrogateHead, attacks
from gradveil.client import Client, step
from gradveil.defenses import DCS2, SPN, Clipping, Defense, GaussianNoise, LaplacianNoise, Precode, Pruning
from gradveil.engine import Runtime, normalized
from gradveil.metrics import PSNR, align, arrange
from gradveil.models import build
from gradveil.streams import Streams
from gradveil.types import Batch, Knowledge, LocalTraining, Observation

VICTIMS = 3
KNOWN = Knowledge.DEFENSES | Knowledge.LABELS


def private(batch_size: int, *, seed: int = 23) -> Batch:
    """Draw digits; the last sample of each batch is the sensitive one."""
    batch = data.draw_victims(data.load("digits").test, victims=VICTIMS, batch_size=batch_size, seed=seed, start=None)
    return replace(batch, sensitive=(torch.arange(batch_size) == batch_size - 1).expand(VICTIMS, batch_size))


def see(
    batch: Batch, *defenses: Defense, knowledge: Knowledge = KNOWN, local: LocalTraining | None = None
) -> Observation:
    digits = data.load("digits")
    model = normalized(build("lenet", input_shape=(1, 8, 8), num_classes=10, seed=5), digits.mean, digits.std)
    client = Client(model=model, loss=F.cross_entropy, defenses=defenses, local=local or LocalTraining())
    return step(batch, client, streams=Streams(seed=2, purpose="client"), knowledge=knowledge).observation


def loss(attack: Attack, seen: Observation, batch: Batch) -> Tensor:
    """Return (V,), the PSNR of the sensitive sample, after the order inside the batch was matched."""
    guess = attack(seen, streams=Streams(seed=9), runtime=Runtime(chunk=VICTIMS)).inputs
    return PSNR()(arrange(guess, align(guess, batch.inputs)), batch.inputs)[:, -1]


@pytest.mark.slow  # its row of the contract is quick
def test_a_surrogate_head_sees_through_a_private_one() -> None:
    batch = private(1)
    seen = see(batch, SPN(alpha2=0.5))
    informed = loss(SurrogateHead(steps=100), seen, batch).median()
    assert informed > loss(InvertingGradients(steps=100), seen, batch).median() + 10
    assert informed > loss(DLG(steps=5), seen, batch).median() + 10


@pytest.mark.slow  # its row of the contract is quick
def test_an_extra_image_sees_through_concealed_samples() -> None:
    batch = private(2)
    seen = see(batch, DCS2(steps=60))
    informed = loss(ExtraImage(steps=200), seen, batch).median()
    assert informed > loss(InvertingGradients(steps=150), seen, batch).median() + 6
    assert informed > loss(DLG(steps=5), seen, batch).median() + 6


@pytest.mark.parametrize(("settings", "count"), [({}, 2), ({"concealed": 3}, 6), ({"fraction": 0.5}, 1)], ids=str)
def test_as_many_extra_images_are_looked_for_as_may_be_concealed(settings: dict[str, Any], count: int) -> None:
    seen = see(private(2), DCS2(steps=2, **settings))
    assert ExtraImage(steps=1)(seen, streams=Streams(seed=0)).details["extra"].shape[1] == count


def test_an_extra_image_comes_back_with_its_label_and_weight() -> None:
    seen = see(private(2), DCS2(steps=2))
    found = ExtraImage(steps=2, extra=3, restarts=2)(seen, streams=Streams(seed=0)).details
    assert {name: tuple(tensor.shape) for name, tensor in found.items()} == {
        "extra": (VICTIMS, 3, 1, 8, 8),
        "extra-labels": (VICTIMS, 3, 10),
        "extra-weight": (VICTIMS, 1),
    }
    torch.testing.assert_close(found["extra-labels"].sum(-1), torch.ones(VICTIMS, 3))


def test_both_take_what_else_they_know_into_account() -> None:
    batch = private(1)
    scaled = see(batch, SPN(bits=8), local=LocalTraining(lr=0.01, shares="difference"), knowledge=~Knowledge.NOTHING)
    plain = see(batch, SPN(bits=8))
    short = SurrogateHead(steps=20)
    first, second = (short(seen, streams=Streams(seed=0)).inputs for seen in (scaled, plain))
    torch.testing.assert_close(first, second, rtol=0, atol=0.05)
    for seen in (see(batch, SPN(bits=8), Pruning(fraction=0.9)), see(batch, SPN(bits=8), Precode(size=8))):
        assert bool(torch.isfinite(short(seen, streams=Streams(seed=0)).objective).all())
    unlabelled = see(private(3), SPN(bits=8), GaussianNoise(std=1e-5), knowledge=Knowledge.DEFENSES)
    assert short(unlabelled, streams=Streams(seed=0)).inputs.shape == (VICTIMS, 3, 1, 8, 8)


def test_known_clipping_and_noise_are_taken_into_account() -> None:
    batch, hidden = private(1, seed=81), SPN(alpha2=0.5)
    for other, gain in ((Clipping(norm=0.05), 5.0), (LaplacianNoise(scale=0.05), 0.5)):
        seen = see(batch, hidden, other)
        blind = replace(seen, defenses=(hidden,))
        first, second = (loss(SurrogateHead(steps=40), view, batch).mean() for view in (seen, blind))
        assert first > second + gain


def test_they_are_the_adversaries_that_their_defenses_name() -> None:
    assert isinstance(attacks.build(SPN.adversary.attack), SurrogateHead)
    assert isinstance(attacks.build(DCS2.adversary.attack), ExtraImage)
