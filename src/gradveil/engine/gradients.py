"""The gradients of many victims at once, differentiable in the inputs.

Two paths compute the same numbers. The general one maps `torch.func.grad` over the victims and takes any model. The
fast one merges victims and samples into one batch, reads what enters each layer and the gradient at what leaves it, and
makes every victim's weight gradients from the two; it takes models whose parameters are used by convolutions, linear
layers and norms alone, and is chosen only after it agreed with the general one on a trial stack.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor, nn

from gradveil.engine._tapped import TappedGradients
from gradveil.engine._vmapped import VmappedGradients
from gradveil.engine.evaluation import Evaluation
from gradveil.engine.runtime import Precision, Runtime, is_out_of_memory
from gradveil.types import Gradients, LossFn, Mode, State

GradientFunction: TypeAlias = Callable[[Tensor, Tensor], Evaluation]
"""Inputs (V, B, ...) and labels (V, B) or (V, B, K) to an `Evaluation`."""

_log = logging.getLogger(__name__)


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
    if trial is not None and not parameters and not buffers and _agree(model, loss, names, mode, trial):
        return TappedGradients(model, loss, names, mode, precision)
    return VmappedGradients(model, loss, names, mode, parameters or {}, buffers or {}, precision)


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


def _agree(model: nn.Module, loss: LossFn, names: tuple[str, ...], mode: Mode, trial: Trial) -> bool:
    """Compare the two paths on a trial stack, in full precision, so that small deviations show."""
    fast = TappedGradients(model, loss, names, mode, "float32")
    general = VmappedGradients(model, loss, names, mode, {}, {}, "float32")
    try:
        with Runtime(precision="float32").numerics():
            tried = _flatten(fast(trial.inputs, trial.labels).gradients)
            expected = _flatten(general(trial.inputs, trial.labels).gradients)
    except Exception as error:
        # The fast path is not for this model; if the general one is neither, it says so when it is used.
        if is_out_of_memory(error):
            raise
        _log.info("the fast path is not taken: %s", error)
        return False
    tolerance = torch.finfo(expected.dtype).eps ** 0.5
    return bool((tried - expected).norm() <= tolerance * expected.norm())


def _flatten(gradients: Gradients) -> Tensor:
    return torch.cat([gradient.detach().flatten() for gradient in gradients])
