"""What only a GPU can show: captured steps, tf32, and both paths on its kernels."""

from dataclasses import replace
from typing import Literal

import pytest
import torch
import torch.nn.functional as F
from networks import CASES, CLASSES, SHAPE, Case, build
from slow_gradients import distance, relative_error, slow_matching
from slow_optimizers import Bowls
from torch import nn

from gradveil.attacks import DLG, Attack, GradientMatching, InvertingGradients
from gradveil.client import Client, step
from gradveil.engine import LBFGS, SGD, Adam, Optimizer, Runtime, Variable, minimize, trainable
from gradveil.engine._tapped import TappedGradients
from gradveil.engine._vmapped import VmappedGradients
from gradveil.models import build as architecture
from gradveil.streams import Streams
from gradveil.types import Batch, Knowledge, Mode, Observation

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.mark.parametrize("mode", ["eval", "train"])
@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_second_derivatives_equal_those_of_one_victim_on_a_cpu(case: Case, mode: Mode) -> None:
    model, generator = build(case), torch.Generator().manual_seed(2)
    inputs = torch.rand(3, 2, *SHAPE, generator=generator, dtype=torch.float64)
    labels = torch.randint(CLASSES, (3, 2), generator=generator)
    names = trainable(model)
    target = [torch.rand(3, *model.get_parameter(n).shape, generator=generator, dtype=torch.float64) for n in names]
    _, expected = slow_matching(model, inputs, labels, target, mode=mode)

    model.cuda()
    general = VmappedGradients(model, F.cross_entropy, names, mode, {}, {}, "float32")
    fast = TappedGradients(model, F.cross_entropy, names, mode, "float32")
    for function in (general, fast) if case.fast else (general,):
        leaf = inputs.cuda().requires_grad_()
        values = distance(function(leaf, labels.cuda()).gradients, [t.cuda() for t in target])
        (found,) = torch.autograd.grad(values.sum(), leaf)
        assert relative_error([found.cpu()], [expected]) <= 1e-9


@pytest.mark.parametrize("optimizer", [Adam(), SGD(), LBFGS(lr=0.3, inner=5, history=4)], ids=str)
def test_a_captured_step_equals_an_eager_one_and_the_cpu(optimizer: Optimizer) -> None:
    bowls = Bowls()
    steps = 120 // optimizer.iterations(1)
    variables = [Variable(start=bowls.start)]
    runtime = Runtime(trace=True)
    slow = minimize(
        bowls.all, variables, optimizer=optimizer, steps=steps, decay=True, stop_below=1e-3, runtime=runtime
    )
    bowls.weights, bowls.centers = bowls.weights.cuda(), bowls.centers.cuda()
    variables = [Variable(start=bowls.start.cuda())]
    for captured in (True, False):
        found = minimize(
            bowls.all,
            variables,
            optimizer=optimizer,
            steps=steps,
            decay=True,
            stop_below=1e-3,
            runtime=replace(runtime, capture=captured),
        )
        assert found.captured == captured
        torch.testing.assert_close(found.values[0].cpu(), slow.values[0], rtol=0, atol=1e-8)
        torch.testing.assert_close(found.trace.cpu(), slow.trace, rtol=0, atol=1e-8)
        assert torch.equal(found.steps.cpu(), slow.steps)


def observe(device: str) -> Observation:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = nn.Sequential(nn.Conv2d(1, 4, 3, 2), nn.Sigmoid(), nn.Flatten(), nn.Linear(36, 4)).double()
        batch = Batch(torch.rand(5, 1, 1, 8, 8).double(), torch.randint(4, (5, 1)))
    client = Client(model=model.to(device), loss=F.cross_entropy)
    streams = Streams(seed=0, purpose="client")
    return step(batch.to(device), client, streams=streams, knowledge=Knowledge.LABELS).observation


@pytest.mark.parametrize("attack", [DLG(steps=8, inner=5, lr=0.2, history=4), InvertingGradients(steps=40)], ids=str)
@pytest.mark.parametrize("chunk", [None, 2])
def test_an_attack_on_a_gpu_gives_what_it_gives_on_a_cpu(attack: Attack, chunk: int | None) -> None:
    slow = attack(observe("cpu"), streams=Streams(seed=4))
    found = attack(observe("cuda"), streams=Streams(seed=4), runtime=Runtime(chunk=chunk))
    assert found.captured
    torch.testing.assert_close(found.inputs.cpu(), slow.inputs, rtol=0, atol=1e-8)


def test_tf32_is_used_where_it_is_asked_for() -> None:
    generator = torch.Generator().manual_seed(0)
    matrix = torch.randn(512, 512, generator=generator).cuda()
    image, kernel = torch.randn(4, 64, 16, 16, generator=generator).cuda(), torch.randn(64, 64, 3, 3).cuda()
    exact = matrix.double() @ matrix.double(), F.conv2d(image.double(), kernel.double())
    for precision, low, high in (("float32", 0.0, 1e-6), ("tf32", 1e-5, 1e-2)):
        with Runtime(precision=precision).numerics():  # type: ignore[arg-type]
            found = matrix @ matrix, F.conv2d(image, kernel)
        for f, e in zip(found, exact, strict=True):
            assert low <= float((f - e).norm() / e.norm()) <= high


def test_measures_the_memory_of_the_device() -> None:
    guess = InvertingGradients(steps=2)(observe("cuda"), streams=Streams(seed=4))
    assert guess.chunk == 5


def test_an_operation_that_cannot_be_captured_runs_eagerly() -> None:
    def looks(variables: tuple[torch.Tensor, ...]) -> torch.Tensor:
        assert bool(torch.isfinite(variables[0].sum()))
        return variables[0].square().sum(1)

    found = minimize(looks, [Variable(start=torch.ones(2, 3).cuda())], optimizer=SGD(), steps=60)
    assert not found.captured
    assert float(found.objective.max()) < 1


def test_a_deterministic_run_repeats_its_bits() -> None:
    model = architecture("resnet20-4", input_shape=(3, 32, 32), num_classes=10).cuda().eval()
    generator = torch.Generator().manual_seed(0)
    batch = Batch(torch.rand(8, 1, 3, 32, 32, generator=generator), torch.arange(8)[:, None]).to("cuda")
    client, guesses = Client(model=model, loss=F.cross_entropy), []
    for _ in range(2):
        runtime = Runtime(deterministic=True)
        with runtime.numerics():
            seen = step(
                batch, client, streams=Streams(seed=0, purpose="client"), knowledge=Knowledge.LABELS
            ).observation
            guesses.append(InvertingGradients(steps=30)(seen, streams=Streams(seed=4), runtime=runtime))
    assert torch.equal(guesses[0].inputs, guesses[1].inputs)
    assert torch.equal(guesses[0].objective, guesses[1].objective)


@pytest.mark.parametrize("objective", ["cosine", "row-cosine"])
def test_bf16_matches_too(objective: Literal["cosine", "row-cosine"]) -> None:
    model = architecture("resnet20-4", input_shape=(3, 32, 32), num_classes=10).cuda().eval()
    generator = torch.Generator().manual_seed(0)
    batch = Batch(torch.rand(4, 1, 3, 32, 32, generator=generator), torch.arange(4)[:, None]).to("cuda")
    client = Client(model=model, loss=F.cross_entropy)
    seen = step(batch, client, streams=Streams(seed=0, purpose="client"), knowledge=Knowledge.LABELS).observation
    attack = GradientMatching(steps=60, objective=objective, signed=True, lr=0.1)
    coarse, fine = (
        attack(seen, streams=Streams(seed=4), runtime=Runtime(precision=precision)).objective
        for precision in ("bf16", "tf32")
    )
    assert float(coarse.mean()) < 0.5
    assert abs(float(coarse.mean() - fine.mean())) < 0.1
