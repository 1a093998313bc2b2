"""The reference: one victim at a time, with nothing but autograd."""

import copy
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from gradveil.engine._vmapped import without_fast_attention
from gradveil.types import LossFn, Mode


class Reference(NamedTuple):
    """What a plain module gives, stacked over the victims."""

    gradients: list[Tensor]
    losses: Tensor
    outputs: Tensor
    buffers: dict[str, Tensor]


def one_at_a_time(
    model: nn.Module | Sequence[nn.Module],
    inputs: Tensor,
    labels: Tensor,
    *,
    mode: Mode,
    loss: LossFn = F.cross_entropy,
) -> Reference:
    """Differentiate copies of a model, or one model per victim."""
    models = [model] * len(inputs) if isinstance(model, nn.Module) else model
    gradients, losses, outputs, buffers = [], [], [], []
    for own, sample, label in zip(models, inputs, labels, strict=True):
        plain = copy.deepcopy(own).train(mode == "train")
        output = plain(sample)
        value = loss(output, label)
        gradients.append(differentiate(value, plain))
        losses.append(value.detach())
        outputs.append(output.detach())
        buffers.append(dict(plain.named_buffers()))
    return Reference(
        [torch.stack(column) for column in zip(*gradients, strict=True)],
        torch.stack(losses),
        torch.stack(outputs),
        {name: torch.stack([own[name] for own in buffers]) for name in buffers[0]},
    )


def differentiate(value: Tensor, model: nn.Module, *, twice: bool = False) -> list[Tensor]:
    """Return the gradient by every parameter that requires one; zeros for one that is not used."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    found = torch.autograd.grad(value, parameters, create_graph=twice, allow_unused=True)
    return [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, found, strict=True)]


def slow_matching(
    model: nn.Module, inputs: Tensor, labels: Tensor, target: Sequence[Tensor], *, mode: Mode
) -> tuple[Tensor, Tensor]:
    """Return the matching losses (V,) and their gradient by the inputs."""
    values, by_inputs = [], []
    with without_fast_attention(), sdpa_kernel(SDPBackend.MATH):
        for victim in range(len(inputs)):
            plain = copy.deepcopy(model).train(mode == "train")
            sample = inputs[victim].detach().requires_grad_()
            trial = differentiate(F.cross_entropy(plain(sample), labels[victim]), plain, twice=True)
            value = distance([g[None] for g in trial], [t[victim][None] for t in target]).sum()
            values.append(value.detach())
            by_inputs.append(torch.autograd.grad(value, sample)[0])
    return torch.stack(values), torch.stack(by_inputs)


def distance(trial: Sequence[Tensor], target: Sequence[Tensor]) -> Tensor:
    """Return (V,), one minus the cosine plus the squared distance of two updates."""
    a, b = (torch.cat([tensor.flatten(1) for tensor in update], 1) for update in (trial, target))
    return 1 - F.cosine_similarity(a, b) + (a - b).square().sum(1)


def relative_error(found: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """Compare two whole updates."""
    assert [f.shape for f in found] == [e.shape for e in expected]
    a, b = (torch.cat([tensor.detach().flatten() for tensor in update]) for update in (found, expected))
    return float((a - b).norm() / b.norm())
