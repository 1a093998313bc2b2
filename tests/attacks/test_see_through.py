"""Batch-norm statistics, agreement between restarts, and noise: the parts of GradInversion."""

import dataclasses

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gradveil.attacks import SeeThroughGradients
from gradveil.attacks._consensus import consensus, register
from gradveil.attacks._statistics import BatchNorms, target_moments
from gradveil.client import observe
from gradveil.defenses import GaussianNoise
from gradveil.engine import Runtime
from gradveil.errors import KnowledgeError, UnsupportedModelError
from gradveil.metrics import PSNR, align, arrange
from gradveil.streams import Streams
from gradveil.types import Batch, Knowledge, Observation

VICTIMS, SIZE = 3, 4
SMALL = SeeThroughGradients(steps=100, objective="cosine", match=1.0, tv=1e-3, bn=0.1, first=1.0)


def private() -> Batch:
    coarse = Streams(seed=411, purpose="test").bind(VICTIMS).uniform("images", (SIZE, 1, 4, 4))
    images = coarse.repeat_interleave(2, 3).repeat_interleave(2, 4)
    return Batch(images, torch.arange(SIZE).expand(VICTIMS, SIZE).contiguous())


def network() -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(23)
        first = (nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.Sigmoid())
        second = (nn.Conv2d(8, 8, 3, stride=2, padding=1), nn.BatchNorm2d(8, momentum=0.3), nn.Sigmoid())
        return nn.Sequential(*first, *second, nn.Flatten(), nn.Linear(128, 10))


def seen(*, std: float = 0.0, knowledge: Knowledge = Knowledge.LABELS | Knowledge.BUFFERS) -> Observation:
    noise = [GaussianNoise(std=std)] if std else []
    return observe(private(), network(), F.cross_entropy, mode="train", defenses=noise, knowledge=knowledge)


def attack(how: SeeThroughGradients, observation: Observation, *, chunk: int = VICTIMS) -> Tensor:
    return how(observation, streams=Streams(seed=0), runtime=Runtime(chunk=chunk)).inputs


def psnr(guess: Tensor) -> float:
    truth = private().inputs
    return float(PSNR()(arrange(guess, align(guess, truth)), truth).mean())


def test_undoes_the_momentum_of_the_statistics_that_clients_send_back() -> None:
    observation = seen()
    norms = BatchNorms.of(observation)
    inferred = target_moments(observation, norms, "best")
    first = observation.model.get_submodule("0")
    for victim in range(VICTIMS):
        entered = first(private().inputs[victim]).detach()
        mean, variance = entered.mean((0, 2, 3)), entered.transpose(0, 1).flatten(1).var(1)
        torch.testing.assert_close(inferred[0][0][victim], mean, atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(inferred[0][1][victim], variance, atol=1e-5, rtol=1e-4)


def test_the_private_images_have_the_inferred_statistics_at_every_layer() -> None:
    observation = seen()
    norms = BatchNorms.of(observation)
    inferred = target_moments(observation, norms, "inferred")
    for found, expected in zip(norms.measure(private().inputs), inferred, strict=True):
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-3)


def test_takes_statistics_as_they_are_sent() -> None:
    observation = seen()
    norms = BatchNorms.of(observation)
    running = target_moments(observation, norms, "running")
    assert observation.buffers_after is not None
    assert torch.equal(running[1][1], torch.ones(VICTIMS, 8))
    shared = target_moments(observation, norms, "shared")
    assert torch.equal(shared[0][0], observation.buffers_after["1.running_mean"])


def test_statistics_help_where_the_gradient_is_noisy() -> None:
    observation = seen(std=0.05)
    without = psnr(attack(dataclasses.replace(SMALL, bn=0.0), observation))
    assert psnr(attack(SMALL, observation)) > without + 0.7


def test_a_stack_gives_what_each_victim_alone_gives() -> None:
    how, observation = dataclasses.replace(SMALL, steps=3, restarts=2, group=0.1), seen()
    torch.testing.assert_close(attack(how, observation), attack(how, observation, chunk=1), rtol=0, atol=1e-3)


def test_disagreement_of_restarts_costs_its_weight() -> None:
    twice = seen().repeat(2)
    images = Streams(seed=414, purpose="test").bind(2 * VICTIMS).normal("images", (SIZE, 1, 8, 8))
    alone, agreeing = (
        dataclasses.replace(SMALL, restarts=2, group=group, reach=0)._objective(twice, Runtime())(images, twice.labels)  # type: ignore[arg-type]
        for group in (0.0, 0.3)
    )
    mean = images.view(VICTIMS, 2, SIZE, 1, 8, 8).mean(1).repeat_interleave(2, 0)
    torch.testing.assert_close(agreeing - alone, 0.3 * (images - mean).square().mean((1, 2, 3, 4)), rtol=1e-3, atol=0)


def test_registers_by_the_best_translation() -> None:
    streams = Streams(seed=412, purpose="test").bind(5)
    reference = streams.normal("images", (2, 6, 7))
    shifts = [(0, 0), (1, 0), (-1, 1), (0, -1), (1, -1)]
    moved = torch.stack([image.roll(shift, (1, 2)) for image, shift in zip(reference, shifts, strict=True)])
    torch.testing.assert_close(register(moved, reference, reach=1), reference)
    far = reference.roll((3, 3), (2, 3))
    assert not torch.allclose(register(far, reference, reach=1), reference)


def test_the_consensus_is_one_image_for_all_restarts_of_a_victim() -> None:
    images = Streams(seed=413, purpose="test").bind(6).normal("images", (2, 1, 4, 4))
    agreed = consensus(images, 3, reach=0)
    torch.testing.assert_close(agreed, images.view(2, 3, 2, 1, 4, 4).mean(1).repeat_interleave(3, 0))


def test_noise_of_the_search_comes_from_the_streams() -> None:
    still, noisy = (dataclasses.replace(SMALL, steps=3, langevin=langevin) for langevin in (0.0, 0.5))
    observation = seen()
    assert not torch.equal(attack(still, observation), attack(noisy, observation))
    assert torch.equal(attack(noisy, observation), attack(noisy, observation))


def test_refuses_a_network_without_batch_norm_and_buffers_that_nobody_sent() -> None:
    plain = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    with pytest.raises(UnsupportedModelError, match="has no batch norm"):
        attack(SMALL, observe(private(), plain, F.cross_entropy, knowledge=Knowledge.LABELS))
    with pytest.raises(KnowledgeError, match="grant buffers"):
        attack(dataclasses.replace(SMALL, statistics="shared"), seen(knowledge=Knowledge.LABELS))
