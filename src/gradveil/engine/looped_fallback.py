"""Gradients for attacks on any model: mapped over the victims where that can be, one victim after another where not."""

import copy
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.nn.modules.dropout import _DropoutNd
from torch.utils._pytree import tree_map

from gradveil.engine._tapped import TappedGradients
from gradveil.engine._vmapped import VmappedGradients
from gradveil.engine.evaluation import Evaluation
from gradveil.engine.gradients import GradientFunction, Trial, gradient_function
from gradveil.engine.looped import LoopedGradients
from gradveil.engine.runtime import Precision, is_out_of_memory
from gradveil.errors import UnsupportedModelError
from gradveil.types import LossFn, Mode, Observation, State

T = TypeVar("T")
_log = logging.getLogger(__name__)
_SEED = 0
_ONE_BY_ONE = "the victims were attacked one after another: {}"
_NO_DROPOUT = "the adversary left dropout out, since nobody tells it what the client dropped"


def patient_function(
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
    """Make the function from inputs and labels of V victims to their gradients, for any model that autograd takes.

    It takes what `gradient_function` takes and gives the same, slowly where the model cannot be mapped over victims.
    There, what a model draws at random is the same at every evaluation and for every victim.

    Example:
        >>> model = nn.Linear(3, 2)
        >>> function = patient_function(model, nn.functional.cross_entropy, names=("bias",))
        >>> found = function(torch.rand(5, 4, 3), torch.zeros(5, 4, dtype=torch.long))
        >>> [tuple(gradient.shape) for gradient in found.gradients]
        [(5, 2)]
    """
    own, state = parameters or {}, buffers or {}
    function = gradient_function(
        model, loss, names=names, mode=mode, parameters=own, buffers=state, precision=precision, trial=trial
    )
    if isinstance(function, TappedGradients):
        return function
    return PatientGradients(model, loss, names, mode, own, state, precision)


class PatientGradients:
    """Maps over the victims until that fails, and then takes them one by one; arguments as of `gradient_function`."""

    def __init__(
        self,
        model: nn.Module,
        loss: LossFn,
        names: tuple[str, ...],
        mode: Mode,
        parameters: State,
        buffers: State,
        precision: Precision,
    ) -> None:
        self._mapped = VmappedGradients(model, loss, names, mode, parameters, buffers, precision)
        self._looped = LoopedGradients(model, loss, names, mode, parameters, buffers, precision, seed=_SEED)
        self._one_by_one = False

    def __call__(self, inputs: Tensor, labels: Tensor) -> Evaluation:
        """Differentiate V victims with inputs (V, B, ...) and labels (V, B) or (V, B, K)."""
        if not self._one_by_one:
            captured = inputs.is_cuda and torch.cuda.is_current_stream_capturing()
            try:
                return self._mapped(inputs, labels)
            except UnsupportedModelError as error:
                if captured:  # it is the capture that failed, since the warm-up before it did not
                    raise
                _log.info("one victim after another: %s", error)
                self._one_by_one = True
        return self._looped(inputs, labels)


def over_victims(function: Callable[[State, Tensor], T], own: State, inputs: Tensor) -> T:
    """Apply a function of one victim's tensors and inputs (B, ...) to all: mapped, or in a loop where that fails.

    Args:
        function: to a tensor, or to tensors in tuples, lists and dicts.
        own: (V, *shape) tensors of the victims by name.
        inputs: (V, B, ...).

    Returns:
        The same with a first axis V.

    Example:
        >>> over_victims(lambda own, inputs: inputs.sum() * own["w"], {"w": torch.tensor([1.0, 2.0])}, torch.ones(2, 3))
        tensor([3., 6.])
    """
    try:
        mapped: T = vmap(function)(own, inputs)
        return mapped
    except RuntimeError as error:
        if is_out_of_memory(error):
            raise
    parts = [function({name: t[row] for name, t in own.items()}, inputs[row]) for row in range(len(inputs))]
    stacked: T = tree_map(lambda *tensors: torch.stack(tensors), parts[0], *parts[1:])
    return stacked


def without_dropout(model: nn.Module) -> nn.Module:
    """Switch off the dropout layers of a model, also in train mode: an adversary does not know what a client dropped.

    Example:
        >>> model = without_dropout(nn.Sequential(nn.Dropout(0.5)))
        >>> model.train()(torch.ones(3))
        tensor([1., 1., 1.])
    """
    for layer in model.modules():
        if isinstance(layer, _DropoutNd):
            layer.p = 0.0
    return model


def remarks_on(observation: Observation) -> list[str]:
    """Say in words what a model makes an attack that differentiates it do: loop over the victims, leave dropout out.

    Example:
        >>> model = nn.Sequential(nn.Flatten(), nn.Linear(4, 2), nn.Dropout())
        >>> seen = Observation(
        ...     model=model, mode="train", names=("1.bias",), update=(torch.zeros(1, 2),),
        ...     loss=nn.functional.cross_entropy, input_shape=(1, 1, 2, 2), num_classes=2,
        ... )
        >>> remarks_on(seen)
        ['the adversary left dropout out, since nobody tells it what the client dropped']
    """
    some = observation.select([0])
    model = without_dropout(copy.deepcopy(some.model))
    remarks = [_ONE_BY_ONE.format(error) for error in [_refusal(replace(some, model=model))] if error is not None]
    if some.mode == "train" and _drops(some.model):
        remarks.append(_NO_DROPOUT)
    return remarks


def _refusal(observation: Observation) -> UnsupportedModelError | None:
    """Return why one victim cannot be mapped, with hard labels or soft ones, whichever the loss takes."""
    like = torch.empty(observation.input_shape, device=observation.device, dtype=observation.dtype)
    trial = Trial.like(like, observation.num_classes)
    soft = torch.full((1, len(like), observation.num_classes), 1 / observation.num_classes).to(like)
    mapped = VmappedGradients(
        observation.model,
        observation.loss,
        observation.names,
        observation.mode,
        observation.parameters or {},
        observation.buffers or {},
        "float32",
    )
    found = None
    for labels in (trial.labels[:1], soft):
        try:
            mapped(trial.inputs[:1], labels)
        except UnsupportedModelError as error:
            found = found or error
        else:
            return None
    return found


def _drops(model: nn.Module) -> bool:
    return any(isinstance(layer, _DropoutNd) and layer.p > 0 for layer in model.modules())
