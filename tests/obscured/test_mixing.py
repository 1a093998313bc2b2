import dataclasses
import math
from typing import Literal, TypeAlias

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gradveil.client import Client, Step, step
from gradveil.defenses import InstaHide, Mixup, defenses
from gradveil.engine import normalized
from gradveil.errors import DataError
from gradveil.streams import Streams
from gradveil.types import Batch, Protected

Mixing: TypeAlias = Mixup | InstaHide
ROWS: tuple[Mixing, ...] = (
    Mixup(k=3, classes=4),
    Mixup(k=2, classes=4, rule="power", cap=0.8),
    Mixup(k=4, classes=4, from_pool=2),
    InstaHide(k=3, classes=4),
    InstaHide(k=4, classes=4, rule="dirichlet", from_pool=2, mean=(0.4, 0.5)),
    InstaHide(k=8, classes=4, from_pool=7),
)
every_row = pytest.mark.parametrize("defense", ROWS, ids=defenses.describe)
VICTIMS, SIZE = 3, 5


def draw(name: str, *shape: int, victims: int = VICTIMS) -> Tensor:
    return Streams(seed=1, purpose="test").bind(victims).uniform(name, shape).double()


def private() -> Protected:
    labels = Streams(seed=1, purpose="test").bind(VICTIMS).integers("labels", 4, (SIZE,))
    return Protected.unchanged(Batch(draw("images", SIZE, 2, 4, 4), labels))


def pool() -> Tensor:
    return draw("pool", 9, 2, 4, 4, victims=1)[0]


def protect(defense: Mixing, data: Protected | None = None, *, seed: int = 0) -> Protected:
    data = data or private()
    streams = Streams(seed=seed, purpose="client").bind(len(data.inputs))
    return defense.protect(data, pool=pool(), streams=streams)


def mixed_by_hand(seen: Protected, data: Protected) -> Tensor:
    """Add up the images that a mixture says it was made from, one at a time."""
    found = torch.zeros_like(data.inputs)
    for v in range(VICTIMS):
        for b in range(SIZE):
            for image, weight in zip(seen.origin[v, b], seen.weights[v, b], strict=True):
                found[v, b] += weight * data.inputs[v, image]
    return found


@pytest.mark.parametrize("rule", ["power", "dirichlet"])
@pytest.mark.parametrize("k", [2, 4, 5])
def test_mixes_what_it_says_it_mixed(k: int, rule: Literal["power", "dirichlet"]) -> None:
    data = private()
    seen = protect(dataclasses.replace(ROWS[0], k=k, rule=rule))
    torch.testing.assert_close(seen.inputs, mixed_by_hand(seen, data))
    hard = F.one_hot(data.labels, 4).double()
    rows = torch.arange(VICTIMS)[:, None, None]
    torch.testing.assert_close(seen.labels, (seen.weights[..., None] * hard[rows, seen.origin]).sum(2))


def test_signs_are_flipped_around_the_mean_and_are_fair() -> None:
    mean = torch.tensor([0.4, 0.5]).double().view(2, 1, 1)
    data = private()
    seen = protect(InstaHide(k=3, classes=4, mean=(0.4, 0.5)))
    mixed = mixed_by_hand(seen, data)
    torch.testing.assert_close((seen.inputs - mean).abs(), (mixed - mean).abs())
    flipped = ((seen.inputs - mean) * (mixed - mean) < 0).double()
    assert abs(float(flipped.mean()) - 0.5) < 0.08
    assert 0.2 < float((flipped[:, :, 0] - flipped[:, :, 1]).abs().mean()) < 0.8  # channels flip apart


@every_row
def test_partners_are_distinct_and_include_the_image_itself(defense: Mixing) -> None:
    seen = protect(defense)
    assert seen.origin.shape[2] == defense.k - defense.from_pool
    assert torch.equal(seen.origin[..., 0], torch.arange(SIZE).expand(VICTIMS, SIZE))
    assert all(len(set(row.tolist())) == len(row) for row in seen.origin.flatten(0, 1))


@every_row
def test_coefficients_respect_cap_and_floor(defense: Mixing) -> None:
    weights = torch.cat([protect(defense, seed=seed).weights.flatten(0, 1) for seed in range(20)])
    assert float(weights.max()) <= defense.cap
    if defense.from_pool:
        assert float(weights[:, :2].sum(1).min()) >= defense.floor
        assert float(weights.sum(1).max()) < 1
    else:
        torch.testing.assert_close(weights.sum(1), torch.ones(len(weights)).double())


def test_coefficients_follow_the_published_distributions() -> None:
    streams = Streams(seed=3, purpose="client").bind(1)
    many = Protected.unchanged(Batch(torch.zeros(1, 400, 1, 1, 1), torch.zeros(1, 400, dtype=torch.long)))
    free = Mixup(k=4, classes=1, cap=1.0).protect(many, pool=None, streams=streams).weights[0]
    # A Dirichlet of (3, 1, 1, 1) has the means 1/2 and 1/6, and the variance 1/28 of its first share.
    torch.testing.assert_close(free.mean(0), torch.tensor([3, 1, 1, 1]) / 6, atol=0.03, rtol=0)
    assert abs(float(free[:, 0].var()) - 1 / 28) < 0.01
    power = Mixup(k=4, classes=1, cap=1.0, rule="power").protect(many, pool=None, streams=streams).weights[0]
    torch.testing.assert_close(power.mean(0), torch.full((4,), 0.25), atol=0.05, rtol=0)
    assert float(power.amax(1).median()) > 0.65  # the fourth power favours one image, which is why there is a cap


@every_row
def test_repeats_its_bits_and_a_stack_gives_what_each_victim_alone_gives(defense: Mixing) -> None:
    streams, data = Streams(seed=2, purpose="client").bind(VICTIMS), private()
    first, second = (defense.protect(data, pool=pool(), streams=streams) for _ in range(2))
    assert torch.equal(first.inputs, second.inputs)
    for victim in range(VICTIMS):
        alone = defense.protect(data.select([victim]), pool=pool(), streams=streams.select([victim]))
        assert torch.equal(alone.inputs[0], first.inputs[victim])
        assert torch.equal(alone.labels[0], first.labels[victim])


@every_row
def test_mixes_anew_at_every_step(defense: Mixing) -> None:
    streams, data = Streams(seed=2, purpose="client").bind(VICTIMS), private()
    first, second = (defense.protect(data, pool=pool(), streams=streams.fork(f"step-{n}")) for n in range(2))
    assert not torch.equal(first.weights, second.weights)
    assert not torch.equal(first.inputs, second.inputs)


@every_row
def test_secret_randomness_does_not_follow_the_seed(defense: Mixing) -> None:
    secret = dataclasses.replace(defense, randomness="secret")
    first, second = protect(secret), protect(secret)
    assert not torch.equal(first.weights, second.weights)
    assert not torch.equal(first.inputs, second.inputs)


def test_secret_signs_are_fair_and_their_own_every_time() -> None:
    flip = InstaHide(k=1, classes=4, randomness="secret")
    first, second = (protect(flip).inputs.sign() for _ in range(2))
    assert all(abs(float(signs.mean())) < 0.25 for signs in (first, second, first * second))


@every_row
def test_rebuilds_from_its_fields(defense: Mixing) -> None:
    assert defenses.build(defenses.describe(defense)) == defense
    assert defense.adversary.reason


def test_mixup_of_one_image_is_off() -> None:
    assert Mixup.off is not None
    data = private()
    assert protect(dataclasses.replace(ROWS[0], **Mixup.off), data) is data  # type: ignore[arg-type]


def test_mixing_a_mixture_still_names_the_private_images() -> None:
    data = private()
    first = protect(Mixup(k=2, classes=4), data)
    second = protect(Mixup(k=3, classes=4), first, seed=1)
    torch.testing.assert_close(second.inputs, mixed_by_hand(second, data))


def test_pool_images_are_part_of_the_mixture() -> None:
    seen = protect(Mixup(k=3, classes=4, from_pool=2))
    rest = (seen.inputs - mixed_by_hand(seen, private())).flatten(2)
    found = torch.linalg.lstsq(pool().flatten(1).T, rest.flatten(0, 1).T).solution
    assert (found.abs() > 1e-9).sum(0).tolist() == [2] * (VICTIMS * SIZE)
    torch.testing.assert_close(found.sum(0).view(VICTIMS, SIZE), 1 - seen.weights[..., 0])


def test_a_client_trains_on_mixtures() -> None:
    batch = Batch(private().inputs, private().labels)
    model = nn.Sequential(nn.Flatten(), nn.Linear(32, 4)).double()

    def taken(*chosen: Mixing) -> Step:
        client = Client(model=model, loss=F.cross_entropy, defenses=chosen)
        return step(batch, client, streams=Streams(seed=0, purpose="client"))

    seen = taken(InstaHide(k=3, classes=4))
    assert seen.evidence.protected.labels.shape == (VICTIMS, SIZE, 4)
    assert not torch.allclose(seen.observation.update[0], taken().observation.update[0])


@pytest.mark.parametrize("defense", [Mixup(k=3), InstaHide(k=3)], ids=["mixup", "instahide"])
def test_the_client_says_how_many_classes_there_are(defense: Mixing) -> None:
    batch = Batch(private().inputs, private().labels)
    model = nn.Sequential(nn.Flatten(), nn.Dropout(), nn.Linear(32, 7)).double()
    streams = Streams(seed=0, purpose="client")
    seen = step(batch, Client(model=model, loss=F.cross_entropy, defenses=(defense,)), streams=streams)
    told = step(
        batch,
        Client(model=model, loss=F.cross_entropy, defenses=(dataclasses.replace(defense, classes=7),)),
        streams=streams,
    )
    assert seen.evidence.protected.labels.shape == (VICTIMS, SIZE, 7)
    assert torch.equal(seen.evidence.protected.labels, told.evidence.protected.labels)
    assert model.training
    small = nn.Sequential(nn.Flatten(), nn.Linear(32, 2)).double()
    with pytest.raises(DataError, match="below the model's 2 outputs"):
        step(batch, Client(model=small, loss=F.cross_entropy, defenses=(defense,)), streams=streams)


def test_says_once_that_signs_belong_around_the_mean_of_the_network(caplog: pytest.LogCaptureFixture) -> None:
    plain = nn.Sequential(nn.Flatten(), nn.Linear(32, 4))
    standardized = normalized(plain, (0.4321, 0.5), (0.2, 0.3))
    given = InstaHide(k=2, mean=(0.4321, 0.5))
    for model, defense in ((plain, InstaHide(k=2)), (standardized, given), (standardized, Mixup(k=2))):
        Client(model=model, loss=F.cross_entropy, defenses=(defense,))
    assert caplog.messages == []
    for _ in range(2):
        Client(model=standardized, loss=F.cross_entropy, defenses=(InstaHide(k=2),))
    (said,) = caplog.messages
    assert said.endswith("give it mean=0.4321+0.5")


@pytest.mark.parametrize(
    ("defense", "message"),
    [
        (Mixup(k=6, classes=4), "needs as many, got 5"),
        (Mixup(k=4), "set classes=K"),
        (Mixup(k=4, classes=2), "below classes=2"),
        (InstaHide(k=3, classes=4, mean=(0.1,)), "one number per channel, 2"),
        (Mixup(k=4, classes=4, cap=0.2501), "raise cap"),
    ],
)
def test_says_what_is_missing(defense: Mixing, message: str) -> None:
    with pytest.raises(DataError, match=message):
        protect(defense)


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (None, "the client has none; give it one, or from_pool=0"),
        (torch.zeros(1, 2, 4, 4), "the client has one of 1"),
        (torch.zeros(9, 3, 4, 4), r"\(2, 4, 4\) like the batch, got \(3, 4, 4\)"),
        (torch.zeros(9, 2, 5, 4), "resize them"),
    ],
)
def test_says_what_is_wrong_with_the_pool(images: Tensor | None, message: str) -> None:
    streams = Streams(purpose="client").bind(VICTIMS)
    with pytest.raises(DataError, match=message):
        Mixup(k=3, classes=4, from_pool=2).protect(private(), pool=images, streams=streams)


@pytest.mark.parametrize("pool", [torch.zeros(9, 1, 4, 4, dtype=torch.uint8), torch.zeros(1, 4, 4)])
def test_a_client_refuses_a_pool_that_holds_no_images(pool: Tensor) -> None:
    with pytest.raises(DataError, match="pool must be floating-point images"):
        Client(model=nn.Flatten(), loss=F.cross_entropy, defenses=(Mixup(k=3, from_pool=2),), pool=pool)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"k": 9}, "k must be 1 to 8"),
        ({"k": 0}, "k must be 1 to 8"),
        ({"cap": 0.2}, "above 1/k"),
        ({"from_pool": 4}, "below k"),
        ({"floor": 1.0}, "floor"),
        ({"classes": 0}, "classes"),
        ({"rule": "uniform"}, "rule must be power or dirichlet, got 'uniform'"),
        ({"randomness": "system"}, "randomness must be seeded or secret, got 'system'"),
    ],
)
def test_refuses_settings_that_make_no_sense(settings: dict[str, object], message: str) -> None:
    for kind in (Mixup, InstaHide):
        with pytest.raises(ValueError, match=message):
            kind(**settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("mean", [(125.3, 123.0), (math.nan, 0.5), (-0.1, 0.5)])
def test_flips_signs_around_a_mean_that_pixels_can_have(mean: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match=r"mean must lie in \[0, 1\]"):
        InstaHide(mean=mean)
