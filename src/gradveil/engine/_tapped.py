"""The fast path: one merged batch, and every victim's weight gradients from what each layer saw."""

import contextlib
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from gradveil.engine._taps import Taps
from gradveil.engine._vmapped import autocast, module_mode, without_fast_attention, written_buffers
from gradveil.engine.evaluation import Evaluation
from gradveil.engine.factors import Factored, Factors
from gradveil.engine.runtime import Precision
from gradveil.types import LossFn, Mode

T = TypeVar("T")


class TappedGradients:
    """Gradients of models made of convolutions, linear layers and norms; see `gradient_function` for the arguments."""

    def __init__(
        self, model: nn.Module, loss: LossFn, names: tuple[str, ...], mode: Mode, precision: Precision
    ) -> None:
        self._model, self._loss, self._names, self._mode, self._precision = model, loss, names, mode, precision

    def __call__(self, inputs: Tensor, labels: Tensor) -> Evaluation:
        """Differentiate V victims with inputs (V, B, ...) and labels (V, B) or (V, B, K)."""
        create_graph = _differentiated(inputs, labels)
        taps, outputs, losses = self._run(inputs, labels)
        gradients = taps.gradients(losses, create_graph=create_graph)
        if not create_graph:
            losses, outputs = losses.detach(), outputs.detach()
        return Evaluation(
            tuple(self._of(name, gradients, inputs) for name in self._names), losses, outputs, taps.buffers
        )

    def factors(self, inputs: Tensor, labels: Tensor) -> Factors:
        """Differentiate, and leave those gradients as factors whose products are cheaper so."""
        taps, _, losses = self._run(inputs, labels)
        found = taps.factors(losses, create_graph=_differentiated(inputs, labels))
        return tuple(
            factored.to(inputs.dtype)
            if isinstance(factored := found.get(name), Factored)
            else self._of(name, found, inputs)
            for name in self._names
        )

    def reduced(self, inputs: Tensor, labels: Tensor, reduce: Callable[[Tensor | Factored], T]) -> dict[str, T]:
        """Differentiate, and keep of each parameter's gradients (V, *shape) what is made of them, one at a time.

        Args:
            inputs: (V, B, ...).
            labels: (V, B) or (V, B, K).
            reduce: of the gradients of one parameter, as factors where those are smaller.

        Returns:
            By name; parameters that the outputs do not depend on are missing.
        """
        taps, _, losses = self._run(inputs, labels)
        return taps.reduced(losses, reduce)

    def _run(self, inputs: Tensor, labels: Tensor) -> tuple[Taps, Tensor, Tensor]:
        """Return the taps of a forward pass, its outputs (V, B, K) and losses (V,), ready to be differentiated."""
        buffers = dict(self._model.named_buffers())
        own = {**buffers, **written_buffers(buffers, self._mode)}
        taps = Taps(self._model, self._names, own, len(inputs))
        with contextlib.ExitStack() as stack:
            stack.enter_context(module_mode(self._model, self._mode))
            stack.enter_context(without_fast_attention())
            stack.enter_context(torch.enable_grad())
            with taps, autocast(self._precision, inputs):
                merged = functional_call(self._model, own, (_merged(inputs),))
            outputs = merged.to(inputs.dtype).unflatten(0, inputs.shape[:2])
            return taps, outputs, vmap(self._loss)(outputs, labels)

    def _of(self, name: str, gradients: Mapping[str, Any], inputs: Tensor) -> Tensor:
        if name in gradients:
            gradient: Tensor = gradients[name].to(inputs.dtype)
            return gradient
        return inputs.new_zeros((len(inputs), *self._model.get_parameter(name).shape))


def _differentiated(inputs: Tensor, labels: Tensor) -> bool:
    """Tell whether the gradients will be differentiated in their turn."""
    return torch.is_grad_enabled() and (inputs.requires_grad or labels.requires_grad)


def _start(inputs: Tensor) -> Tensor:
    """Make sure that there is a graph, also for a client who does not differentiate by its inputs."""
    return inputs if inputs.requires_grad else inputs.detach().requires_grad_()


def _merged(inputs: Tensor) -> Tensor:
    """Merge victims and samples; with channels last on a GPU, whose convolutions and matrix products want it so."""
    merged = _start(inputs).flatten(0, 1)
    return merged.contiguous(memory_format=torch.channels_last) if merged.is_cuda and merged.ndim == 4 else merged
