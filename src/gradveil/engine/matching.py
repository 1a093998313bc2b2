"""Trial updates and the observed one, ready to be compared."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from gradveil.engine._tapped import TappedGradients
from gradveil.engine._unrolled import Unrolled, local_rows, sent_weights, total_step
from gradveil.engine.factors import Factors
from gradveil.engine.gradients import GradientFunction, Trial
from gradveil.engine.looped_fallback import patient_function
from gradveil.engine.runtime import Precision
from gradveil.streams import Streams
from gradveil.types import Gradients, LocalTraining, Observation

Trajectory: TypeAlias = Literal["unrolled", "mean-gradient", "midpoint"]


@dataclass(frozen=True, slots=True)
class Matching:
    """What gradient matching compares.

    Args:
        gradients: inputs (V, B, ...) and labels to trial gradients, differentiable in both; zero where a defense that
            the adversary knows of lets nothing through.
        target: the observed update as a mean gradient, laid out in memory as the trial gradients are, so that no
            comparison copies it.
        scale: the update, or the difference of weights it stands for, over the target.
        factors: the same as `gradients`, with those left as factors whose products are cheaper so; what objectives
            should ask for.
    """

    gradients: Callable[[Tensor, Tensor], Gradients]
    target: Gradients
    scale: float
    factors: Callable[[Tensor, Tensor], Factors]


def matching(
    observation: Observation,
    *,
    precision: Precision = "tf32",
    guess: LocalTraining | None = None,
    trajectory: Trajectory = "unrolled",
    streams: Streams | None = None,
) -> Matching:
    """Prepare the comparison of trial updates with an observed one.

    Args:
        observation: of a gradient, a difference of weights or weights.
        precision: of the networks.
        guess: what the adversary believes of the clients' training where it does not know; None for one plain gradient.
        trajectory: what it makes of several local steps: `unrolled` takes them again with trial data; `mean-gradient`
            takes their mean for the gradient at the weights sent; `midpoint` for the gradient half way (Zhu et al.
            2023).
        streams: of the adversary, to draw orders of samples that it does not know.
    """
    local = observation.local or guess or LocalTraining()
    scale, moved = total_step(local, observation.input_shape[0]), _difference(observation, local)
    if _plain(local, observation.input_shape[0]):
        return _compare(observation, _scaled(moved, 1 / scale), scale, precision)
    if trajectory == "unrolled":
        return _unroll(observation, local, moved, scale, precision, streams)
    return _at_one_point(observation, local, moved, scale, precision, part=0.5 if trajectory == "midpoint" else 0.0)


def _plain(local: LocalTraining, samples: int) -> bool:
    """Tell whether the update is a multiple of one gradient on all samples."""
    whole = (local.local_batch_size or samples) >= samples
    one = local.steps == 1 and local.optimizer == "sgd" and local.weight_decay == 0
    return local.shares == "gradient" or (one and whole)


def _difference(observation: Observation, local: LocalTraining) -> Gradients:
    """Return the update, and in place of weights how far they moved."""
    update = tuple(tensor.detach() for tensor in observation.update)
    if local.shares != "weights":
        return update
    before = sent_weights(observation, observation.victims)
    return tuple(before[name] - after for name, after in zip(observation.names, update, strict=True))


def _at_one_point(
    observation: Observation, local: LocalTraining, moved: Gradients, scale: float, precision: Precision, *, part: float
) -> Matching:
    """Take the mean of all steps for one gradient, at the weights that lie a part of the way to the last ones."""
    before = sent_weights(observation, observation.victims)
    there = {n: before[n] - part * tensor for n, tensor in zip(observation.names, moved, strict=True)}
    target = _scaled(moved, 1 / scale)
    if local.weight_decay and local.optimizer == "sgd":
        target = tuple(t - local.weight_decay * w for t, w in zip(target, there.values(), strict=True))
    stacked = {**(observation.parameters or {}), **there} if part else observation.parameters
    return _compare(replace(observation, parameters=stacked), target, scale, precision)


def _unroll(
    observation: Observation,
    local: LocalTraining,
    moved: Gradients,
    scale: float,
    precision: Precision,
    streams: Streams | None,
) -> Matching:
    """Take the local steps again with trial data."""
    samples = observation.input_shape[0]
    rows = local_rows(local, samples, streams=streams, device=observation.device)
    first, _ = _function(observation, precision, samples=min(local.local_batch_size or samples, samples))
    train = Unrolled(observation, local, first, rows, precision)
    return _masked(
        lambda inputs, labels: _scaled(train(inputs, labels), 1 / scale), observation, _scaled(moved, 1 / scale), scale
    )


def _compare(observation: Observation, target: Gradients, scale: float, precision: Precision) -> Matching:
    """Compare one gradient on all samples."""
    function, trial = _function(observation, precision, samples=observation.input_shape[0])
    laid_out = function(trial.inputs, trial.labels).gradients if isinstance(function, TappedGradients) else ()
    found = _masked(lambda inputs, labels: function(inputs, labels).gradients, observation, target, scale, laid_out)
    if isinstance(function, TappedGradients) and not _masks(observation):
        return replace(found, factors=function.factors)
    return found


def _masked(
    gradients: Callable[[Tensor, Tensor], Gradients],
    observation: Observation,
    target: Gradients,
    scale: float,
    laid_out: Gradients = (),
) -> Matching:
    """Hide from the comparison what known defenses hide."""
    masks = _masks(observation)
    if laid_out:
        target = tuple(_laid_out_like(t, g) for t, g in zip(target, laid_out, strict=True))
        masks = tuple(_laid_out_like(m, g) for m, g in zip(masks, laid_out, strict=True)) if masks else ()

    def visible(inputs: Tensor, labels: Tensor) -> Gradients:
        trial = gradients(inputs, labels)
        return tuple(g * m for g, m in zip(trial, masks, strict=True)) if masks else trial

    return Matching(visible, target, scale, factors=visible)


def _function(observation: Observation, precision: Precision, *, samples: int) -> tuple[GradientFunction, Trial]:
    """Return the gradients at the weights that were sent, and the stack on which their fast path was tried."""
    shape = (samples, *observation.input_shape[1:])
    sample = torch.empty(shape, device=observation.device, dtype=observation.dtype)
    trial = Trial.like(sample, observation.num_classes)
    function = patient_function(
        observation.model,
        observation.loss,
        names=observation.names,
        mode=observation.mode,
        parameters=observation.parameters,
        buffers=observation.buffers,
        precision=precision,
        trial=trial,
    )
    return function, trial


def _scaled(update: Gradients, factor: float) -> Gradients:
    return update if factor == 1 else tuple(tensor * factor for tensor in update)


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
