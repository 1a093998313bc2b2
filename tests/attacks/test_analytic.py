"""The linear layer at the input, and the noisy linear system of the SPN paper."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from gradveil.attacks import Analytic
from gradveil.client import Client, Step, observe, step
from gradveil.defenses import Defense, GaussianNoise, Pruning
from gradveil.engine import Runtime, normalized
from gradveil.errors import KnowledgeError, UnsupportedModelError
from gradveil.metrics import PSNR, align, arrange
from gradveil.models import build
from gradveil.streams import Streams
from gradveil.types import Batch, Knowledge

STREAMS = Streams(seed=0)


def private(size: int = 1, victims: int = 4) -> Batch:
    streams = Streams(seed=3, purpose="test").bind(victims)
    return Batch(streams.uniform("images", (size, 3, 6, 6)), streams.integers("labels", 10, (size,)))


def mlp(hidden: int = 32) -> nn.Module:
    return build(f"mlp:hidden={hidden}", input_shape=(3, 6, 6), num_classes=10, seed=0)


def perturbed(defense: Defense, knowledge: Knowledge = Knowledge.NOTHING) -> Step:
    client = Client(model=mlp(), loss=F.cross_entropy, defenses=(defense,))
    return step(private(), client, streams=Streams(seed=1, purpose="client"), knowledge=knowledge)


@pytest.mark.parametrize("rows", [1, 5, None])
@pytest.mark.parametrize(
    "model", [mlp(), normalized(mlp(), [0.5, 0.4, 0.3], [0.2, 0.3, 0.4])], ids=["plain", "normalized"]
)
def test_one_image_is_exact_and_so_is_its_label(rows: int | None, model: nn.Module) -> None:
    batch = private()
    guess = Analytic(rows=rows)(observe(batch, model, F.cross_entropy), streams=STREAMS)
    assert PSNR()(guess.inputs, batch.inputs).min() > 60
    assert guess.labels is not None
    assert torch.equal(guess.labels, batch.labels)
    assert guess.objective.max() < 1e-6


def test_finds_the_samples_of_a_batch_that_are_alone_in_a_row() -> None:
    batch = private(size=4)
    guess = Analytic()(observe(batch, mlp(200), F.cross_entropy), streams=STREAMS)
    scores = PSNR()(arrange(guess.inputs, align(guess.inputs, batch.inputs)), batch.inputs)
    assert (scores > 60).double().mean() >= 0.75
    assert guess.objective.min() > 0.1


@pytest.mark.parametrize("rows", [1, None])
@pytest.mark.parametrize("std", [1e-4, 1e-3, 1e-2])
def test_the_error_stays_below_the_certificate(rows: int | None, std: float) -> None:
    taken, attack = perturbed(GaussianNoise(std=std)), Analytic(rows=rows)
    guess = attack(taken.observation, streams=STREAMS, runtime=Runtime(chunk=4))
    certificate = attack.certificate(taken.observation, taken.evidence.clean)
    truth = taken.evidence.batch.inputs.flatten(1)
    error = (guess.inputs.flatten(1) - truth).norm(dim=1) / truth.norm(dim=1)
    assert bool(certificate.holds.all())
    assert bool((error <= certificate.bound).all())
    assert certificate.bound.max() < 100 * std if rows == 1 else certificate.bound.max() < 1


def test_one_row_has_the_condition_of_the_paper() -> None:
    taken = perturbed(GaussianNoise(std=1e-2))
    certificate = Analytic(rows=1).certificate(taken.observation, taken.evidence.clean)
    shared, clean = (update[1].double() for update in (taken.observation.update, taken.evidence.clean))
    row = shared.abs().argmax(1)
    for victim in range(4):
        inverse = 1 / clean[victim, row[victim]]
        expected = abs(inverse * (shared - clean)[victim, row[victim]])
        assert float(certificate.condition[victim]) == pytest.approx(float(expected))


def test_large_noise_breaks_the_condition_and_the_image() -> None:
    taken = perturbed(GaussianNoise(std=1.0))
    certificate = Analytic().certificate(taken.observation, taken.evidence.clean)
    assert not bool(certificate.holds.any())
    assert bool(certificate.bound.isinf().all())
    guess = Analytic()(taken.observation, streams=STREAMS)
    assert PSNR()(guess.inputs, taken.evidence.batch.inputs).max() < 12


def test_more_rows_average_noise_out() -> None:
    taken = perturbed(GaussianNoise(std=1e-3))
    one, all_rows = (Analytic(rows=rows)(taken.observation, streams=STREAMS).inputs for rows in (1, None))
    truth = taken.evidence.batch.inputs
    assert PSNR()(all_rows, truth).mean() > PSNR()(one, truth).mean() + 5


def test_who_knows_of_pruning_leaves_the_dropped_equations_out() -> None:
    scores = {}
    for knowledge in (Knowledge.NOTHING, Knowledge.DEFENSES):
        taken = perturbed(Pruning(fraction=0.6), knowledge)
        guess = Analytic()(taken.observation, streams=STREAMS)
        scores[knowledge] = float(PSNR()(guess.inputs, taken.evidence.batch.inputs).mean())
    assert scores[Knowledge.DEFENSES] > scores[Knowledge.NOTHING] + 5


@pytest.mark.parametrize(
    "model",
    [
        build("lenet", input_shape=(3, 6, 6), num_classes=10),
        nn.Sequential(nn.Flatten(), nn.Linear(108, 10, bias=False)),
        nn.Sequential(nn.Flatten(), nn.Tanh(), nn.Linear(108, 10)),
    ],
    ids=["convolution", "no bias", "not the image"],
)
def test_says_that_no_layer_eats_the_image(model: nn.Module) -> None:
    with pytest.raises(UnsupportedModelError, match="eats the flattened image"):
        Analytic()(observe(private(), model, F.cross_entropy), streams=STREAMS)


def test_says_that_the_layer_was_not_shared() -> None:
    model = mlp()
    model.get_parameter("hidden1.weight").requires_grad_(False)
    with pytest.raises(KnowledgeError, match=r"lacks hidden1\.weight"):
        Analytic()(observe(private(), model, F.cross_entropy), streams=STREAMS)


def test_reads_networks_that_differ_between_victims() -> None:
    seen = observe(private(), mlp(), F.cross_entropy)
    own = {
        name: seen.model.get_parameter(name).detach().expand(4, *seen.model.get_parameter(name).shape)
        for name in seen.names
    }
    plain, stacked = (Analytic()(o, streams=STREAMS).inputs for o in (seen, replace(seen, parameters=own)))
    assert torch.equal(plain, stacked)
