import copy
import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from networks import BY_NAME, CASES, CLASSES, SHAPE, Case, Centered, build
from slow_gradients import one_at_a_time, relative_error
from torch import Tensor, nn

from gradveil.engine import GradientFunction, Trial, gradient_function, trainable
from gradveil.engine._tapped import TappedGradients
from gradveil.engine._vmapped import VmappedGradients
from gradveil.errors import UnsupportedModelError
from gradveil.types import LossFn, Mode


def choose(model: nn.Module, *, mode: Mode = "eval", loss: LossFn = F.cross_entropy, size: int = 2) -> GradientFunction:
    dtype = next(model.parameters()).dtype
    trial = Trial.like(torch.empty(size, *SHAPE, dtype=dtype), CLASSES)
    return gradient_function(model, loss, names=trainable(model), mode=mode, trial=trial)


def victims(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    return torch.rand((3, 2, *SHAPE), generator=generator).to(dtype), torch.randint(
        CLASSES, (3, 2), generator=generator
    )


@pytest.mark.parametrize("mode", ["eval", "train"])
@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_takes_the_fast_path_where_it_is_right_and_nowhere_else(case: Case, mode: Mode) -> None:
    model = build(case)
    random = torch.get_rng_state()
    function = choose(model, mode=mode)
    assert isinstance(function, TappedGradients if case.fast else VmappedGradients)
    assert torch.equal(torch.get_rng_state(), random)


def test_takes_the_fast_path_in_float32() -> None:
    assert isinstance(choose(build(BY_NAME["residual block"]).float(), mode="train"), TappedGradients)


@pytest.mark.parametrize("share", [1.0, 1e-2])
def test_an_operation_across_samples_never_joins_victims_in_float32(share: float) -> None:
    model, (inputs, labels) = build(Case("centered", lambda: Centered(share), fast=False)), victims()
    expected = one_at_a_time(model, inputs, labels, mode="eval").gradients
    found = choose(model.float())(inputs.float(), labels).gradients
    assert relative_error([gradient.double() for gradient in found], expected) < 1e-5


def test_without_a_trial_or_with_weights_per_victim_the_path_is_the_general_one() -> None:
    model = build(BY_NAME["linear layers"])
    plain = gradient_function(model, F.cross_entropy, names=trainable(model))
    stacked = {"1.bias": torch.zeros(3, 6, dtype=torch.float64)}
    own = gradient_function(
        model,
        F.cross_entropy,
        names=trainable(model),
        parameters=stacked,
        trial=Trial.like(torch.empty(2, *SHAPE, dtype=torch.float64), CLASSES),
    )
    assert isinstance(plain, VmappedGradients)
    assert isinstance(own, VmappedGradients)


def test_a_loss_for_soft_labels_alone_is_not_tried_on_hard_ones() -> None:
    def soft_loss(outputs: Tensor, labels: Tensor) -> Tensor:
        return -(labels * outputs.log_softmax(-1)).sum(-1).mean()

    model, (inputs, _) = build(BY_NAME["plain convolution"]), victims()
    soft = torch.rand(3, 2, CLASSES, generator=torch.Generator().manual_seed(0), dtype=torch.float64).softmax(-1)
    found = choose(model, loss=soft_loss)(inputs, soft).gradients
    expected = one_at_a_time(model, inputs, soft, mode="eval", loss=soft_loss).gradients
    assert relative_error(found, expected) < 1e-10


def test_says_in_the_log_why_the_fast_path_is_not_taken(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="gradveil"):
        choose(build(BY_NAME["parameter outside a layer"]))
    assert "a parameter enters mul" in caplog.text


class Deciding(nn.Module):
    """Looks at a number before it goes on."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(108, CLASSES)

    def forward(self, inputs: Tensor) -> Any:
        flat = inputs.flatten(1)
        return self.fc(2 * flat if flat.mean().item() > 0 else flat)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell, self.fc = nn.LSTM(36, 5, batch_first=True), nn.Linear(5, CLASSES)

    def forward(self, inputs: Tensor) -> Any:
        return self.fc(self.cell(inputs.flatten(2))[0][:, -1])


def random_layers() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Sequential(nn.Dropout(0.5)), nn.Flatten(), nn.Linear(64, CLASSES)
    )


def tracked_instances() -> nn.Module:
    return nn.Sequential(nn.InstanceNorm2d(3, track_running_stats=True), nn.Flatten(), nn.Linear(108, CLASSES))


@pytest.mark.parametrize("with_trial", [True, False])
@pytest.mark.parametrize(
    ("make", "mode", "where"),
    [
        (Deciding, "eval", "module Deciding (Deciding)"),
        (lambda: nn.Sequential(nn.ReLU(), Deciding()), "eval", "module 1 (Deciding)"),
        (Recurrent, "eval", "module cell (LSTM)"),
        (random_layers, "train", "module 2.0 (Dropout)"),
        (tracked_instances, "train", "module 0 (InstanceNorm2d)"),
    ],
)
def test_names_the_module_that_cannot_be_differentiated(
    make: Callable[[], nn.Module], mode: Mode, where: str, with_trial: bool
) -> None:
    model, (inputs, labels) = make().double(), victims()
    before = copy.deepcopy(model.state_dict())
    function = (
        choose(model, mode=mode)
        if with_trial
        else gradient_function(model, F.cross_entropy, names=trainable(model), mode=mode)
    )
    with pytest.raises(UnsupportedModelError) as caught:
        function(inputs, labels)
    message = str(caught.value)
    assert message.startswith(where)
    assert "\n" not in message
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_a_loss_that_cannot_be_mapped_is_not_blamed_on_a_module() -> None:
    model, (inputs, labels) = build(BY_NAME["plain convolution"]), victims()
    function = choose(model, loss=lambda outputs, labels: outputs.mean() * outputs.detach().sum().item())
    with pytest.raises(UnsupportedModelError, match="the loss or the backward pass of the model"):
        function(inputs, labels)


def test_refuses_batch_norm_of_one_value_as_torch_does() -> None:
    model, (inputs, labels) = build(BY_NAME["batch norm of features"]), victims()
    one = inputs[:, :1], labels[:, :1]
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        one_at_a_time(model, *one, mode="train")
    with pytest.raises(UnsupportedModelError, match="more than one value per channel"):
        choose(model, mode="train", size=1)(*one)


def test_lets_out_of_memory_pass() -> None:
    class Hungry(nn.Linear):
        def forward(self, inputs: Tensor) -> Any:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")

    model, (inputs, labels) = Hungry(3, 2).double(), victims()
    with pytest.raises(torch.cuda.OutOfMemoryError):
        choose(model)
    with pytest.raises(torch.cuda.OutOfMemoryError):
        gradient_function(model, F.cross_entropy, names=trainable(model))(inputs, labels)
