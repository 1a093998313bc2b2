"""What an adversary sees who knows the policy: cases in which the answer is known, and a slow reference."""

import dataclasses

import pytest
import torch
import torch.nn.functional as F
from slow_scores import gradient
from test_scores import images, network
from test_search import MODEL, SMALL, TRAINING, dataset, search
from torch import Tensor

from gradveil.engine import Runtime
from gradveil.policies._material import Material
from gradveil.policies._networks import make_networks
from gradveil.policies._privacy import PrivacyScorer, Variant
from gradveil.policies._scorers import Scorers
from gradveil.policies._undoing import margin_over_grey, share_undone
from gradveil.policies.result import ScoredPolicy, ranked
from gradveil.streams import Streams
from gradveil.transforms import (
    OPERATIONS,
    Policy,
    Variants,
    parse_policy,
    to_bytes,
    transform_bytes,
    transform_smoothly,
)

STREAMS = Streams(seed=11, purpose="search")


def noise(count: int = 4, side: int = 16) -> Tensor:
    levels = torch.randint(256, (count, 3, side, side), generator=torch.Generator().manual_seed(7))
    return levels.double() / 255


def through(policy: str, private: Tensor, sign: int = 1) -> tuple[Tensor, Variants]:
    codes = parse_policy(policy).codes(torch.zeros(len(private), dtype=torch.long))
    variants = Variants(codes, torch.full_like(codes, sign))
    return transform_bytes(to_bytes(private), variants).double() / 255, variants


@pytest.mark.parametrize("sign", [1, -1])
def test_a_translation_is_undone_but_for_what_left_the_picture(sign: int) -> None:
    private = noise()
    seen, variants = through("24", private, sign)
    gone = round(OPERATIONS[24].value * 16)
    known = private.clone()
    (known[:, :, :gone] if sign > 0 else known[:, :, -gone:]).fill_(0.5)
    slow = [
        float(torch.corrcoef(torch.stack([a.flatten(), b.flatten()]))[0, 1]) ** 2
        for a, b in zip(known, private, strict=True)
    ]
    assert share_undone(seen, private, variants).tolist() == pytest.approx(slow, abs=1e-4)


def test_an_equalized_image_hides_nothing_that_it_shows() -> None:
    private = noise(side=32) * 0.2 + 0.3
    seen, variants = through("9", private)
    assert float(share_undone(seen, private, variants).min()) > 0.9
    assert bool((margin_over_grey(seen, private) < 0).all())  # though its levels are far from those of the private one


@pytest.mark.parametrize("policy", ["0", "0-0", "28", "15", "14", "38-26"])
def test_what_loses_nothing_is_undone_altogether(policy: str) -> None:
    private = noise() * 0.4 + 0.2  # not so bright that brightness cuts off
    seen, variants = through(policy, private, -1)
    assert float(share_undone(seen, private, variants).min()) > 0.99


@pytest.mark.parametrize("low", [0.05, 0.7])
def test_a_solarized_image_is_undone_from_the_side_on_which_it_lies(low: float) -> None:
    private = noise() * 0.25 + low
    seen, variants = through("40", private)
    assert float(share_undone(seen, private, variants).min()) > 0.95


def test_what_leaves_nothing_is_not_undone() -> None:
    private = noise()
    seen, variants = through("3-3-3", private)  # three times out to the left
    assert float(seen.max()) == 0
    assert float(share_undone(seen, private, variants).max()) == 0
    assert bool((margin_over_grey(seen, private) < -3).all())


def slow_informed(policy: str, variant: Variant, intervals: int) -> list[float]:
    model, (inputs, labels) = network(), images(4)
    material = Material.of(inputs, labels, length=3, crop_and_flip=True, streams=STREAMS)
    values = []
    for n in range(len(inputs)):
        own = material.select([n])
        variants, start, private = own.variants([parse_policy(policy)]), own.starts(), own.private()
        target = gradient(model, own.seen([parse_policy(policy)])[0], labels[n : n + 1])
        curve = []
        for j in range(intervals):
            at = transform_smoothly(j / intervals * private + (1 - j / intervals) * start, variants)
            here = gradient(model, at, labels[n : n + 1])
            pairs = [(torch.cat(here), torch.cat(target))] if variant == "paper" else zip(here, target, strict=True)
            each = [float(F.cosine_similarity(a, b, dim=0)) for a, b in pairs]
            curve.append(sum(each) / len(each))
        last = [] if variant == "paper" else [(1 - curve[0]) / 2]
        values.append((sum(curve) + sum(last)) / intervals)
    return values


@pytest.mark.parametrize("variant", ["paper", "reference"])
@pytest.mark.parametrize("policy", ["3-1-7", "9-24", "28"])
def test_the_informed_area_equals_the_slow_one(policy: str, variant: Variant) -> None:
    inputs, labels = images(4)
    material = Material.of(inputs, labels, length=3, crop_and_flip=True, streams=STREAMS)
    scorer = PrivacyScorer.of(
        network(), material, loss=F.cross_entropy, variant=variant, intervals=3, runtime=Runtime(chunk=3)
    )
    found = scorer.informed([parse_policy("12"), parse_policy(policy)])[1]
    assert found.tolist() == pytest.approx(slow_informed(policy, variant, 3), abs=1e-8)


def test_without_a_policy_both_adversaries_see_the_same() -> None:
    inputs, labels = images(4)
    material = Material.of(inputs, labels, length=1, crop_and_flip=False, streams=STREAMS)
    scorer = PrivacyScorer.of(
        network(), material, loss=F.cross_entropy, variant="reference", intervals=4, runtime=Runtime(chunk=4)
    )
    policies = [parse_policy("28")]
    assert torch.allclose(scorer(policies), scorer.informed(policies), atol=1e-12)


def test_a_policy_that_leaves_nothing_aligns_every_gradient_and_still_gives_nothing_away() -> None:
    settings = dataclasses.replace(SMALL, adversary="aware", crop_and_flip=False)
    networks = make_networks(dataset(), MODEL, seed=0, folder=None, device=torch.device("cpu"), training=TRAINING)
    scorers = Scorers.of(networks, dataset().test, settings, runtime=Runtime(precision="float32", chunk=64))
    material = scorers.privacy.material
    one_way = dataclasses.replace(material, signs=torch.ones_like(material.signs))
    scorers = dataclasses.replace(scorers, privacy=dataclasses.replace(scorers.privacy, material=one_way))
    assert scorers.privacy.informed([parse_policy("3-3-3")]).tolist()[0] == pytest.approx([1.0] * 4, abs=1e-5)
    black, moved = scorers.score([Policy((3, 3, 3)), Policy((24,))], "random")
    assert (black.aware, black.undone) == (0, 0)
    assert black.privacy is not None
    assert black.exposure == black.privacy / 2
    assert moved.aware is not None
    assert moved.aware > 0.3


def test_an_aware_search_ranks_by_what_both_adversaries_see() -> None:
    record = search(adversary="aware", threshold=-1e9, top=20, include=("24",), crop_and_flip=False)
    exposures = [((entry.privacy or 0) + (entry.aware or 0)) / 2 for entry in record.best]
    assert exposures == sorted(exposures)
    assert all(entry.aware is not None and 0 <= (entry.undone or 0) <= 1 for entry in record.scored)
    unchanged, moved = record.scored[0], next(entry for entry in record.scored if entry.policy == "24")
    assert unchanged.undone == pytest.approx(1, abs=1e-4)
    assert unchanged.aware == pytest.approx(unchanged.privacy, abs=1e-4)
    assert moved.undone is not None
    assert moved.undone > 0.5
    assert moved.margin is not None
    assert moved.margin < -1  # to an adversary who does not move it back, it is worse than grey


def test_a_policy_that_is_undone_falls_behind_one_that_is_not() -> None:
    undone = ScoredPolicy(policy="24", accuracy=0, privacy=0.2, aware=0.5)
    robust = ScoredPolicy(policy="9", accuracy=0, privacy=0.3, aware=0.1)
    assert [entry.policy for entry in ranked([undone, robust], threshold=-1)] == ["9", "24"]
    plain = [dataclasses.replace(entry, aware=None) for entry in (undone, robust)]
    assert [entry.policy for entry in ranked(plain, threshold=-1)] == ["24", "9"]


def test_a_plain_search_asks_for_no_informed_adversary() -> None:
    assert all(entry.aware is entry.undone is entry.margin is None for entry in search().scored)
