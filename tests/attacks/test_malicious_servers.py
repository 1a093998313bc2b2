"""Networks that a malicious server changes, and what it reads from the updates they bring."""

import copy
import os
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gradveil import data
from gradveil.attacks import ActiveAttack, Analytic, Imprint, TrapWeights, expected_singletons
from gradveil.attacks._active import put_before
from gradveil.attacks._bins import direction, quantiles
from gradveil.attacks._peeling import Views, peel
from gradveil.client import observe
from gradveil.defenses import GaussianNoise
from gradveil.engine import Runtime, normalized
from gradveil.errors import KnowledgeError, UnsupportedModelError
from gradveil.metrics import PSNR, align, arrange
from gradveil.models import build
from gradveil.streams import Streams
from gradveil.types import Auxiliary, Batch, Observation, Reconstruction

ROOT = Path(os.environ.get("GRADVEIL_DATA") or "/nowhere")
STREAMS = Streams(seed=0)
BATCH = 64


def images(count: int) -> Tensor:
    """Return CIFAR images where they are at hand, else smooth random ones of varying brightness."""
    if data.sources.get("cifar100").present(ROOT):
        return data.load("cifar100", ROOT).test.images[:count].float() / 255
    streams = Streams(seed=5, purpose="test").bind(1)
    coarse = streams.uniform("coarse", (count, 3, 4, 4))[0]
    bright = streams.uniform("bright", (count, 1, 1, 1))[0]
    return (F.interpolate(coarse, (16, 16), mode="bilinear") * 0.5 + bright * 0.5).clamp(0, 1)


@pytest.fixture(scope="module")
def pictures() -> Tensor:
    return images(4096 + BATCH)


def victim(pictures: Tensor, size: int = BATCH) -> Batch:
    labels = Streams(seed=6, purpose="test").bind(1).integers("labels", 10, (size,))
    return Batch(pictures[None, :size], labels)


def lenet(shape: torch.Size, *, activation: str = "relu") -> nn.Module:
    channels, height, width = shape
    model = build(f"lenet:activation={activation},init=default", input_shape=(channels, height, width), num_classes=10)
    return normalized(model, [0.5] * channels, [0.25] * channels)


def mlp(shape: torch.Size, width: int) -> nn.Module:
    channels, high, wide = shape
    return build(f"mlp:hidden={width}", input_shape=(channels, high, wide), num_classes=10)


def poisoned(attack: ActiveAttack, model: nn.Module, pictures: Tensor, size: int = BATCH) -> nn.Module:
    channels, height, width = pictures.shape[1:]
    public = Auxiliary(inputs=pictures[BATCH:])
    return attack.poison(model, input_shape=(size, channels, height, width), auxiliary=public, streams=STREAMS)


def scores(guess: Reconstruction, batch: Batch) -> Tensor:
    return PSNR()(arrange(guess.inputs, align(guess.inputs, batch.inputs)), batch.inputs)


@pytest.mark.parametrize(("bins", "least"), [(128, 33), (1000, 56)])
def test_imprint_finds_about_as_many_as_are_alone_in_their_bin(pictures: Tensor, bins: int, least: int) -> None:
    attack, batch = Imprint(bins=bins), victim(pictures)
    model = poisoned(attack, lenet(pictures.shape[1:]), pictures)
    guess = attack(observe(batch, model, F.cross_entropy), streams=STREAMS, runtime=Runtime(chunk=1))
    found = int((scores(guess, batch) > 40).sum())
    assert found >= least
    assert found == pytest.approx(expected_singletons(BATCH, bins), abs=7)


def test_several_views_of_the_same_bins_give_nearly_all_images_away(pictures: Tensor) -> None:
    attack, batch = Imprint(bins=128, views=3), victim(pictures)
    model = poisoned(attack, lenet(pictures.shape[1:]), pictures)
    guess = attack(observe(batch, model, F.cross_entropy), streams=STREAMS, runtime=Runtime(chunk=1))
    found = int((scores(guess, batch) > 40).sum())
    assert found >= 60 > 1.5 * expected_singletons(BATCH, 128)
    assert int(guess.details["taken out"]) >= found


def crowded(images: int) -> tuple[Tensor, Tensor, Tensor, Views]:
    """Make images (1, n, d), what lies in three bins of each of two views, and the views."""
    generator = torch.Generator().manual_seed(2)
    drawn = torch.randn(images, 6, generator=generator, dtype=torch.float64)
    directions, checks = torch.eye(6, dtype=torch.float64)[:2], torch.randn(8, 6, generator=generator).double()
    views = Views(directions, torch.tensor([[-9.0, -0.4, 0.4]] * 2, dtype=torch.float64), checks)
    shares = torch.randn(len(drawn), generator=generator, dtype=torch.float64)
    seen = torch.cat([drawn, (drawn @ checks.mT).relu()], 1)
    weight, bias = torch.zeros(1, 6, 14, dtype=torch.float64), torch.zeros(1, 6, dtype=torch.float64)
    for image, own, share in zip(drawn, seen, shares, strict=True):
        for view in range(2):
            row = 3 * view + int((image[view] > views.thresholds[view]).sum()) - 1
            weight[0, row] += share * own
            bias[0, row] += share
    return drawn, weight, bias, views


def test_peeling_takes_known_images_out_until_others_are_alone() -> None:
    drawn, weight, bias, views = crowded(4)
    alone = [sum(len(set(column.tolist())) == 4 for column in views.places(drawn[None])[0].unbind(1))]
    assert alone == [0]  # no view alone shows them all
    found, rest, left = peel(weight, bias, views, 4)
    torch.testing.assert_close(torch.cdist(drawn, found[0]).amin(1), torch.zeros(4).double(), rtol=0, atol=1e-6)
    assert float(rest.abs().max()) < 1e-9 > float(left.abs().max())


def test_peeling_takes_no_mean_for_an_image() -> None:
    drawn, weight, bias, views = crowded(12)
    found, _, _ = peel(weight, bias, views, 12)
    there = found[0][~found[0].isnan().any(1)]
    assert len(there) < 12
    assert float(torch.cdist(there, drawn).amin(1).max() if len(there) else 0) < 1e-6


@pytest.mark.parametrize("statistic", ["mean", "fourier", "random"])
def test_imprint_is_exact_with_one_sample_per_bin(pictures: Tensor, statistic: str) -> None:
    attack = Imprint(bins=4, statistic=statistic)  # type: ignore[arg-type]
    model = poisoned(attack, lenet(pictures.shape[1:]), pictures, size=4)
    block = model.get_submodule("imprint.bins")
    assert isinstance(block, nn.Linear)
    above = (block(normalize(pictures[:BATCH]).flatten(1)) > 0).sum(1)
    one_each = torch.stack([(above == number).nonzero()[0, 0] for number in (1, 2, 3, 4)])
    batch = Batch(pictures[one_each][None], torch.tensor([[3, 1, 4, 1]]))
    guess = attack(observe(batch, model, F.cross_entropy), streams=STREAMS, runtime=Runtime(chunk=1))
    assert scores(guess, batch).min() > 60
    assert float(guess.objective) == 0


def normalize(pixels: Tensor) -> Tensor:
    return (pixels - 0.5) / 0.25


def test_the_statistic_of_a_distribution_needs_no_auxiliary_images(pictures: Tensor) -> None:
    values = normalize(pictures).flatten(1).mean(1)
    attack = Imprint(bins=256, source="gaussian", center=float(values.mean()), scale=float(values.std()))
    batch, (channels, height, width) = victim(pictures, 16), pictures.shape[1:]
    shape = (16, channels, height, width)
    model = attack.poison(lenet(pictures.shape[1:]), input_shape=shape, auxiliary=None, streams=STREAMS)
    guess = attack(observe(batch, model, F.cross_entropy), streams=STREAMS, runtime=Runtime(chunk=1))
    assert int((scores(guess, batch) > 40).sum()) >= 11
    with pytest.raises(KnowledgeError, match="set source=gaussian"):
        Imprint().poison(model, input_shape=shape, auxiliary=None, streams=STREAMS)


def test_quantiles_cut_a_distribution_into_equal_parts() -> None:
    generator = torch.Generator().manual_seed(0)
    normal = torch.randn(200_000, generator=generator)
    uniform = torch.rand(200_000, generator=generator) - 0.5
    laplace = -uniform.sign() * torch.log1p(-2 * uniform.abs()) / 2**0.5
    for source, draws in (("gaussian", normal), ("laplace", laplace)):
        edges = quantiles(source, 8, center=2.0, scale=3.0)  # type: ignore[arg-type]
        counts = torch.bincount(torch.bucketize(2 + 3 * draws, edges), minlength=8)
        assert bool(((counts / len(draws) - 1 / 8).abs() < 0.005).all())
    assert float(laplace.std()) == pytest.approx(1, abs=0.02)


def test_every_statistic_is_linear_weights_of_the_image() -> None:
    streams = Streams(seed=0).bind(1)
    assert float(direction("mean", 12, mode=0, streams=streams).sum()) == pytest.approx(1)
    fourier = direction("fourier", 12, mode=3, streams=streams)
    assert float(fourier[0]) == pytest.approx(float(torch.cos(torch.tensor(torch.pi / 12 * 0.5 * 3))) * 4 / 12 * 3)
    drawn = direction("random", 400, mode=0, streams=streams)
    assert float(drawn.mean()) == pytest.approx(0, abs=1e-6)
    assert float(drawn.norm()) == pytest.approx(1, abs=0.01)


def test_expected_singletons_are_what_throwing_balls_gives() -> None:
    thrown = torch.randint(128, (4000, BATCH), generator=torch.Generator().manual_seed(0))
    counts = torch.zeros(4000, 128).scatter_add(1, thrown, torch.ones(4000, BATCH))
    assert expected_singletons(BATCH, 128) == pytest.approx(float((counts == 1).sum(1).double().mean()), abs=0.3)


def test_noise_hits_every_bin_and_the_strongest_are_kept(pictures: Tensor) -> None:
    batch, model = victim(pictures, 8), poisoned(Imprint(), lenet(pictures.shape[1:]), pictures, size=8)
    noisy = observe(batch, model, F.cross_entropy, defenses=[GaussianNoise(std=1e-4)])
    kept = {
        keep: scores(Imprint(keep=keep)(noisy, streams=STREAMS, runtime=Runtime(chunk=1)), batch)
        for keep in ("largest-bias", "largest-weight", "smallest-weight")
    }
    assert int((kept["largest-bias"] > 35).sum()) >= 5
    assert kept["largest-bias"].mean() >= kept["largest-weight"].mean() > kept["smallest-weight"].mean()


def test_what_is_missing_is_grey() -> None:
    pictures = torch.full((1, 4, 3, 8, 8), 0.3)  # all in one bin
    attack = Imprint(bins=8, source="gaussian")
    model = attack.poison(lenet(torch.Size((3, 8, 8))), input_shape=(4, 3, 8, 8), auxiliary=None, streams=STREAMS)
    seen = observe(Batch(pictures, torch.tensor([[0, 1, 2, 3]])), model, F.cross_entropy)
    guess = attack(seen, streams=STREAMS, runtime=Runtime(chunk=1))
    assert float(guess.objective) == pytest.approx(0.75)
    assert int((guess.inputs == 0.5).all((2, 3, 4)).sum()) == 3


@pytest.mark.parametrize("attack", [Imprint(bins=8), TrapWeights()])
def test_changes_a_copy_in_which_every_name_is_kept(attack: ActiveAttack, pictures: Tensor) -> None:
    model = mlp(pictures.shape[1:], 16)
    before = copy.deepcopy(model.state_dict())
    changed = poisoned(attack, model, pictures)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    names = [name for name, _ in changed.named_parameters()]
    assert [name for name in names if name in before] == list(before)
    assert attack.threat in "FG"
    assert attack.queries == 1
    again = poisoned(attack, model, pictures)
    assert all(torch.equal(a, b) for a, b in zip(changed.parameters(), again.parameters(), strict=True))


class Forked(nn.Module):
    """A network with a forward of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        flat = inputs.flatten(1)
        out: Tensor = self.first(flat) - self.second(flat)
        return out


def test_a_block_runs_first_in_any_network_and_survives_a_copy() -> None:
    model, block = Forked(), nn.Sequential(nn.Flatten(), nn.Linear(4, 4))
    standardized = normalized(model, [0.5], [0.5])
    for plain in (standardized, nn.Sequential(nn.Flatten(), nn.Linear(4, 3))):
        changed = copy.deepcopy(put_before(plain, "block", block))
        inputs = torch.arange(8.0).view(2, 1, 2, 2) / 8
        eaten = (inputs - 0.5) / 0.5 if plain is standardized else inputs
        after = model(block(eaten)) if plain is standardized else plain(block(inputs))
        torch.testing.assert_close(changed(inputs), after)
    with pytest.raises(UnsupportedModelError, match="'block' already"):
        put_before(changed, "block", block)


def test_imprint_says_that_the_network_is_not_its_own(pictures: Tensor) -> None:
    seen: Observation = observe(victim(pictures, 2), lenet(pictures.shape[1:]), F.cross_entropy)
    with pytest.raises(UnsupportedModelError, match=r"send out `poison\(model\)`"):
        Imprint()(seen, streams=STREAMS)


@pytest.mark.parametrize("standardized", [False, True])
def test_trap_weights_find_more_than_the_same_network_gives_by_chance(pictures: Tensor, standardized: bool) -> None:
    batch, model = victim(pictures, 24), mlp(pictures.shape[1:], 400)
    model = normalized(model, [0.5] * 3, [0.25] * 3) if standardized else model
    attack, found = TrapWeights(), {}
    for name, sent in (("trapped", poisoned(attack, model, pictures, size=24)), ("honest", model)):
        seen = observe(batch, sent, F.cross_entropy)
        guess = (attack if name == "trapped" else Analytic())(seen, streams=STREAMS, runtime=Runtime(chunk=1))
        found[name] = int((scores(guess, batch) > 60).sum())
    assert found["trapped"] >= 12
    assert found["trapped"] > found["honest"] + 4


def test_a_trap_is_half_negative_and_half_its_smaller_copy() -> None:
    model = mlp(torch.Size((1, 4, 4)), 5)
    changed = TrapWeights(scale=0.9).poison(model, input_shape=(8, 1, 4, 4), auxiliary=None, streams=STREAMS)
    weight = changed.get_parameter("hidden1.weight").detach()
    assert bool(changed.get_parameter("hidden1.bias").eq(0).all())
    for row in weight:
        negative, positive = row[row < 0].abs().sort().values, row[row > 0].sort().values
        torch.testing.assert_close(0.9 * negative, positive)
    assert len({tuple((row < 0).tolist()) for row in weight}) == 5


def test_traps_need_a_linear_layer_at_the_image(pictures: Tensor) -> None:
    with pytest.raises(UnsupportedModelError, match="eats the flattened image"):
        poisoned(TrapWeights(), lenet(pictures.shape[1:]), pictures)
