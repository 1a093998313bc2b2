"""The two scores against slow ones, by hand, and in bad company."""

import dataclasses
import math

import pytest
import torch
from slow_scores import slow_accuracy, slow_privacy
from torch import Tensor, nn

from gradveil.engine import Runtime, normalized
from gradveil.errors import DataError, SpecError
from gradveil.policies import Score, accuracy_score, privacy_score
from gradveil.policies._accuracy import AccuracyScorer
from gradveil.policies._material import Material
from gradveil.policies._privacy import PrivacyScorer, Variant
from gradveil.streams import Streams
from gradveil.transforms import parse_policy

VARIANTS: tuple[Variant, ...] = ("paper", "reference")
STREAMS = Streams(seed=5, purpose="search")
POLICIES = ("3-1-7", "43-18-18", "3-1-7+43-18", "28", "9-2")


def network() -> nn.Module:
    generator = torch.Generator().manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1, bias=False),
        nn.BatchNorm2d(4),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(4 * 64, 5),
    ).double()
    for tensor in [*model.parameters(), *model.buffers()]:
        if tensor.dtype == torch.float64:
            tensor.data = torch.rand(tensor.shape, generator=generator, dtype=torch.float64) * 0.5 + 0.1
    return normalized(model, [0.5, 0.4, 0.3], [0.2, 0.25, 0.3]).eval()


def images(count: int = 12) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    levels = torch.randint(256, (count, 3, 8, 8), generator=generator)
    return levels.double() / 255, torch.randint(5, (count,), generator=generator)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("policy", POLICIES)
def test_the_privacy_score_equals_the_slow_one(policy: str, variant: Variant) -> None:
    inputs, labels = images(5)
    found = privacy_score(policy, network(), inputs, labels, variant=variant, intervals=4, streams=STREAMS)
    expected = slow_privacy(policy, network(), inputs, labels, STREAMS, variant=variant, intervals=4)
    assert float((found.values - torch.tensor(expected, dtype=torch.float64)).abs().max()) < 1e-8


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("policy", POLICIES)
def test_the_accuracy_score_equals_the_slow_one(policy: str, variant: Variant) -> None:
    inputs, labels = images()
    found = accuracy_score(policy, network(), inputs, labels, variant=variant, rounds=2, streams=STREAMS)
    expected = slow_accuracy(policy, network(), inputs, labels, STREAMS, variant=variant, rounds=2)
    assert found.values.tolist() == pytest.approx(expected, rel=1e-8)


def test_the_published_number_of_points_is_the_default() -> None:
    inputs, labels = images(2)
    found = privacy_score("3-1-7", network(), inputs, labels, streams=STREAMS)
    expected = slow_privacy("3-1-7", network(), inputs, labels, STREAMS, variant="reference", intervals=20)
    assert found.values.tolist() == pytest.approx(expected, abs=1e-8)


BY_HAND = {"paper": (0.4472135955 + 0.9486832981) / 2, "reference": (0.5 * 2 / 3 + (0.9622504486 + 1) / 2 + 0.5) / 2}


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_privacy_score_of_one_image_and_two_intervals_is_that_by_hand(variant: Variant) -> None:
    # With zero weights both outputs are equal, so the gradient is (-1/2, 1/2) times the image x for the weight, and
    # (-1/2, 1/2) for the bias. The way leads from one white pixel of nine (norm 1) to nine white ones (norm 3):
    # the product with the image is 1 at the start and 5 halfway, where the norm is the root of 1 + 8 / 4 = 3.
    # One cosine per parameter: weight 1 / 3 and 5 / (3 * 3 ** 0.5) = 0.9622504486, bias 1; their means at 0, 1/2, 1
    # are 2/3, (0.9622504486 + 1) / 2 and 1. One for all, with the bias as a tenth entry: (1 + 1) / (2 * 10) ** 0.5 =
    # 0.4472135955 and (5 + 1) / (4 * 10) ** 0.5 = 0.9486832981.
    model = nn.Sequential(nn.Flatten(), nn.Linear(9, 2)).double()
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    white, label = torch.ones(1, 1, 3, 3, dtype=torch.float64), torch.tensor([0])
    material = Material.of(white, label, length=1, crop_and_flip=False, streams=STREAMS)
    scorer = PrivacyScorer.of(
        model.eval(), material, loss=nn.functional.cross_entropy, variant=variant, intervals=2, runtime=Runtime()
    )
    start = torch.zeros_like(white)
    start[..., 0, 0] = 1
    (value,) = dataclasses.replace(scorer, starts=start)([parse_policy("28")])[0].tolist()
    assert value == pytest.approx(BY_HAND[variant], abs=1e-9)


class Squares(nn.Module):
    def forward(self, inputs: Tensor) -> Tensor:
        return inputs.flatten(1).square()


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_accuracy_score_of_two_images_is_that_by_hand(variant: Variant) -> None:
    # The Jacobian of the sum of squares is twice the image. Two images of three white pixels in nine that have two in
    # common correlate by (2/9 - 1/9) / (1/3 - 1/9) = 1/2, so the eigenvalues are 3/2 and 1/2.
    inputs = torch.zeros(2, 1, 3, 3, dtype=torch.float64)
    inputs[0].view(-1)[:3], inputs[1].view(-1)[1:4] = 1, 1
    score = accuracy_score(
        "28", Squares(), inputs, torch.tensor([0, 1]), variant=variant, rounds=1, crop_and_flip=False
    )
    terms = [math.log(1.50001) + 1 / 1.50001, math.log(0.50001) + 1 / 0.50001]
    assert score.mean == pytest.approx(-sum(terms) / (2 if variant == "paper" else 1), rel=1e-9)
    assert math.isnan(score.standard_error)


def test_many_policies_in_one_stack_score_as_each_alone() -> None:
    inputs, labels = images()
    hybrids = [parse_policy(policy) for policy in POLICIES]
    material = Material.of(inputs, labels, length=3, crop_and_flip=True, streams=STREAMS)
    runtime = Runtime(precision="float32", chunk=7)
    private = PrivacyScorer.of(
        network(), material, loss=nn.functional.cross_entropy, variant="reference", intervals=3, runtime=runtime
    )
    accurate = AccuracyScorer.of(network(), material, rounds=3, variant="reference", runtime=runtime)
    for row, (policy, spread) in enumerate(zip(private(hybrids), accurate(hybrids), strict=True)):
        alone = privacy_score(POLICIES[row], network(), inputs, labels, intervals=3, streams=STREAMS)
        assert torch.allclose(policy, alone.values, rtol=0, atol=1e-12)
        single = accuracy_score(POLICIES[row], network(), inputs, labels, rounds=3, streams=STREAMS)
        assert torch.allclose(spread, single.values, rtol=1e-9)


def test_an_image_scores_the_same_alone_and_in_company() -> None:
    inputs, labels = images()
    together = privacy_score("3-1-7", network(), inputs, labels, intervals=2, streams=STREAMS)
    some = STREAMS.bind(12).select([4, 9])
    alone = privacy_score("3-1-7", network(), inputs[[4, 9]], labels[[4, 9]], intervals=2, streams=some)
    assert torch.allclose(together.values[[4, 9]], alone.values, rtol=0, atol=1e-12)


def test_leaves_the_model_alone() -> None:
    inputs, labels = images()
    model = network().train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    privacy_score("3-1-7", model, inputs, labels, intervals=2)
    accuracy_score("3-1-7", model, inputs, labels, rounds=2)
    assert model.training
    assert all(parameter.grad is None and parameter.requires_grad for parameter in model.parameters())
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_the_standard_error_is_that_of_the_mean() -> None:
    score = Score(torch.tensor([1.0, 2.0, 3.0, 6.0]))
    assert score.mean == 3
    assert score.standard_error == pytest.approx((14 / 3) ** 0.5 / 2)


def test_refuses_what_cannot_be_scored() -> None:
    inputs, labels = images()
    with pytest.raises(DataError, match="different classes"):
        accuracy_score("3", network(), inputs, torch.zeros_like(labels))
    with pytest.raises(DataError, match="need at least 20 images, got 12"):
        accuracy_score("3", network(), inputs, labels, rounds=10)
    with pytest.raises(SpecError, match="intervals must be at least 1"):
        privacy_score("3", network(), inputs, labels, intervals=0)
    with pytest.raises(DataError, match="pixels must lie in"):
        privacy_score("3", network(), inputs * 2, labels)
    with pytest.raises(DataError, match="one per image"):
        privacy_score("3", network(), inputs, labels[:3])
    with pytest.raises(SpecError, match="'50' at position 1"):
        privacy_score("50", network(), inputs, labels)
