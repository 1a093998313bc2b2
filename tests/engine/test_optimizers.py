import pytest
import torch
from slow_optimizers import Bowls, one_at_a_time
from torch import Tensor

from gradveil.engine import LBFGS, SGD, Adam, Optimizer, Runtime, Variable, minimize

CLOSE = 1e-9
TRACED = Runtime(trace=True)

OPTIMIZERS = [
    Adam(lr=0.05),
    Adam(lr=0.2, beta1=0.5, beta2=0.9, eps=1e-3),
    SGD(lr=0.02),
    SGD(lr=0.05, momentum=0.3),
    LBFGS(lr=0.3, inner=5),
    LBFGS(lr=0.1, inner=10, history=3),
    LBFGS(lr=1.0, inner=5, history=1),
]


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=str)
def test_equals_torch_one_victim_at_a_time(optimizer: Optimizer) -> None:
    bowls = Bowls()
    inner = optimizer.iterations(1)
    expected = one_at_a_time(bowls.one, bowls.start, optimizer, steps=50 // inner)

    found = minimize(bowls.all, [Variable(start=bowls.start)], optimizer=optimizer, steps=50 // inner, runtime=TRACED)

    torch.testing.assert_close(found.values[0], torch.stack([f.best for f in expected]), rtol=0, atol=CLOSE)
    path = torch.tensor([f.before for f in expected], dtype=torch.float64)
    torch.testing.assert_close(found.trace[:, ::inner], path, rtol=0, atol=CLOSE)
    objective = torch.tensor([f.objective for f in expected], dtype=torch.float64)
    torch.testing.assert_close(found.objective, objective, rtol=0, atol=CLOSE)
    assert not found.diverged.any()


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=str)
def test_a_stack_gives_what_each_victim_alone_gives(optimizer: Optimizer) -> None:
    bowls = Bowls()
    steps = 50 // optimizer.iterations(1)
    together = minimize(bowls.all, [Variable(start=bowls.start)], optimizer=optimizer, steps=steps)
    for victim in range(len(bowls.start)):

        def alone(variables: tuple[Tensor, ...], own: int = victim) -> Tensor:
            return bowls.one(variables[0][0], own)[None]

        one = minimize(alone, [Variable(start=bowls.start[victim : victim + 1])], optimizer=optimizer, steps=steps)
        torch.testing.assert_close(one.values[0][0], together.values[0][victim], rtol=0, atol=CLOSE)
        assert int(one.steps) == int(together.steps[victim])


def test_lbfgs_victims_stop_each_at_their_own_time() -> None:
    bowls = Bowls()
    optimizer = LBFGS(lr=0.7, inner=8, history=4, tolerance_change=1e-15)
    start = bowls.start.clone()
    start[1] = bowls.centers[1] + 1e-3 * bowls.start[1]
    start[2] = bowls.centers[2]
    expected = one_at_a_time(bowls.one, start, optimizer, steps=12)

    found = minimize(bowls.all, [Variable(start=start)], optimizer=optimizer, steps=12, runtime=TRACED)

    torch.testing.assert_close(found.values[0], torch.stack([f.best for f in expected]), rtol=0, atol=CLOSE)
    torch.testing.assert_close(found.trace[:, ::8], torch.tensor([f.before for f in expected], dtype=torch.float64))
    assert int(found.steps[2]) == 1
    assert len(set(found.steps.tolist())) >= 3
    assert int(found.steps.max()) < 96


def test_lbfgs_waits_for_the_next_step_when_its_change_is_small() -> None:
    bowls = Bowls()
    optimizer = LBFGS(lr=0.5, inner=6, history=5, tolerance_change=3e-2, tolerance_grad=0.0)
    expected = one_at_a_time(bowls.one, bowls.start, optimizer, steps=8)
    found = minimize(bowls.all, [Variable(start=bowls.start)], optimizer=optimizer, steps=8, runtime=TRACED)
    path = torch.tensor([f.before for f in expected], dtype=torch.float64)
    torch.testing.assert_close(found.trace[:, ::6], path, rtol=0, atol=CLOSE)
    repeated = found.trace[:, 1:] == found.trace[:, :-1]
    assert repeated.any()
    assert not repeated.all()


def test_several_variables_of_any_shape_move_together() -> None:
    bowls = Bowls(size=8)

    def objective(variables: tuple[Tensor, ...]) -> Tensor:
        return bowls.all((torch.cat([variables[0].flatten(1), variables[1]], 1),))

    parts = [Variable(start=bowls.start[:, :6].reshape(4, 1, 2, 3)), Variable(start=bowls.start[:, 6:])]
    for optimizer in (Adam(lr=0.1), SGD(lr=0.02), LBFGS(lr=0.5, inner=5, history=3)):
        steps = 30 // optimizer.iterations(1)
        whole = minimize(bowls.all, [Variable(start=bowls.start)], optimizer=optimizer, steps=steps)
        split = minimize(objective, parts, optimizer=optimizer, steps=steps)
        assert split.values[0].shape == (4, 1, 2, 3)
        joined = torch.cat([split.values[0].flatten(1), split.values[1]], 1)
        torch.testing.assert_close(joined, whole.values[0], rtol=0, atol=CLOSE)
