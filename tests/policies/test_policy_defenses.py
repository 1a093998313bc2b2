"""Transformation policies as defenses of a client."""

import pytest
import torch
from torch import nn

from gradveil.client import Client, step
from gradveil.defenses import RandomPolicy, TransformPolicy, defenses
from gradveil.errors import SpecError
from gradveil.spec import build
from gradveil.streams import Streams
from gradveil.transforms import OPERATIONS, Variants, to_bytes, transform_bytes
from gradveil.types import Batch, Protected

STREAMS = Streams(seed=0, purpose="client")


def batch(victims: int = 3, size: int = 4) -> Batch:
    generator = torch.Generator().manual_seed(0)
    levels = torch.randint(256, (victims, size, 3, 16, 16), generator=generator)
    return Batch(levels / 255, torch.zeros(victims, size, dtype=torch.long))


def protect(defense: TransformPolicy | RandomPolicy, streams: Streams = STREAMS, victims: int = 3) -> torch.Tensor:
    given = Protected.unchanged(batch(victims))
    return defense.protect(given, pool=None, streams=streams.bind(victims)).inputs


@pytest.mark.parametrize(
    "text",
    [
        "transform-policy",
        "transform-policy:policy=3-1-7",
        "transform-policy:policy=19-15-45+2-43-21,crop_and_flip=false",
        "random-policy:seed=4,length=2",
    ],
)
def test_is_built_from_its_text_and_written_back(text: str) -> None:
    built = build(defenses, text)
    assert build(defenses, defenses.describe(built)) == built
    assert defenses.describe(built) in {text, text.replace("false", "False")}


@pytest.mark.parametrize("policy", ["3-50", "1-2-3-4", "x"])
def test_refuses_a_wrong_policy_before_anything_runs(policy: str) -> None:
    with pytest.raises(SpecError, match=f"policy '{policy}'"):
        build(defenses, f"transform-policy:policy={policy}")


def test_every_image_is_one_of_the_variants_of_the_hybrid() -> None:
    defense = TransformPolicy(policy="3-1-7+43-18-18", crop_and_flip=False)
    given, made = (
        to_bytes(batch(size=20).inputs).flatten(0, 1),
        defense.protect(Protected.unchanged(batch(size=20)), pool=None, streams=STREAMS.bind(3)),
    )
    found = set()
    for image, seen in zip(given, to_bytes(made.inputs).flatten(0, 1), strict=True):
        variants = defense.variants()
        possible = transform_bytes(image.expand(len(variants.codes), -1, -1, -1), variants)
        matches = [number for number, one in enumerate(possible) if torch.equal(one, seen)]
        assert matches
        found.update(matches)
    assert len(found) > 8  # both policies, several signs


def test_crops_before_the_policy() -> None:
    inverted = protect(TransformPolicy(policy="0"))
    plain = protect(TransformPolicy(policy="28"))
    assert torch.allclose(inverted, 1 - plain)
    assert not torch.equal(plain, batch().inputs)


def test_a_later_step_draws_anew_and_the_same_step_repeats() -> None:
    defense = TransformPolicy()
    assert torch.equal(protect(defense), protect(defense))
    assert not torch.equal(protect(defense), protect(defense, STREAMS.fork("step-1")))


def test_a_victim_gets_the_same_alone_and_in_company() -> None:
    together = protect(TransformPolicy())
    alone = TransformPolicy().protect(
        Protected.unchanged(batch().select([1])), pool=None, streams=STREAMS.bind(3).select([1])
    )
    assert torch.equal(alone.inputs, together[1:2])


def test_changes_nothing_at_its_off_setting() -> None:
    assert torch.equal(protect(TransformPolicy(policy="28", crop_and_flip=False)), batch().inputs)


def test_forward_is_what_a_client_with_positive_signs_does_up_to_rounding() -> None:
    inputs = batch().inputs.requires_grad_()
    seen = TransformPolicy(policy="3-1-7").forward(inputs)
    images = to_bytes(inputs).flatten(0, 1)
    exact = transform_bytes(images, Variants(torch.tensor([[3, 1, 7]] * 12), torch.ones(12, 3, dtype=torch.long)))
    assert float((seen.detach().flatten(0, 1) - exact / 255).abs().max()) < 1.3 / 255
    (gradient,) = torch.autograd.grad(seen.sum(), inputs)
    assert bool((gradient != 0).any())


def test_an_informed_adversary_can_go_through_every_variant() -> None:
    defense, inputs = RandomPolicy(seed=2), batch().inputs
    variants = defense.variants()
    assert len(variants.codes) > 1
    for number in range(len(variants.codes)):
        images = to_bytes(inputs).flatten(0, 1)
        exact = transform_bytes(images, Variants(*(each[number].expand(len(images), -1) for each in variants)))
        smooth = defense.forward_variant(inputs, number).flatten(0, 1)
        assert float((smooth - exact / 255).abs().mean()) < 2 / 255


def test_goes_through_the_step_of_a_client_and_keeps_the_private_images_as_evidence() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 16 * 16, 2))
    client = Client(model=model, loss=nn.functional.cross_entropy, defenses=(TransformPolicy(),))
    taken = step(batch(), client, streams=STREAMS)
    assert torch.equal(taken.evidence.batch.inputs, batch().inputs)
    assert torch.equal(taken.evidence.protected.inputs, protect(TransformPolicy()))


def test_a_seed_gives_one_random_policy_and_seeds_differ() -> None:
    policies = [RandomPolicy(seed=seed).drawn.policy for seed in range(10)]
    assert len(set(policies)) == 10
    assert torch.equal(protect(RandomPolicy(seed=3)), protect(RandomPolicy(seed=3).drawn))
    assert all(0 <= int(code) < len(OPERATIONS) for policy in policies for code in policy.split("-"))
    with pytest.raises(ValueError, match="at least 1"):
        RandomPolicy(length=0)
