"""Models that no map over victims takes: looped gradients, their slopes, attacks, and plain refusals."""

import doctest
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from slow_gradients import distance, one_at_a_time, relative_error, slow_matching
from torch import Tensor, nn

from gradveil.attacks import InvertingGradients
from gradveil.client import observe
from gradveil.engine import (
    gradient_function,
    looped,
    looped_fallback,
    matching,
    over_victims,
    patient_function,
    remarks_on,
    trainable,
    without_dropout,
)
from gradveil.engine.looped_fallback import PatientGradients
from gradveil.errors import UnsupportedModelError
from gradveil.streams import Streams
from gradveil.types import Batch, Knowledge, LocalTraining, Mode, Observation

CLASSES = 3


class Doubling(nn.Module):
    """Looks at a number, and goes another way for bright batches."""

    def forward(self, inputs: Tensor) -> Tensor:
        return 2 * inputs.square() if float(inputs.detach().mean()) > 0.5 else inputs


class Remembering(nn.Module):
    """Writes into its own buffer, in any mode, and uses what it wrote."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.ones((), dtype=torch.float64))

    def forward(self, inputs: Tensor) -> Tensor:
        self.seen.add_(inputs.mean())  # type: ignore[operator]
        return inputs * self.seen  # type: ignore[operator]


class _Cube(torch.autograd.Function):
    """An operation without a rule for maps, differentiable twice."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor) -> Tensor:
        ctx.save_for_backward(inputs)
        return inputs**3

    @staticmethod
    def backward(ctx: Any, *slopes: Any) -> Any:
        (inputs,) = ctx.saved_tensors
        return 3 * inputs.square() * slopes[0]


class Cubing(nn.Module):
    def forward(self, inputs: Tensor) -> Tensor:
        cubed: Tensor = _Cube.apply(inputs)  # type: ignore[no-untyped-call]
        return cubed


class Selecting(nn.Module):
    """Makes a tensor whose shape depends on numbers."""

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs * inputs[inputs > 0.5].mean()


PARTS: dict[str, type[nn.Module]] = {
    "branch": Doubling,
    "in-place": Remembering,
    "no rule": Cubing,
    "selection": Selecting,
}


def network(part: nn.Module | None = None, *, normed: bool = False) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(6)
        layers = [nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2) if normed else nn.Identity(), nn.Tanh(), nn.Flatten()]
        return nn.Sequential(part or nn.Identity(), *layers, nn.Linear(8, CLASSES)).double()


def batch(victims: int = 3) -> Batch:
    streams = Streams(seed=31, purpose="test").bind(victims)
    scale = torch.linspace(0.6, 1.4, victims, dtype=torch.float64).view(-1, 1, 1, 1, 1)  # dark victims and bright ones
    inputs = (streams.uniform("inputs", (4, 1, 4, 4)).double() * scale).clamp(max=1)
    return Batch(inputs, streams.integers("labels", CLASSES, (4,)))


@pytest.mark.parametrize("mode", ["eval", "train"])
@pytest.mark.parametrize("name", PARTS)
def test_gradients_and_their_slopes_are_those_of_plain_autograd(name: str, mode: Mode) -> None:
    model, data = network(PARTS[name](), normed=True), batch()
    names = trainable(model)
    with pytest.raises(UnsupportedModelError, match=rf"module 0 \({PARTS[name].__name__}\)"):
        gradient_function(model, F.cross_entropy, names=names, mode=mode)(data.inputs, data.labels)
    function = patient_function(model, F.cross_entropy, names=names, mode=mode, precision="float32")
    before = {key: tensor.clone() for key, tensor in model.state_dict().items()}

    found, wanted = function(data.inputs, data.labels), one_at_a_time(model, data.inputs, data.labels, mode=mode)
    assert relative_error(found.gradients, wanted.gradients) < 1e-12
    assert relative_error([found.losses, found.outputs], [wanted.losses, wanted.outputs]) < 1e-12
    for key in found.buffers:
        assert relative_error([found.buffers[key]], [wanted.buffers[key]]) < 1e-12
    assert ("0.seen" in found.buffers) == (name == "in-place" and mode == "train")

    target = [gradient.roll(1, 0) for gradient in wanted.gradients]
    inputs = data.inputs.clone().requires_grad_()
    values = distance(function(inputs, data.labels).gradients, target)
    (slopes,) = torch.autograd.grad(values.sum(), inputs)
    slow_values, slow_slopes = slow_matching(model, data.inputs, data.labels, target, mode=mode)
    assert relative_error([values], [slow_values]) < 1e-12
    assert relative_error([slopes], [slow_slopes]) < 1e-10
    assert all(torch.equal(tensor, before[key]) for key, tensor in model.state_dict().items())


def test_the_branches_of_the_test_go_both_ways() -> None:
    bright = [float(own.mean()) > 0.5 for own in batch().inputs]
    assert len(set(bright)) == 2


def test_a_model_that_can_be_mapped_is_mapped() -> None:
    function = patient_function(network(), F.cross_entropy, names=trainable(network()))
    function(batch().inputs, batch().labels)
    assert isinstance(function, PatientGradients)
    assert not function._one_by_one


def seen(model: nn.Module, *, local: LocalTraining | None = None, mode: Mode = "eval", size: int = 4) -> Observation:
    some = Batch(batch().inputs[:, :size], batch().labels[:, :size])
    knowledge = Knowledge.LABELS | (Knowledge.NOTHING if local is None else Knowledge.LOCAL_TRAINING)
    return observe(some, model, F.cross_entropy, local=local, mode=mode, knowledge=knowledge, seed=2)


class Idle(nn.Module):
    """Looks at a number for nothing: mapped over victims without it, looped with it."""

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs if float(inputs.detach().sum()) < 1e9 else -inputs


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_local_training_is_unrolled_one_victim_after_another_too(optimizer: Any) -> None:
    local = LocalTraining(optimizer=optimizer, lr=0.3, steps=3, local_batch_size=2, shares="difference")
    slopes = []
    for part in (nn.Identity(), Idle()):
        compare = matching(seen(network(part), local=local), precision="float32")
        inputs = batch().inputs.clone().requires_grad_()
        values = distance(compare.gradients(inputs.flip(1), batch().labels), compare.target)
        slopes.append(torch.autograd.grad(values.sum(), inputs)[0])
    assert relative_error([slopes[1]], [slopes[0]]) < 1e-9


def test_an_attack_finds_in_a_loop_what_it_finds_in_a_stack() -> None:
    attack, streams = InvertingGradients(steps=40, signed=False), Streams(seed=5, purpose="attack")
    stack = attack(seen(network(), size=1), streams=streams)
    found = attack(seen(network(Idle()), size=1), streams=streams)
    assert relative_error([found.inputs], [stack.inputs]) < 1e-6
    alone = attack(seen(network(Idle()), size=1).select([1]), streams=streams.bind(3).select([1]))
    assert torch.equal(alone.inputs, found.inputs[1:2])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_takes_the_loop_eagerly_and_the_map_as_a_graph() -> None:
    attack, streams = InvertingGradients(steps=40, signed=False), Streams(seed=5, purpose="attack")
    wanted = attack(seen(network(), size=1), streams=streams)
    for part, captured in ((nn.Identity(), True), (Idle(), False)):
        observation = seen(network(part), size=1)
        update, labels = tuple(t.cuda() for t in observation.update), observation.labels
        assert labels is not None
        there = replace(observation, model=observation.model.cuda(), update=update, labels=labels.cuda())
        found = attack(there, streams=streams)
        assert found.captured == captured
        assert relative_error([found.inputs.cpu()], [wanted.inputs]) < 1e-6


def test_an_attack_comes_near_the_images_behind_such_a_model() -> None:
    observation = seen(network(Doubling()), size=1)
    found = InvertingGradients(steps=100, lr=0.05, tv=0.0)(observation, streams=Streams(seed=9, purpose="attack"))
    error = (found.inputs - batch().inputs[:, :1]).square().mean()
    assert error < (0.5 - batch().inputs[:, :1]).square().mean() / 3


def test_an_operation_without_a_second_derivative_is_refused_in_one_sentence() -> None:
    class Prototypes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.centers = nn.Parameter(torch.eye(CLASSES, dtype=torch.float64))

        def forward(self, inputs: Tensor) -> Tensor:
            return -torch.cdist(inputs, self.centers)

    for part in (Prototypes(), nn.Sequential(Idle(), Prototypes())):
        observation = seen(nn.Sequential(*network().children(), part), size=1)
        with pytest.raises(UnsupportedModelError, match=r"^the gradient of .* no slope to follow \(.*_cdist_") as found:
            InvertingGradients(steps=2)(observation, streams=Streams(purpose="attack"))
        assert "\n" not in str(found.value)


class FunctionalDropout(nn.Module):
    def forward(self, inputs: Tensor) -> Tensor:
        return F.dropout(inputs, 0.5, self.training)


def test_random_operations_repeat_and_leave_the_global_state_alone() -> None:
    model, data = network(FunctionalDropout()), batch()
    function = patient_function(model, F.cross_entropy, names=trainable(model), mode="train", precision="float32")
    before = torch.get_rng_state()
    first, second = (function(data.inputs, data.labels).gradients for _ in range(2))
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    alone = function(data.inputs[2:], data.labels[2:]).gradients
    assert all(torch.equal(a[2:], b) for a, b in zip(first, alone, strict=True))
    still = patient_function(model, F.cross_entropy, names=trainable(model), precision="float32")
    assert relative_error(first, still(data.inputs, data.labels).gradients) > 0.1


def test_an_adversary_leaves_dropout_layers_out_and_says_so() -> None:
    dropping = seen(network(nn.Dropout(0.5)), mode="train", size=2)
    plain = replace(dropping, model=network())
    attack, streams = InvertingGradients(steps=20, signed=False), Streams(seed=1, purpose="attack")
    found, wanted = attack(dropping, streams=streams), attack(plain, streams=streams)
    assert relative_error([found.inputs], [wanted.inputs]) < 1e-6
    assert isinstance(dropping.model[0], nn.Dropout)  # type: ignore[index]
    assert dropping.model[0].p == 0.5  # type: ignore[index]
    (remark,) = remarks_on(dropping)
    assert "left dropout out" in remark
    assert remarks_on(replace(dropping, mode="eval")) == remarks_on(plain) == []


def test_the_remark_names_the_module() -> None:
    (remark,) = remarks_on(seen(network(Doubling())))
    assert remark.startswith("the victims were attacked one after another: module 0 (Doubling)")
    soft = replace(seen(network()), loss=lambda outputs, labels: -(labels * outputs.log_softmax(-1)).sum(-1).mean())
    assert remarks_on(soft) == []


def test_a_forward_pass_is_looped_where_it_cannot_be_mapped() -> None:
    own = {"w": torch.arange(3.0)}
    inputs = torch.rand(3, 2, generator=torch.Generator().manual_seed(0))

    def of_one(state: Any, given: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        return given * float(state["w"]), {"sum": given.sum()}

    product, parts = over_victims(of_one, own, inputs)
    assert torch.equal(product, inputs * own["w"][:, None])
    assert torch.equal(parts["sum"], inputs.sum(1))


@pytest.mark.parametrize("module", [looped, looped_fallback], ids=lambda module: module.__name__)
def test_the_examples_run(module: Any) -> None:
    failed, tried = doctest.testmod(module)
    assert failed == 0
    assert tried > 0


def test_dropout_inside_is_switched_off() -> None:
    model = without_dropout(nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Dropout2d(0.3))))
    assert [layer.p for layer in model.modules() if isinstance(layer, nn.Dropout2d)] == [0.0]
