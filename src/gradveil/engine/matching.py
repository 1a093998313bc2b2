"""Trial gradients and the observed update, ready to be compared."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from gradveil.engine._tapped import TappedGradients
from gradveil.engine.gradients import Trial, gradient_function
from gradveil.engine.runtime import Precision
from gradveil.types import Gradients, Observation


@dataclass(frozen=True, slots=True)
class Matching:
    """What gradient matching compares.

    Args:
        gradients: inputs (V, B, ...) and labels to trial gradients, differentiable in both; zero where a defense that
            the adversary knows of lets nothing through.
        target: the observed update, laid out in memory as the trial gradients are, so that no comparison copies it.
    """

    gradients: Callable[[Tensor, Tensor], Gradients]
    target: Gradients


def matching(observation: Observation, *, precision: Precision = "tf32") -> Matching:
    """Prepare the comparison of trial gradients with an observed update."""
    sample = torch.empty(observation.input_shape, device=observation.device, dtype=observation.dtype)
    trial = Trial.like(sample, observation.num_classes)
    function = gradient_function(
        observation.model,
        observation.loss,
        names=observation.names,
        mode=observation.mode,
        parameters=observation.parameters,
        buffers=observation.buffers,
        precision=precision,
        trial=trial,
    )
    target, masks = tuple(tensor.detach() for tensor in observation.update), _masks(observation)
    if isinstance(function, TappedGradients):
        laid_out = function(trial.inputs, trial.labels).gradients
        target = tuple(_laid_out_like(t, g) for t, g in zip(target, laid_out, strict=True))
        masks = tuple(_laid_out_like(m, g) for m, g in zip(masks, laid_out, strict=True)) if masks else ()

    def gradients(inputs: Tensor, labels: Tensor) -> Gradients:
        trial = function(inputs, labels).gradients
        return tuple(g * m for g, m in zip(trial, masks, strict=True)) if masks else trial

    return Matching(gradients, target)


def _masks(observation: Observation) -> Gradients:
    """Return which entries an adversary who knows the defenses should match; nothing if that is all of them."""
    seen = [defense.visible(observation.update) for defense in observation.defenses or ()]
    masks = tuple(torch.stack(tensors).all(0) for tensors in zip(*seen, strict=True))
    return () if all(bool(mask.all()) for mask in masks) else masks


def memory_order(tensor: Tensor) -> list[int]:
    """Return the axes after the first in the order of their strides, widest first."""
    strides = tensor.stride()
    return sorted(range(1, tensor.ndim), key=lambda axis: -strides[axis])


def _laid_out_like(tensor: Tensor, like: Tensor) -> Tensor:
    order = [0, *memory_order(like)]
    back = [order.index(axis) for axis in range(tensor.ndim)]
    return tensor.permute(order).contiguous().permute(back)
