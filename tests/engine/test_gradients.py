import copy

import pytest
import torch
import torch.nn.functional as F
from networks import BY_NAME, CASES, CLASSES, SHAPE, Case, build
from slow_gradients import distance, one_at_a_time, relative_error, slow_matching
from torch import Tensor, nn

from gradveil.engine import GradientFunction, stacked_gradients, trainable
from gradveil.engine._tapped import TappedGradients
from gradveil.engine._vmapped import VmappedGradients
from gradveil.types import Mode

VICTIMS = 3
EXACT = 1e-10


def general(model: nn.Module, mode: Mode) -> GradientFunction:
    return VmappedGradients(model, F.cross_entropy, trainable(model), mode, {}, {}, "float32")


def fast(model: nn.Module, mode: Mode) -> GradientFunction:
    return TappedGradients(model, F.cross_entropy, trainable(model), mode, "float32")


def victims(size: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(size)
    inputs = torch.rand((VICTIMS, size, *SHAPE), generator=generator, dtype=torch.float64)
    return inputs, torch.randint(CLASSES, (VICTIMS, size), generator=generator)


ROWS = [
    pytest.param(case, path, id=f"{case.name}-{path.__name__}")
    for case in CASES
    for path in ((general, fast) if case.fast else (general,))
]


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("mode", ["eval", "train"])
@pytest.mark.parametrize(("case", "path"), ROWS)
def test_equals_one_victim_at_a_time(case: Case, path: type, mode: Mode, size: int) -> None:
    if mode == "train" and size == 1 and not case.alone:
        pytest.skip("torch does not train this network on a batch of one")
    model, (inputs, labels) = build(case), victims(size)
    expected = one_at_a_time(model, inputs, labels, mode=mode)

    found = path(model, mode)(inputs, labels)

    assert relative_error(found.gradients, expected.gradients) <= EXACT
    torch.testing.assert_close(found.losses, expected.losses, rtol=EXACT, atol=0)
    torch.testing.assert_close(found.outputs, expected.outputs, rtol=EXACT, atol=EXACT)


@pytest.mark.parametrize("mode", ["eval", "train"])
@pytest.mark.parametrize(("case", "path"), ROWS)
def test_second_derivative_equals_one_victim_at_a_time(case: Case, path: type, mode: Mode) -> None:
    model, (inputs, labels) = build(case), victims(2)
    generator = torch.Generator().manual_seed(7)
    target = [
        torch.rand((VICTIMS, *p.shape), generator=generator, dtype=p.dtype)
        for p in model.parameters()
        if p.requires_grad
    ]
    losses, expected = slow_matching(model, inputs, labels, target, mode=mode)

    leaf = inputs.clone().requires_grad_()
    values = distance(path(model, mode)(leaf, labels).gradients, target)
    (found,) = torch.autograd.grad(values.sum(), leaf)

    torch.testing.assert_close(values.detach(), losses, rtol=EXACT, atol=0)
    assert relative_error([found], [expected]) <= EXACT


@pytest.mark.parametrize(("case", "path"), [row for row in ROWS if row.values[0].name.startswith("batch norm")])  # type: ignore[union-attr]
def test_new_running_statistics_are_those_of_a_plain_module(case: Case, path: type) -> None:
    model, (inputs, labels) = build(case), victims(3)
    expected = one_at_a_time(model, inputs, labels, mode="train").buffers
    found = path(model, "train")(inputs, labels).buffers
    statistics = {name for name in expected if "running" in name}
    assert set(found) == statistics
    for name in statistics:
        torch.testing.assert_close(found[name], expected[name], rtol=EXACT, atol=EXACT)


@pytest.mark.parametrize("mode", ["eval", "train"])
@pytest.mark.parametrize(("case", "path"), [row for row in ROWS if "norm" in str(row.id) or "block" in str(row.id)])
def test_leaves_the_model_alone(case: Case, path: type, mode: Mode) -> None:
    model, (inputs, labels) = build(case), victims(3)
    model.train(mode == "eval")
    next(model.children()).train(mode == "train")
    before = copy.deepcopy(model.state_dict())
    flags = [(module.training, len(module._forward_hooks)) for module in model.modules()]
    own, random = inputs.clone(), torch.get_rng_state()

    path(model, mode)(inputs.requires_grad_(), labels)

    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert flags == [(module.training, len(module._forward_hooks)) for module in model.modules()]
    assert all(parameter.grad is None for parameter in model.parameters())
    assert torch.equal(inputs, own)
    assert torch.equal(torch.get_rng_state(), random)


@pytest.mark.parametrize("path", [general, fast])
def test_takes_soft_labels_and_differentiates_by_them(path: type) -> None:
    model, (inputs, _) = build(BY_NAME["plain convolution"]), victims(2)
    logits = torch.randn(VICTIMS, 2, CLASSES, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    soft = logits.softmax(-1)
    expected = one_at_a_time(model, inputs, soft, mode="eval").gradients
    assert relative_error(path(model, "eval")(inputs, soft).gradients, expected) <= EXACT

    def slope(of: Tensor, victim: int, entry: tuple[int, int]) -> float:
        """Differentiate one matching loss by one logit, by central differences."""
        values = []
        for shift in (1e-5, -1e-5):
            moved = of.clone()
            moved[victim][entry] += shift
            trial = one_at_a_time(model, inputs, moved.softmax(-1), mode="eval").gradients
            values.append(float(distance(trial, [torch.ones_like(g) for g in trial])[victim]))
        return (values[0] - values[1]) / 2e-5

    leaf = logits.clone().requires_grad_()
    trial = path(model, "eval")(inputs, leaf.softmax(-1)).gradients
    (found,) = torch.autograd.grad(distance(trial, [torch.ones_like(g) for g in trial]).sum(), leaf)
    for victim, entry in ((0, (0, 0)), (2, (1, 3))):
        assert float(found[victim][entry]) == pytest.approx(slope(logits, victim, entry), rel=1e-6)


@pytest.mark.parametrize("mode", ["eval", "train"])
@pytest.mark.parametrize("shared", [(), ("0.weight",)], ids=["all stacked", "one shared"])
def test_victims_may_have_weights_and_buffers_of_their_own(mode: Mode, shared: tuple[str, ...]) -> None:
    model, (inputs, labels) = build(BY_NAME["frozen convolution"]), victims(3)
    models = [copy.deepcopy(model) for _ in range(VICTIMS)]
    for number, own in enumerate(models):
        for name, tensor in own.state_dict().items():
            if tensor.is_floating_point() and name not in shared:
                tensor.mul_(1 + 0.1 * number)
    stacks = [dict(own.named_parameters()) for own in models], [dict(own.named_buffers()) for own in models]
    parameters, buffers = (
        {name: torch.stack([s[name].detach() for s in stack]) for name in stack[0] if name not in shared}
        for stack in stacks
    )
    function = VmappedGradients(model, F.cross_entropy, trainable(model), mode, parameters, buffers, "float32")

    found, expected = function(inputs, labels), one_at_a_time(models, inputs, labels, mode=mode)

    assert relative_error(found.gradients, expected.gradients) <= EXACT
    for name, tensor in found.buffers.items():
        torch.testing.assert_close(tensor, expected.buffers[name], rtol=EXACT, atol=EXACT)
    assert bool(found.buffers) == (mode == "train")


@pytest.mark.parametrize("path", [general, fast])
def test_keeps_no_graph_for_a_client_who_asks_for_none(path: type) -> None:
    model, (inputs, labels) = build(BY_NAME["residual block"]), victims(2)
    found = path(model, "train")(inputs, labels)
    tensors = (*found.gradients, found.losses, found.outputs, *found.buffers.values())
    assert not any(tensor.requires_grad for tensor in tensors)
    with torch.no_grad():
        again = path(model, "train")(inputs.requires_grad_(), labels)
    assert not any(gradient.requires_grad for gradient in again.gradients)
    assert relative_error(again.gradients, found.gradients) <= EXACT


def test_a_victim_does_not_depend_on_the_others() -> None:
    model, (inputs, labels) = build(BY_NAME["residual block"]), victims(2)
    for path in (general, fast):
        alone = path(model, "train")(inputs[1:2], labels[1:2]).gradients
        together = path(model, "train")(inputs, labels).gradients
        assert relative_error([g[1:2] for g in together], alone) <= EXACT


def test_a_number_that_is_not_finite_stays_with_its_victim() -> None:
    model, (inputs, labels) = build(BY_NAME["residual block"]), victims(2)
    broken = inputs.clone()
    broken[1, 0, 0, 2, 2] = torch.nan
    for path in (general, fast):
        whole, found = (path(model, "eval")(x, labels).gradients for x in (inputs, broken))
        assert not torch.isfinite(found[0][1]).all()
        assert all(torch.equal(f[[0, 2]], w[[0, 2]]) for f, w in zip(found, whole, strict=True))


def test_stacked_gradients_take_float32_too() -> None:
    model, (inputs, labels) = build(BY_NAME["residual block"]).float(), victims(2)
    found = stacked_gradients(model, F.cross_entropy, inputs.float(), labels, mode="train")
    expected = one_at_a_time(model.double(), inputs, labels, mode="train").gradients
    assert relative_error([gradient.double() for gradient in found], expected) <= 1e-5


@pytest.mark.parametrize("path", [VmappedGradients, TappedGradients])
def test_bf16_stays_near_and_returns_the_format_of_the_inputs(path: type) -> None:
    model, (inputs, labels) = build(BY_NAME["batch norm"]).float(), victims(2)
    stacked: tuple[dict[str, Tensor], ...] = ({}, {}) if path is VmappedGradients else ()
    function = path(model, F.cross_entropy, trainable(model), "train", *stacked, "bf16")
    found = function(inputs.float(), labels)
    expected = one_at_a_time(model.double(), inputs, labels, mode="train").gradients
    assert {tensor.dtype for tensor in (*found.gradients, found.outputs, found.losses)} == {torch.float32}
    assert 1e-5 < relative_error([gradient.double() for gradient in found.gradients], expected) < 5e-2
