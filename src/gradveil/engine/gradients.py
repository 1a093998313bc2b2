"""The gradients of many victims at once, differentiable in the inputs.

Two paths compute the same numbers. The general one maps `torch.func.grad` over the victims and takes any model. The
fast one merges victims and samples into one batch, reads what enters each layer and the gradient at what leaves it, and
makes every victim's weight gradients from the two; it takes models whose parameters are used by convolutions, linear
layers and norms alone, and is chosen only after it agreed with the general one on a trial stack.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor, nn

from gradveil.engine._tapped import NotTappableError, TappedGradients
from gradveil.engine._vmapped import VmappedGradients
from gradveil.engine.evaluation import Evaluation
from gradveil.engine.runtime import Precision
from gradveil.types import Gradients, LossFn, Mode, Observation, State

GradientFunction: TypeAlias = Callable[[Tensor, Tensor], Evaluation]
"""Inputs (V, B, ...) and labels (V, B) or (V, B, K) to an `Evaluation`."""

_AGREEMENT = 2e-2  # of tf32 numbers; paths that mean different things differ by far more


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A stack on which the fast path is compared with the general one.

    Args:
        inputs: (2, B, ...).
        labels: (2, B).
    """

    inputs: Tensor
    labels: Tensor

    @classmethod
    def like(cls, inputs: Tensor, num_classes: int) -> "Trial":
        """Draw two victims of a shape (B, ...), on the device and in the format of a tensor of that shape."""
        generator = torch.Generator().manual_seed(0)
        pixels = torch.rand((2, *inputs.shape), generator=generator)
        labels = torch.randint(num_classes, (2, len(inputs)), generator=generator)
        return cls(inputs=pixels.to(inputs), labels=labels.to(inputs.device))


def gradient_function(
    model: nn.Module,
    loss: LossFn,
    *,
    names: tuple[str, ...],
    mode: Mode = "eval",
    parameters: State | None = None,
    buffers: State | None = None,
    precision: Precision = "tf32",
    trial: Trial | None = None,
) -> GradientFunction:
    """Make the function from inputs and labels of V victims to their gradients.

    Args:
        model: eats (B, ...) of one victim; neither it nor its buffers are changed.
        loss: of the outputs and labels of one victim.
        names: parameters to differentiate by, in the order of the result.
        mode: batch norm by running statistics (eval) or by the victim's own batch (train).
        parameters: (V, *shape) weights by name, where they differ between victims.
        buffers: (V, *shape) buffers by name, where they differ.
        precision: bf16 runs the model under autocast.
        trial: a stack to try the fast path on; without one the general path is taken.
    """
    general = VmappedGradients(model, loss, names, mode, parameters or {}, buffers or {}, precision)
    if trial is None or parameters or buffers:
        return general
    fast = TappedGradients(model, loss, names, mode, precision)
    return fast if _agree(fast, general, trial) else general


def stacked_gradients(
    model: nn.Module, loss: LossFn, inputs: Tensor, labels: Tensor, *, mode: Mode = "eval"
) -> Gradients:
    """Return the gradients of V victims, one (V, *shape) tensor per parameter that requires one.

    Example:
        >>> model = nn.Linear(3, 2)
        >>> inputs, labels = torch.rand(5, 4, 3), torch.zeros(5, 4, dtype=torch.long)
        >>> [tuple(g.shape) for g in stacked_gradients(model, nn.functional.cross_entropy, inputs, labels)]
        [(5, 2, 3), (5, 2)]
    """
    function = gradient_function(model, loss, names=trainable(model), mode=mode, precision="float32")
    return function(inputs, labels).gradients


def trainable(model: nn.Module) -> tuple[str, ...]:
    """Name the parameters that require a gradient, in order."""
    return tuple(name for name, parameter in model.named_parameters() if parameter.requires_grad)


def observed_gradient_function(observation: Observation, *, precision: Precision = "tf32") -> GradientFunction:
    """Make the gradient function of what an adversary observed."""
    sample = torch.empty(observation.input_shape, device=observation.device, dtype=observation.dtype)
    return gradient_function(
        observation.model,
        observation.loss,
        names=observation.names,
        mode=observation.mode,
        parameters=observation.parameters,
        buffers=observation.buffers,
        precision=precision,
        trial=Trial.like(sample, observation.num_classes),
    )


def _agree(fast: TappedGradients, general: VmappedGradients, trial: Trial) -> bool:
    try:
        tried = fast(trial.inputs, trial.labels).gradients
    except NotTappableError:
        return False
    expected = general(trial.inputs, trial.labels).gradients
    error = sum(((t - e).square().sum() for t, e in zip(tried, expected, strict=True)), torch.zeros(()).to(tried[0]))
    norm = sum((e.square().sum() for e in expected), torch.zeros(()).to(tried[0]))
    return bool(error <= _AGREEMENT**2 * norm)
