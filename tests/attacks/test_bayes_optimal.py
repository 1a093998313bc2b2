"""The informed adversary: likelihoods, masks, features and transformations of known defenses."""

import copy
import dataclasses
from collections.abc import Sequence

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gradveil.attacks import BayesOptimal, InvertingGradients
from gradveil.attacks._informed import Judge, entering, hidden_features
from gradveil.client import observe
from gradveil.defenses import (
    DPSGD,
    PPDL,
    Clipping,
    Defense,
    GaussianNoise,
    LaplacianNoise,
    LocalDP,
    Precode,
    Pruning,
    Quantization,
    Sign,
    Soteria,
    TransformPolicy,
)
from gradveil.engine import Runtime, matching
from gradveil.errors import KnowledgeError
from gradveil.metrics import PSNR
from gradveil.models import build
from gradveil.streams import Streams
from gradveil.types import Batch, Gradients, Knowledge, LocalTraining, Observation, Reconstruction

VICTIMS = 3
INFORMED = Knowledge.LABELS | Knowledge.DEFENSES


def private() -> Batch:
    streams = Streams(seed=311, purpose="test").bind(VICTIMS)
    coarse = streams.uniform("images", (1, 1, 4, 4))
    return Batch(coarse.repeat_interleave(2, 3).repeat_interleave(2, 4), streams.integers("labels", 10, (1,)))


def network() -> nn.Module:
    return build("lenet", input_shape=(1, 8, 8), num_classes=10, seed=17)


def seen(*defenses: Defense, model: nn.Module | None = None) -> Observation:
    return observe(private(), model or network(), F.cross_entropy, defenses=defenses, knowledge=INFORMED)


def attack(observation: Observation, *, steps: int = 80, tv: float = 1e-4) -> Reconstruction:
    informed = BayesOptimal(steps=steps, tv=tv)
    return informed(observation, streams=Streams(seed=0), runtime=Runtime(chunk=VICTIMS))


def blind_attack(observation: Observation, *, steps: int = 80) -> Reconstruction:
    blind = dataclasses.replace(observation, defenses=None)
    return InvertingGradients(steps=steps)(blind, streams=Streams(seed=0), runtime=Runtime(chunk=VICTIMS))


def psnr(guess: Tensor, truth: Tensor | None = None) -> float:
    return float(PSNR()(guess, private().inputs if truth is None else truth).mean())


@pytest.mark.parametrize(
    ("defenses", "gain"),
    [
        ([GaussianNoise(std=0.02)], 1.5),
        ([LaplacianNoise(scale=0.02)], 2.0),
        ([DPSGD(norm=1.0, noise_multiplier=0.005)], 1.5),
        ([GaussianNoise(std=0.01), Pruning(fraction=0.8)], 2.0),
        ([Pruning(fraction=0.9)], 10.0),
        ([PPDL(theta=0.2, scale=0.01)], 3.0),
        ([Sign()], 5.0),
        ([Quantization(levels=16)], 5.0),
        ([Soteria(fraction=0.6)], 15.0),
        ([Precode(size=32)], 5.0),
    ],
    ids=str,
)
def test_who_knows_the_defense_sees_more(defenses: Sequence[Defense], gain: float) -> None:
    observation = seen(*defenses)
    assert psnr(attack(observation).inputs) > psnr(blind_attack(observation).inputs) + gain


def test_undoes_a_known_transformation() -> None:
    observation = seen(TransformPolicy(policy="0", crop_and_flip=False))  # invert
    guess = attack(observation)
    assert guess.protected is not None
    assert psnr(guess.inputs) > psnr(blind_attack(observation).inputs) + 10
    assert psnr(guess.protected, 1 - private().inputs) > 20


def test_a_policy_protects_an_early_network_least() -> None:
    policy = TransformPolicy(policy="0", crop_and_flip=False)
    early, late = (psnr(attack(seen(policy, model=trained(steps))).inputs) for steps in (1, 200))
    assert early > late + 5


def trained(steps: int) -> nn.Module:
    streams, model = Streams(seed=312, purpose="test").bind(1), network()
    images, labels = streams.uniform("images", (32, 1, 8, 8))[0], streams.integers("labels", 10, (32,))[0]
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        F.cross_entropy(model(1 - images), labels).backward()
        optimizer.step()
    return model


def test_clipping_and_noise_compose_to_local_dp() -> None:
    parts, whole = seen(Clipping(norm=0.5), GaussianNoise(std=0.1)), seen(LocalDP(norm=0.5, noise_multiplier=0.2))
    update = tuple(tensor.double() for tensor in parts.update)
    trial = tuple(3 * tensor for tensor in update)
    streams = Streams(seed=0).bind(VICTIMS)
    both, one = (
        Judge.of(observation, update, scale=1.0, streams=streams).surprise(trial) for observation in (parts, whole)
    )
    torch.testing.assert_close(both, one)


def test_the_update_of_a_known_step_size_is_judged_in_its_own_size() -> None:
    noise, lr = GaussianNoise(std=1e-3), 0.1
    local, knowledge = LocalTraining(lr=lr, shares="difference"), INFORMED | Knowledge.LOCAL_TRAINING
    observation = observe(private(), network(), F.cross_entropy, local=local, defenses=[noise], knowledge=knowledge)
    trials = matching(dataclasses.replace(observation, defenses=None), precision="float32")
    streams = Streams(seed=0).bind(VICTIMS)
    judge = Judge.of(observation, trials.target, scale=trials.scale, streams=streams)
    clean = tuple(lr * tensor for tensor in seen().update)
    expected = -noise.log_likelihood(observation.update, clean)
    truth = trials.gradients(private().inputs, private().labels)
    torch.testing.assert_close(judge.surprise(truth), expected, rtol=1e-3, atol=1.0)
    assert bool((judge.surprise(tuple(2 * tensor for tensor in truth)) > expected + 100).all())


def test_hides_the_bottleneck_and_what_follows_it_alone() -> None:
    observation = seen(Precode(size=8))
    visible = Precode(size=8).visible(observation.update)
    hidden = [name for name, mask in zip(observation.names, visible, strict=True) if not bool(mask.any())]
    expected = [f"precode.{name}" for name in ("encoder.weight", "encoder.bias", "decoder.weight", "decoder.bias")]
    assert hidden == [*expected, "fc.weight", "fc.bias"]
    assert all(bool(mask.all()) for mask in Precode(size=9).visible(observation.update))


def test_reads_what_entered_the_bottleneck_exactly() -> None:
    observation = in_float64(seen(Precode(size=8)))
    judge = Judge.of(observation, observation.update, scale=1.0, streams=Streams(seed=0).bind(VICTIMS))
    distance = hidden_features(observation, judge)
    assert distance is not None
    truth = private().inputs.double()
    assert float(distance(truth).detach().max()) < 1e-10  # the update was computed in single precision
    assert float(distance(truth.roll(1, 0)).detach().min()) > 1e-4


def test_features_of_stacked_networks_are_those_of_each_alone() -> None:
    observation, images = in_float64(seen()), private().inputs.double()
    together = entering(observation, images, "fc")
    stacked = {name: tensor.expand(VICTIMS, *tensor.shape) for name, tensor in observation.model.named_parameters()}
    torch.testing.assert_close(entering(dataclasses.replace(observation, parameters=stacked), images, "fc"), together)
    alone = [observation.model[:-1](images[victim]) for victim in range(VICTIMS)]  # type: ignore[index]
    torch.testing.assert_close(together, torch.stack(alone))


def test_needs_to_know_the_defenses() -> None:
    observation = observe(private(), network(), F.cross_entropy, knowledge=Knowledge.LABELS)
    with pytest.raises(KnowledgeError, match="BayesOptimal needs defenses"):
        attack(observation)


def some_updates(count: int) -> Gradients:
    streams = Streams(seed=313, purpose="test").bind(1)
    like = torch.zeros((), dtype=torch.float64)
    return (streams.normal("update", (3, 4), like=like).expand(count, 3, 4),)


def test_the_likelihood_of_a_rounding_is_its_frequency() -> None:
    defense, (clean,) = Quantization(levels=2), some_updates(20000)
    shared = defense.apply((clean[..., :2],), streams=Streams(seed=1, purpose="client").bind(20000))[0]
    patterns, counts = shared.unique(dim=0, return_counts=True)
    frequent = counts > 200
    patterns, counts = patterns[frequent], counts[frequent]
    likelihood = defense.log_likelihood((patterns,), (clean[: len(patterns), :, :2],))
    frequency = counts / 20000
    assert len(counts) >= 4
    assert float((likelihood.exp() / frequency - 1).abs().max()) < 4 / 200**0.5


def test_wrong_signs_are_less_likely_and_scale_does_not_count() -> None:
    clean = some_updates(2)
    right = Sign(scale="one").apply(clean, streams=Streams(seed=1).bind(2))
    wrong = (torch.cat([-right[0][:, :1], right[0][:, 1:]], 1),)
    likelihood = Sign().log_likelihood(right, clean)
    assert bool((Sign().log_likelihood(wrong, clean) < likelihood - 10).all())
    torch.testing.assert_close(Sign().log_likelihood(right, (7 * clean[0],)), likelihood)


@pytest.mark.parametrize(
    "defense",
    [
        GaussianNoise(std=0.0),
        LaplacianNoise(scale=0.0),
        LocalDP(noise_multiplier=0.0),
        DPSGD(noise_multiplier=0.0),
        PPDL(),
    ],
    ids=repr,
)
def test_without_noise_there_is_no_likelihood(defense: Defense) -> None:
    with pytest.raises(NotImplementedError, match="no density"):
        defense.log_likelihood(some_updates(2), some_updates(2))


def in_float64(observation: Observation) -> Observation:
    update = tuple(tensor.double() for tensor in observation.update)
    return dataclasses.replace(observation, model=copy.deepcopy(observation.model).double(), update=update)
