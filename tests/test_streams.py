import math
import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from gradveil.streams import Fill, Streams, _fill_laplace, draw_there
from gradveil.types import Observation

DRAWS = ("normal", "uniform", "laplace", "integers", "permutation")


def draw(streams: Streams, kind: str, name: str = "noise", size: int = 6) -> Tensor:
    if kind == "integers":
        return streams.integers(name, 1000, (size,))
    if kind == "permutation":
        return streams.permutation(name, size)
    drawn: Tensor = getattr(streams, kind)(name, (size,))
    return drawn


@pytest.mark.parametrize("kind", DRAWS)
def test_a_draw_is_repeated_by_its_name_whatever_was_drawn_between(kind: str) -> None:
    streams = Streams(seed=3).bind(4)
    first = draw(streams, kind)
    draw(streams, "normal", "another", 1000)
    assert torch.equal(draw(streams, kind), first)
    assert torch.equal(draw(Streams(seed=3).bind(4), kind), first)


@pytest.mark.parametrize("kind", DRAWS)
def test_seed_purpose_victim_and_name_each_change_the_draw(kind: str) -> None:
    streams = Streams(seed=3, purpose="attack").bind(2)
    first = draw(streams, kind, size=50)
    others = [
        draw(replace(streams, seed=4), kind, size=50),
        draw(replace(streams, purpose="client"), kind, size=50),
        draw(streams.fork("restart"), kind, size=50),
        draw(streams.repeat(2).select([1, 3]), kind, size=50),
        draw(streams, kind, "other", size=50),
        first.flip(0),
    ]
    for other in others:
        assert all(not torch.equal(a, b) for a, b in zip(first, other, strict=True))


@pytest.mark.parametrize("kind", DRAWS)
@given(victims=st.lists(st.integers(0, 9), min_size=1, max_size=6))
def test_a_victim_draws_the_same_in_every_stack(kind: str, victims: list[int]) -> None:
    streams = Streams(seed=3).bind(10)
    assert torch.equal(draw(streams.select(victims), kind), draw(streams, kind)[victims])


def test_chunks_draw_what_the_whole_stack_draws() -> None:
    streams = Streams(seed=3).bind(7)
    whole = draw(streams, "normal")
    for size in (1, 2, 3, 7):
        parts = [draw(streams.select(slice(start, start + size)), "normal") for start in range(0, 7, size)]
        assert torch.equal(torch.cat(parts), whole)


def test_restarts_have_streams_of_their_own_in_the_order_of_observations() -> None:
    streams = Streams(seed=3).bind(3)
    observation = Observation(
        model=torch.nn.Identity(),
        mode="eval",
        names=("weight",),
        update=(torch.arange(3.0),),
        loss=torch.nn.functional.cross_entropy,
        input_shape=(1, 1, 1, 1),
        num_classes=2,
    )
    repeated = streams.repeat(4)
    assert [key[0] for key in repeated.keys] == [int(v) for v in observation.repeat(4).update[0]]
    assert repeated.keys[:5] == ((0,), (0, 1), (0, 2), (0, 3), (1,))
    drawn = draw(repeated, "normal")
    assert len(drawn.unique(dim=0)) == 12
    assert torch.equal(draw(streams.select([2]).repeat(4), "normal"), drawn[8:])
    assert torch.equal(draw(streams.repeat(2), "normal"), drawn[[0, 1, 4, 5, 8, 9]])
    assert streams.repeat(1) == streams


def test_leaves_every_global_random_state_alone() -> None:
    before = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()  # type: ignore[index]  # noqa: NPY002
    for kind in DRAWS:
        draw(Streams(seed=1).bind(2), kind)
    torch.rand(1, generator=torch.Generator().manual_seed(0))
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (np.random.get_state()[1] == before[1]).all()  # type: ignore[index]  # noqa: NPY002
    assert random.getstate() == before[2]


def test_global_seeds_do_not_matter() -> None:
    first = draw(Streams(seed=1).bind(2), "normal")
    with torch.random.fork_rng():
        torch.manual_seed(99)
        assert torch.equal(draw(Streams(seed=1).bind(2), "normal"), first)


@pytest.mark.parametrize(
    ("kind", "mean", "variance"), [("normal", 0.0, 1.0), ("uniform", 0.5, 1 / 12), ("laplace", 0.0, 2.0)]
)
def test_draws_have_the_moments_of_their_distribution(kind: str, mean: float, variance: float) -> None:
    count = 40_000
    drawn = draw(Streams(seed=0).bind(3), kind, size=count).double()
    assert drawn.dtype == torch.float64
    error = 5 * math.sqrt(variance / count)
    for own in drawn:
        assert float(own.mean()) == pytest.approx(mean, abs=error)
        assert float(own.var()) == pytest.approx(variance, rel=0.05)
    correlation = torch.corrcoef(drawn) - torch.eye(3)
    assert float(correlation.abs().max()) < 5 / math.sqrt(count)


def test_uniform_numbers_lie_in_the_unit_interval() -> None:
    drawn = draw(Streams(seed=0).bind(2), "uniform", size=100_000)
    assert float(drawn.min()) >= 0
    assert float(drawn.max()) < 1


def test_whole_numbers_are_uniform_and_permutations_hold_everything_once() -> None:
    counts = Streams(seed=0).bind(1).integers("n", 5, (50_000,)).flatten().bincount(minlength=5)
    assert counts.shape == (5,)
    assert bool(((counts - 10_000).abs() < 500).all())
    orders = Streams(seed=0).bind(300).permutation("order", 4)
    assert bool((orders.sort(1).values == torch.arange(4)).all())
    assert len(orders.unique(dim=0)) == 24


def test_follows_format_and_device_of_another_tensor() -> None:
    streams = Streams(seed=0).bind(2)
    plain = streams.normal("a", (3, 4))
    assert plain.shape == (2, 3, 4)
    assert plain.dtype == torch.float32
    wide = streams.normal("a", (3, 4), like=torch.zeros(1, dtype=torch.float64))
    assert wide.dtype == torch.float64
    assert torch.equal(wide.float(), plain)


def test_streams_without_victims_say_what_to_do() -> None:
    with pytest.raises(ValueError, match="call bind"):
        draw(Streams(seed=0), "normal")
    with pytest.raises(ValueError, match="bound to 2 victims, but the stack holds 3"):
        Streams(seed=0).bind(2).bind(3)
    assert Streams(seed=0).bind(2).bind(2) == Streams(seed=0).bind(2)


def test_streams_on_the_device_draw_the_same_on_the_cpu() -> None:
    like, there = torch.zeros(()), Streams(seed=0, on_device=True).bind(2)
    for kind in ("normal", "uniform", "laplace"):
        own, usual = (getattr(s, kind)("a", (5,), like=like) for s in (there, Streams(seed=0).bind(2)))
        assert torch.equal(own, usual)
    assert there.fork("x").select([1]).on_device


@pytest.mark.parametrize(
    ("fill", "mean", "variance"),
    [(Tensor.normal_, 0.0, 1.0), (Tensor.uniform_, 0.5, 1 / 12), (_fill_laplace, 0.0, 2.0)],
    ids=["normal", "uniform", "laplace"],
)
def test_what_a_device_draws_has_the_right_distribution_and_depends_on_its_seed_alone(
    fill: Fill, mean: float, variance: float
) -> None:
    like, count = torch.zeros((), dtype=torch.float64), 100_000
    drawn = draw_there([5, 6], (count,), like=like, fill=fill)
    assert drawn.dtype == torch.float64
    assert torch.equal(drawn[1:], draw_there([6], (count,), like=like, fill=fill))
    for own in drawn:
        assert float(own.mean()) == pytest.approx(mean, abs=5 * math.sqrt(variance / count))
        assert float(own.var()) == pytest.approx(variance, rel=0.05)
    assert float(torch.corrcoef(drawn)[0, 1].abs()) < 5 / math.sqrt(count)
