"""Update defenses against slow loops over victims and entries."""

import math

import pytest
import torch
from defended import VICTIMS, flat
from torch import Tensor

from gradveil.defenses import PPDL, CentralDP, Clipping, LocalDP, Quantization, Sign, TopK, UpdateDefense
from gradveil.streams import Streams
from gradveil.types import Gradients


def streams(victims: int = VICTIMS, seed: int = 0) -> Streams:
    return Streams(seed=seed, purpose="client").bind(victims)


def some_update(victims: int = VICTIMS, *, name: str = "update") -> Gradients:
    source = Streams(seed=1, purpose="test").bind(victims)
    shapes = ((3, 5), (7,), (2, 3, 2))
    like = torch.zeros((), dtype=torch.float64)
    return tuple(source.normal(f"{name}/{i}", shape, like=like) for i, shape in enumerate(shapes))


def apply(defense: UpdateDefense, update: Gradients) -> Gradients:
    return defense.apply(update, streams=streams(len(update[0])))


def largest_of(values: Tensor, share: float) -> Tensor:
    """Keep the largest entries of a vector, by sorting."""
    count = math.ceil(round(len(values) * share, 9))
    order = sorted(range(len(values)), key=lambda i: -abs(float(values[i])))
    kept = torch.zeros_like(values)
    kept[order[:count]] = values[order[:count]]
    return kept


def test_clipping_shortens_long_updates_and_keeps_the_bits_of_short_ones() -> None:
    update = some_update()
    norms = flat(update).norm(dim=1)
    bound = float(norms.sort().values[1])
    clipped = apply(Clipping(norm=bound), update)
    for victim in range(VICTIMS):
        expected = flat(update)[victim] * min(1.0, bound / float(norms[victim]))
        torch.testing.assert_close(flat(clipped)[victim], expected)
    shortest = int(norms.argmin())
    assert torch.equal(flat(clipped)[shortest], flat(update)[shortest])


def test_clipping_leaves_an_update_of_zeros_alone() -> None:
    assert torch.equal(apply(Clipping(norm=1.0), (torch.zeros(1, 3),))[0], torch.zeros(1, 3))


@pytest.mark.parametrize("share", [0.1, 0.3, 0.5, 1.0])
def test_top_k_keeps_the_largest_entries_of_each_tensor(share: float) -> None:
    update = some_update()
    for before, after in zip(update, apply(TopK(top=share), update), strict=True):
        for victim in range(VICTIMS):
            assert torch.equal(after[victim].flatten(), largest_of(before[victim].flatten(), share))


@pytest.mark.parametrize("share", [0.1, 0.5])
def test_top_k_keeps_the_largest_entries_of_the_whole_update(share: float) -> None:
    update = some_update()
    after = flat(apply(TopK(top=share, scope="global"), update))
    for victim in range(VICTIMS):
        assert torch.equal(after[victim], largest_of(flat(update)[victim], share))


@pytest.mark.parametrize("defense", [PPDL(theta=0.3), TopK(top=0.3, residual=True)], ids=repr)
def test_what_is_held_back_leaves_in_later_rounds(defense: UpdateDefense) -> None:
    rounds = [some_update(name=f"round-{number}") for number in range(3)]
    carried = torch.zeros_like(flat(rounds[0]))
    kept: dict[str, Tensor] = {}
    for update in rounds:
        shared = defense.share(update, kept=kept, streams=streams())
        total = flat(update) + carried
        sizes = [tensor[0].numel() for tensor in update]
        for victim in range(VICTIMS):
            expected = torch.cat([largest_of(part, 0.3) for part in total[victim].split(sizes)])
            torch.testing.assert_close(flat(shared.update)[victim], expected)
        carried = total - flat(shared.update)
        kept = dict(shared.kept)
    torch.testing.assert_close(flat(tuple(kept[f"residual.{i}"] for i in range(3))), carried)


def test_ppdl_adds_noise_to_what_it_shares_alone() -> None:
    update = some_update()
    plain, noisy = apply(PPDL(theta=0.3), update), apply(PPDL(theta=0.3, scale=0.1), update)
    difference = flat(noisy) - flat(plain)
    assert bool((difference[flat(plain) == 0] == 0).all())
    assert bool((difference[flat(plain) != 0] != 0).all())


def test_sign_shares_signs_of_the_mean_magnitude() -> None:
    tensor = torch.tensor([[3.0, -1.0, 0.0], [2.0, 2.0, 2.0]])
    assert torch.equal(apply(Sign(scale="one"), (tensor,))[0], tensor.sign())
    expected = torch.tensor([[4 / 3, -4 / 3, 0.0], [2.0, 2.0, 2.0]])
    torch.testing.assert_close(apply(Sign(scale="mean"), (tensor,))[0], expected)


def test_quantization_shares_few_levels_and_is_right_on_average() -> None:
    tensor = some_update(1)[0]
    many = tensor.expand(4000, *tensor.shape[1:])
    norm, levels = tensor.norm(), 3
    rounded = Quantization(levels=levels).apply((many,), streams=streams(4000))[0]
    steps = rounded / norm * levels
    torch.testing.assert_close(steps, steps.round(), atol=1e-9, rtol=0)
    assert bool(((steps - tensor / norm * levels).abs() < 1).all())
    # Each rounding is off by at most norm / levels, so that the mean of 4000 has a deviation below norm / 380.
    torch.testing.assert_close(rounded.mean(0), tensor[0], atol=5 * float(norm) / 380, rtol=0)


def test_quantization_leaves_zeros_alone() -> None:
    assert torch.equal(apply(Quantization(), (torch.zeros(1, 3),))[0], torch.zeros(1, 3))


def test_local_dp_clips_and_adds_noise_of_the_announced_size() -> None:
    update = tuple(tensor.expand(2000, *tensor.shape[1:]) for tensor in some_update(1))
    shared = flat(LocalDP(norm=0.5, noise_multiplier=0.2).apply(update, streams=streams(2000)))
    clipped = flat(update)[0] * 0.5 / flat(update)[0].norm()
    assert float((shared - clipped).std()) == pytest.approx(0.1, rel=0.02)
    assert float((shared.mean(0) - clipped).abs().max()) < 5 * 0.1 / math.sqrt(2000)


def test_central_dp_clips_at_the_client_and_adds_noise_to_the_mean() -> None:
    defense, update = CentralDP(norm=0.5, noise_multiplier=0.2), some_update()
    shared = apply(defense, update)
    torch.testing.assert_close(flat(shared), flat(apply(Clipping(norm=0.5), update)))
    mean = tuple(tensor.mean(0, keepdim=True).expand(4000, *tensor.shape[1:]) for tensor in shared)
    noise = flat(defense.finish(mean, clients=VICTIMS, streams=streams(4000))) - flat(mean)
    assert float(noise.std()) == pytest.approx(0.2 * 0.5 / VICTIMS, rel=0.02)
    quiet = CentralDP(norm=0.5, noise_multiplier=0.0).finish(mean, clients=1, streams=streams(4000))
    assert all(torch.equal(a, b) for a, b in zip(quiet, mean, strict=True))


def test_the_likelihood_of_local_dp_is_that_of_its_noise() -> None:
    defense, clean = LocalDP(norm=0.5, noise_multiplier=0.2), some_update()
    observed = apply(defense, clean)
    centre = flat(apply(Clipping(norm=0.5), clean))
    expected = torch.distributions.Normal(centre, 0.1).log_prob(flat(observed)).sum(1)
    torch.testing.assert_close(defense.log_likelihood(observed, clean), expected)


@pytest.mark.parametrize(
    ("kind", "settings", "named"),
    [
        (Clipping, {"norm": 0.0}, "norm"),
        (TopK, {"top": 0.0}, "top"),
        (PPDL, {"theta": 1.5}, "theta"),
        (PPDL, {"scale": -1.0}, "scale"),
        (Quantization, {"levels": 0}, "levels"),
        (LocalDP, {"norm": math.inf}, "norm"),
        (CentralDP, {"norm": math.inf}, "norm"),
        (CentralDP, {"noise_multiplier": -1.0}, "noise_multiplier"),
        (LocalDP, {"noise_multiplier": -1.0}, "noise_multiplier"),
    ],
)
def test_refuses_settings_without_meaning(kind: type[UpdateDefense], settings: dict[str, object], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        kind(**settings)
