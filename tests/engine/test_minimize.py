from dataclasses import replace

import pytest
import torch
from slow_optimizers import Bowls
from torch import Tensor

from gradveil.engine import LBFGS, SGD, Adam, Minimum, Optimizer, Runtime, Variable, minimize

PLAIN = SGD(lr=0.125, momentum=0.0)
"""Moves by an eighth of the gradient: exact in binary."""

EVERY = [Adam(lr=0.1), SGD(lr=0.02), LBFGS(lr=0.5, inner=5, history=3)]


def tilt(variables: tuple[Tensor, ...]) -> Tensor:
    """Slope one everywhere: plain descent with the rate r goes down by r a step."""
    return variables[0].sum(1)


def zeros(victims: int = 2, size: int = 3) -> Tensor:
    return torch.zeros(victims, size, dtype=torch.float64)


def test_signed_steps_have_the_length_of_the_learning_rate() -> None:
    def steep(variables: tuple[Tensor, ...]) -> Tensor:
        return 1000 * variables[0].sum(1) - variables[1].sum(1)

    variables = [Variable(start=zeros(), signed=True), Variable(start=zeros())]
    found = minimize(steep, variables, optimizer=PLAIN, steps=4)
    assert torch.equal(found.values[0], zeros() - 4 * 0.125)
    assert torch.equal(found.values[1], zeros() + 4 * 0.125)


def test_stays_in_the_box_on_either_side() -> None:
    low, high = torch.tensor([-0.25, -10.0, -10.0]).double(), torch.tensor([10.0, 10.0, 0.25]).double()

    def saddle(variables: tuple[Tensor, ...]) -> Tensor:
        return variables[0][:, 0] + variables[0][:, 1] - variables[0][:, 2]

    found = minimize(saddle, [Variable(start=zeros(), low=low, high=high)], optimizer=PLAIN, steps=8)
    assert torch.equal(found.values[0], torch.tensor([[-0.25, -1.0, 0.25]] * 2, dtype=torch.float64))
    below = minimize(saddle, [Variable(start=zeros(), low=low)], optimizer=PLAIN, steps=8)
    assert torch.equal(below.values[0], torch.tensor([[-0.25, -1.0, 1.0]] * 2, dtype=torch.float64))


def test_decays_at_three_five_and_seven_eighths_of_the_steps() -> None:
    found = minimize(tilt, [Variable(start=zeros())], optimizer=PLAIN, steps=16, decay=True)
    expected = -0.125 * (6 * 1 + 4 * 0.1 + 4 * 0.01 + 2 * 0.001)
    torch.testing.assert_close(found.values[0], zeros() + expected, rtol=1e-12, atol=0)


def test_decay_counts_the_outer_steps_of_lbfgs() -> None:
    visited: list[float] = []

    def objective(variables: tuple[Tensor, ...]) -> Tensor:
        visited.append(variables[0].detach().item())
        return tilt(variables)

    # On a slope nothing bends, so that every step but the first goes the full rate down.
    minimize(objective, [Variable(start=zeros(1, 1))], optimizer=LBFGS(inner=4), steps=10, decay=True)
    lengths = -torch.tensor(visited).diff()
    expected = torch.cat([torch.full((4 * n,), rate) for n, rate in ((3, 1.0), (3, 0.1), (2, 0.01), (2, 0.001))])
    torch.testing.assert_close(lengths, expected, rtol=1e-4, atol=1e-6)


def test_keeps_the_best_iterate_by_the_objective() -> None:
    visited: list[Tensor] = []

    def bumpy(variables: tuple[Tensor, ...]) -> Tensor:
        visited.append(variables[0].detach().clone())
        return (3 * variables[0]).sin().sum(1) + variables[0].square().sum(1) / 8

    start = torch.linspace(-3, 3, 12, dtype=torch.float64).view(4, 3)
    found = minimize(bumpy, [Variable(start=start)], optimizer=SGD(lr=0.4), steps=25, runtime=Runtime(trace=True))
    values = torch.stack([bumpy((point,)) for point in list(visited)])
    assert torch.equal(found.objective, values.amin(0))
    best = torch.stack(visited)[values.argmin(0), torch.arange(4)]
    assert torch.equal(found.values[0], best)
    assert (values.argmin(0) < 25).any()
    assert torch.equal(found.trace, values[:25].T)


def test_judges_the_last_move_too() -> None:
    found = minimize(tilt, [Variable(start=zeros())], optimizer=PLAIN, steps=3)
    assert torch.equal(found.values[0], zeros() - 3 * 0.125)
    assert torch.equal(found.objective, torch.full((2,), -9 * 0.125, dtype=torch.float64))


@pytest.mark.parametrize("optimizer", EVERY, ids=str)
def test_a_victim_below_the_mark_stops_and_the_others_go_on(optimizer: Optimizer) -> None:
    bowls = Bowls()
    steps = 200 // optimizer.iterations(1)
    start = [Variable(start=bowls.start)]
    runtime = Runtime(trace=True)
    full = minimize(bowls.all, start, optimizer=optimizer, steps=steps, runtime=runtime)
    mark = float(full.trace.sort(1).values[:, 150].mean())
    found = minimize(bowls.all, start, optimizer=optimizer, steps=steps, stop_below=mark, runtime=runtime)
    for victim, trace in enumerate(full.trace):
        below = (trace < mark).nonzero().flatten()
        used = int(below[0]) + 1 if len(below) else 200
        assert int(found.steps[victim]) == used
        torch.testing.assert_close(found.trace[victim, :used], trace[:used], rtol=0, atol=1e-12)
        assert bool((found.trace[victim, used:] == found.trace[victim, used - 1]).all())
    assert len(set(found.steps.tolist())) > 1


@pytest.mark.parametrize("optimizer", EVERY, ids=str)
@pytest.mark.parametrize("place", ["objective", "gradient"])
def test_a_victim_that_diverges_keeps_its_best_and_disturbs_nobody(optimizer: Optimizer, place: str) -> None:
    bowls = Bowls()
    steps = 60 // optimizer.iterations(1)
    seen: list[Tensor] = []
    second = torch.tensor([False, True, False, False])

    def breaking(variables: tuple[Tensor, ...]) -> Tensor:
        seen.append(variables[0].detach()[1].clone())
        values = bowls.all(variables)
        if len(seen) <= 10:
            return values
        if place == "objective":
            return torch.where(second, torch.nan, values)
        # The root of a square has no derivative at zero, where it is.
        zero = (variables[0] - variables[0].detach()).sum(1)
        return values + torch.where(second, zero, 1.0).square().sqrt() - (~second).double()

    whole = minimize(bowls.all, [Variable(start=bowls.start)], optimizer=optimizer, steps=steps)
    found = minimize(breaking, [Variable(start=bowls.start)], optimizer=optimizer, steps=steps)

    assert found.diverged.tolist() == [False, True, False, False]
    assert not whole.diverged.any()
    assert int(found.steps[1]) == 11
    others = [0, 2, 3]
    assert torch.equal(found.values[0][others], whole.values[0][others])
    assert torch.equal(found.steps[others], whole.steps[others])
    objectives = torch.stack([bowls.one(point, 1) for point in seen[:10]])
    assert torch.equal(found.values[0][1], seen[int(objectives.argmin())])
    assert float(found.objective[1]) == pytest.approx(float(objectives.min()), abs=1e-12)


def test_a_victim_without_any_finite_objective_returns_its_start() -> None:
    found = minimize(
        lambda v: torch.where(torch.tensor([True, False]), torch.nan, v[0].sum(1)),
        [Variable(start=zeros() + 7)],
        optimizer=Adam(),
        steps=5,
    )
    assert torch.equal(found.values[0][0], zeros()[0] + 7)
    assert found.objective[0] == torch.inf
    assert found.diverged.tolist() == [True, False]


def test_ends_early_when_nobody_is_left_and_fills_the_trace() -> None:
    calls = 0

    def objective(variables: tuple[Tensor, ...]) -> Tensor:
        nonlocal calls
        calls += 1
        return tilt(variables)

    runtime = Runtime(trace=True)
    start = [Variable(start=zeros())]
    found = minimize(objective, start, optimizer=PLAIN, steps=1000, stop_below=-1.0, runtime=runtime)
    assert calls <= 51
    assert found.trace.shape == (2, 1000)
    assert torch.equal(found.trace[:, 4:], found.trace[:, 3:4].expand(2, 996))
    assert found.steps.tolist() == [4, 4]


def test_keeps_no_trace_unless_asked() -> None:
    assert minimize(tilt, [Variable(start=zeros())], optimizer=PLAIN, steps=3).trace.shape == (2, 0)


def test_reports_progress_up_to_the_total() -> None:
    reports: list[tuple[str, int, int]] = []
    runtime = Runtime(progress=lambda *report: reports.append(report), name="cell/0-2")
    minimize(tilt, [Variable(start=zeros())], optimizer=LBFGS(inner=20), steps=6, runtime=runtime)
    assert {name for name, _, _ in reports} == {"cell/0-2"}
    assert [done for _, done, _ in reports] == sorted(done for _, done, _ in reports)
    assert reports[0][1:] == (50, 120)
    assert reports[-1][1:] == (120, 120)


def test_leaves_the_start_alone_and_captures_nothing_on_a_cpu() -> None:
    start = zeros()
    found = minimize(tilt, [Variable(start=start)], optimizer=Adam(), steps=3)
    assert torch.equal(start, zeros())
    assert not found.captured
    assert not any(tensor.requires_grad for tensor in tensors(found))


def test_works_where_gradients_are_switched_off() -> None:
    with torch.no_grad():
        found = minimize(tilt, [Variable(start=zeros())], optimizer=PLAIN, steps=2)
    assert torch.equal(found.values[0], zeros() - 0.25)


def test_a_probe_takes_a_few_steps_alone() -> None:
    calls = 0

    def objective(variables: tuple[Tensor, ...]) -> Tensor:
        nonlocal calls
        calls += 1
        return tilt(variables)

    minimize(objective, [Variable(start=zeros())], optimizer=PLAIN, steps=1000, runtime=Runtime().probing(2))
    assert calls == 2


SCHEDULES = ((40, True, 1.0, True), (16, True, 0.25, False), (60, False, 0.5, False), (24, True, 2.0, True))
"""Steps, decay, rate and sign of each victim."""


@pytest.mark.parametrize("optimizer", EVERY, ids=str)
def test_a_stack_of_schedules_gives_what_each_alone_gives(optimizer: Optimizer) -> None:
    bowls, inner = Bowls(), optimizer.iterations(1)
    lengths = [length // inner for length, _, _, _ in SCHEDULES]
    together = minimize(
        bowls.all,
        [Variable(start=bowls.start, signed=torch.tensor([sign for _, _, _, sign in SCHEDULES]))],
        optimizer=optimizer,
        steps=lengths,
        decay=[decays for _, decays, _, _ in SCHEDULES],
        rates=torch.tensor([rate for _, _, rate, _ in SCHEDULES]),
        stop_below=torch.tensor([-torch.inf, -torch.inf, 0.05, -torch.inf]).double(),
    )
    for victim, (_, decays, rate, sign) in enumerate(SCHEDULES):

        def alone(variables: tuple[Tensor, ...], own: int = victim) -> Tensor:
            return bowls.one(variables[0][0], own)[None]

        one = minimize(
            alone,
            [Variable(start=bowls.start[victim : victim + 1], signed=sign)],
            optimizer=replace(optimizer, lr=rate * optimizer.lr),  # type: ignore[type-var]
            steps=lengths[victim],
            decay=decays,
            stop_below=0.05 if victim == 2 else None,
        )
        torch.testing.assert_close(one.values[0][0], together.values[0][victim], rtol=0, atol=1e-11)
        torch.testing.assert_close(one.objective[0], together.objective[victim], rtol=0, atol=1e-11)
        assert int(one.steps) == int(together.steps[victim])


def test_victims_of_one_rate_decay_each_at_its_own_time() -> None:
    found = minimize(tilt, [Variable(start=zeros())], optimizer=PLAIN, steps=16, decay=[True, False])
    expected = torch.tensor([[6 * 1 + 4 * 0.1 + 4 * 0.01 + 2 * 0.001], [16.0]]).double()
    torch.testing.assert_close(found.values[0], -0.125 * expected.expand(2, 3), rtol=1e-7, atol=0)


def test_a_victim_that_has_ended_is_judged_where_it_stands() -> None:
    found = minimize(tilt, [Variable(start=zeros())], optimizer=PLAIN, steps=[2, 5], runtime=Runtime(trace=True))
    assert torch.equal(found.values[0], -0.125 * torch.tensor([[2.0], [5.0]]).double().expand(2, 3))
    assert found.steps.tolist() == [2, 5]
    assert found.trace.shape == (2, 5)


def tensors(found: Minimum) -> list[Tensor]:
    return [*found.values, found.objective, found.diverged, found.steps, found.trace]
