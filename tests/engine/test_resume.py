from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch
from slow_optimizers import Bowls
from torch import Tensor

from gradveil.engine import LBFGS, SGD, Adam, Minimum, Optimizer, Runtime, Store, Variable, minimize
from gradveil.storage import TensorFolder

EVERY = [Adam(lr=0.02), SGD(lr=0.002), LBFGS(lr=0.05, inner=20, history=7)]
STEPS = 180


class KilledError(Exception):
    pass


def run(
    optimizer: Optimizer,
    store: Store | None,
    *,
    dies_at: int = 10**9,
    steps: int = STEPS,
    trace: bool = True,
    objective: Callable[[tuple[Tensor, ...]], Tensor] | None = None,
) -> Minimum:
    """Minimize with a checkpoint at every look; die at some evaluation."""
    bowls, calls = Bowls(), 0

    def mortal(variables: tuple[Tensor, ...]) -> Tensor:
        nonlocal calls
        calls += 1
        if calls == dies_at:
            raise KilledError
        return (objective or bowls.all)(variables)

    return minimize(
        mortal,
        [Variable(start=bowls.start, low=torch.tensor(-2.0).double(), high=torch.tensor(2.0).double())],
        optimizer=optimizer,
        steps=steps // optimizer.iterations(1),
        decay=True,
        stop_below=1e-4,
        runtime=Runtime(store=store, save_every=-1.0, trace=trace, name="attack/0-4"),
    )


def same(first: Minimum, second: Minimum) -> bool:
    pairs = zip(
        (*first.values, first.objective, first.diverged, first.steps, first.trace),
        (*second.values, second.objective, second.diverged, second.steps, second.trace),
        strict=True,
    )
    return all(bool(((a == b) | a.isnan() & b.isnan()).all()) for a, b in pairs)


@cache
def undisturbed(optimizer: Optimizer) -> Minimum:
    return run(optimizer, None)


@pytest.mark.parametrize("dies_at", [1, 51, 149, 181])
@pytest.mark.parametrize("optimizer", EVERY, ids=str)
def test_a_killed_run_resumes_to_the_same_bits(optimizer: Optimizer, dies_at: int, tmp_path: Path) -> None:
    store = TensorFolder(tmp_path / "states")
    with pytest.raises(KilledError):
        run(optimizer, store, dies_at=dies_at)
    assert bool(list(tmp_path.rglob("*.safetensors"))) == (dies_at > 50)
    assert same(run(optimizer, store), undisturbed(optimizer))


def test_dying_again_and_again_still_gets_there(tmp_path: Path) -> None:
    store, deaths = TensorFolder(tmp_path), 0
    while True:
        try:
            found = run(Adam(lr=0.02), store, dies_at=60)
            break
        except KilledError:
            deaths += 1
    assert deaths == 3
    assert same(found, undisturbed(Adam(lr=0.02)))


def test_dying_in_the_progress_report_loses_nothing(tmp_path: Path) -> None:
    bowls = Bowls()

    def go(store: Store | None, dies_at: int) -> Minimum:
        def progress(_task: str, done: int, _total: int) -> None:
            if done == dies_at:
                raise KilledError

        runtime = Runtime(store=store, save_every=-1.0, progress=progress)
        return minimize(bowls.all, [Variable(start=bowls.start)], optimizer=Adam(), steps=150, runtime=runtime)

    for dies_at in (50, 100, 150):
        with pytest.raises(KilledError):
            go(TensorFolder(tmp_path), dies_at)
    assert same(go(TensorFolder(tmp_path), -1), go(None, -1))


def test_victims_that_diverged_or_stopped_are_remembered(tmp_path: Path) -> None:
    def breaking(variables: tuple[Tensor, ...]) -> Tensor:
        values = Bowls().all(variables)
        return torch.where(torch.tensor([False, True, False, False]), torch.nan, values)

    store = TensorFolder(tmp_path)
    with pytest.raises(KilledError):
        run(Adam(), store, dies_at=70, objective=breaking)
    found = run(Adam(), store, objective=breaking)
    assert found.diverged.tolist() == [False, True, False, False]
    assert same(found, run(Adam(), None, objective=breaking))


def test_a_finished_run_is_not_run_again(tmp_path: Path) -> None:
    store = TensorFolder(tmp_path)
    first = run(SGD(lr=0.002), store)
    assert same(run(SGD(lr=0.002), store, dies_at=2), first)


@pytest.mark.parametrize("damage", ["empty", "cut", "noise"])
def test_a_damaged_checkpoint_is_ignored(damage: str, tmp_path: Path) -> None:
    store = TensorFolder(tmp_path)
    with pytest.raises(KilledError):
        run(Adam(), store, dies_at=70)
    (file,) = tmp_path.glob("*.safetensors")
    content = file.read_bytes()
    file.write_bytes({"empty": b"", "cut": content[: len(content) // 2], "noise": bytes(len(content))}[damage])
    assert same(run(Adam(), store), undisturbed(Adam()))


def test_a_checkpoint_of_another_computation_is_ignored(tmp_path: Path) -> None:
    others: list[Callable[[Store], object]] = [
        lambda store: run(SGD(lr=0.1), store, dies_at=70),
        lambda store: run(LBFGS(inner=20), store, dies_at=70),
        lambda store: run(Adam(), store, dies_at=70, steps=100),
        lambda store: run(Adam(), store, dies_at=70, trace=False),
        lambda store: store.save("attack/0-4", {}),
        lambda store: store.save("attack/0-4", {"done": torch.tensor(3)}),
    ]
    for number, other in enumerate(others):
        store = TensorFolder(tmp_path / str(number))
        if number < 4:
            with pytest.raises(KilledError):
                other(store)
        else:
            other(store)
        assert list((tmp_path / str(number)).iterdir())
        assert same(run(Adam(), store), undisturbed(Adam()))


def test_a_killed_run_of_several_schedules_resumes_to_the_same_bits(tmp_path: Path) -> None:
    bowls = Bowls()

    def go(store: Store | None, dies_at: int) -> Minimum:
        def progress(_task: str, done: int, _total: int) -> None:
            if done == dies_at:
                raise KilledError

        return minimize(
            bowls.all,
            [Variable(start=bowls.start)],
            optimizer=Adam(lr=0.02),
            steps=[60, 160, 40, 100],
            decay=[True, False, True, True],
            rates=torch.tensor([1.0, 2.0, 3.0, 4.0]),
            runtime=Runtime(store=store, save_every=-1.0, progress=progress, trace=True),
        )

    for dies_at in (100, 150):
        with pytest.raises(KilledError):
            go(TensorFolder(tmp_path), dies_at)
    assert same(go(TensorFolder(tmp_path), -1), go(None, -1))


def test_a_checkpoint_of_fewer_steps_is_ignored(tmp_path: Path) -> None:
    store = TensorFolder(tmp_path)
    run(Adam(), store, steps=100, trace=False)
    assert same(run(Adam(), store, trace=False), run(Adam(), None, trace=False))


def test_a_checkpoint_of_fewer_victims_is_not_spread_over_more(tmp_path: Path) -> None:
    bowls, store = Bowls(), TensorFolder(tmp_path)
    one = Variable(start=bowls.start[:1])
    runtime = Runtime(store=store)
    minimize(lambda v: v[0].square().sum(1), [one], optimizer=SGD(), steps=60, runtime=runtime)
    found = minimize(bowls.all, [Variable(start=bowls.start)], optimizer=SGD(), steps=60, runtime=runtime)
    assert same(found, minimize(bowls.all, [Variable(start=bowls.start)], optimizer=SGD(), steps=60))


def test_taking_a_state_from_a_store_does_not_change_it() -> None:
    class Memory:
        def __init__(self) -> None:
            self.kept: dict[str, dict[str, Tensor]] = {}

        def load(self, name: str) -> dict[str, Tensor] | None:
            return self.kept.get(name)

        def save(self, name: str, state: dict[str, Tensor]) -> None:
            self.kept[name] = {key: tensor.clone() for key, tensor in state.items()}

    store = Memory()
    with pytest.raises(KilledError):
        run(Adam(), store, dies_at=70)
    before = {key: tensor.clone() for key, tensor in store.kept["attack/0-4"].items()}
    with pytest.raises(KilledError):
        run(Adam(), store, dies_at=10)
    assert store.kept["attack/0-4"].keys() == before.keys()
    for key, tensor in before.items():
        torch.testing.assert_close(store.kept["attack/0-4"][key], tensor, rtol=0, atol=0, equal_nan=True)
