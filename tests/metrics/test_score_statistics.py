import numpy as np
import numpy.typing as npt
import pytest

from gradveil.metrics import bootstrap_interval, cap, ppc, reach_of_chance, summary


def test_sums_up_and_knows_which_end_is_the_worst_case() -> None:
    scores = np.array([[10.0, 14.0], [12.0, 20.0]])
    found = summary(scores)
    assert (found.count, found.mean, found.median, found.worst, found.best) == (4, 14.0, 13.0, 20.0, 10.0)
    assert found.std == pytest.approx(np.std(scores, ddof=1))
    assert (summary(scores, higher_is_better=False).worst, summary([3.0]).std) == (10.0, 0.0)
    with pytest.raises(ValueError, match="at least 1 score"):
        summary([])


def test_interval_covers_the_mean_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(0)
    intervals = [bootstrap_interval(rng.normal(size=40), level=0.9, resamples=300) for _ in range(300)]
    assert np.mean([low <= 0 <= high for low, high in intervals]) == pytest.approx(0.9, abs=0.05)


def test_interval_is_the_same_for_the_same_seed() -> None:
    values = np.random.default_rng(0).normal(size=20)
    assert bootstrap_interval(values) == bootstrap_interval(values)
    assert bootstrap_interval(values, seed=1) != bootstrap_interval(values)
    with pytest.raises(ValueError, match="level"):
        bootstrap_interval(values, level=95)


def test_reach_of_many_null_values_is_the_percentile_of_the_largest() -> None:
    rng = np.random.default_rng(0)
    null = rng.normal(size=20_000)
    largest = rng.choice(null, size=(20_000, 8)).max(1)
    assert np.mean(largest <= reach_of_chance(null, count=8)) == pytest.approx(0.99, abs=0.002)


DRAWS = {
    "normal": lambda rng, size: rng.normal(size=size),
    "exponential": lambda rng, size: rng.exponential(size=size),
    "skewed": lambda rng, size: rng.gumbel(size=size),
    "bounded": lambda rng, size: rng.uniform(size=size),
}


@pytest.mark.parametrize("kind", DRAWS)
@pytest.mark.parametrize("draws", [1, 5, 100])
def test_chance_seldom_exceeds_its_reach(kind: str, draws: int) -> None:
    rng, runs, victims = np.random.default_rng(0), 1000, 8
    null: npt.NDArray[np.float64] = DRAWS[kind](rng, (runs, draws * victims))
    largest = DRAWS[kind](rng, (runs, victims)).max(1)
    reach = np.array([reach_of_chance(row, count=victims) for row in null])
    assert np.mean(largest > reach) < 0.03


def test_reach_of_a_single_null_value_is_unknown() -> None:
    assert reach_of_chance([0.3], count=1) == float("inf")


def test_cap_averages_accuracy_times_distance() -> None:
    accuracies, distances = [0.8, 0.6, 0.1], [0.1, 0.5, 1.0]
    assert cap(accuracies, distances) == pytest.approx((0.08 + 0.3 + 0.1) / 3)
    assert [point.accuracy for point in ppc(accuracies, distances)] == sorted(accuracies)
    with pytest.raises(ValueError, match="one distance per accuracy"):
        cap([0.5], [1.0, 2.0])
