"""The plain path: one victim after another by autograd, for models that no map over victims takes."""

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.func import functional_call

from gradveil.engine._norms import NormMode
from gradveil.engine._vmapped import autocast, module_mode, moved_buffers, without_fast_attention
from gradveil.engine.evaluation import Evaluation, one_loss
from gradveil.engine.gradients import GradientFunction, Trial
from gradveil.engine.runtime import Precision, is_out_of_memory
from gradveil.errors import UnsupportedModelError
from gradveil.types import LossFn, Mode, State


def looped_function(
    model: nn.Module,
    loss: LossFn,
    *,
    names: tuple[str, ...],
    mode: Mode = "eval",
    parameters: State | None = None,
    buffers: State | None = None,
    precision: Precision = "tf32",
    trial: Trial | None = None,  # noqa: ARG001 - there is no fast path to try
) -> GradientFunction:
    """Make the function from inputs and labels of V victims to their gradients, one victim after another.

    It takes what `gradient_function` takes, and gives the same; Python in the model may look at numbers here. Random
    layers of torch draw from its global state.

    Example:
        >>> model = nn.Linear(3, 2)
        >>> function = looped_function(model, nn.functional.cross_entropy, names=("bias",))
        >>> found = function(torch.rand(5, 4, 3), torch.zeros(5, 4, dtype=torch.long))
        >>> [tuple(gradient.shape) for gradient in found.gradients]
        [(5, 2)]
    """
    return LoopedGradients(model, loss, names, mode, parameters or {}, buffers or {}, precision)


class LoopedGradients:
    """Gradients of any model that autograd can differentiate; see `gradient_function` for the arguments.

    With a `seed`, random layers draw the same numbers for every victim at every call, and torch keeps its state.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: LossFn,
        names: tuple[str, ...],
        mode: Mode,
        parameters: State,
        buffers: State,
        precision: Precision,
        seed: int | None = None,
    ) -> None:
        self._model, self._loss, self._names, self._mode, self._precision = model, loss, names, mode, precision
        self._parameters, self._buffers, self._seed = parameters, buffers, seed

    def __call__(self, inputs: Tensor, labels: Tensor) -> Evaluation:
        """Differentiate V victims with inputs (V, B, ...) and labels (V, B) or (V, B, K)."""
        if inputs.is_cuda and torch.cuda.is_current_stream_capturing():
            raise UnsupportedModelError("a CUDA graph would skip the Python of the model; let the step run eagerly")
        given = (inputs, labels, *self._parameters.values(), *self._buffers.values())
        create_graph = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in given)
        with module_mode(self._model, self._mode), without_fast_attention(), torch.enable_grad():
            found = [self._one(victim, inputs[victim], labels[victim], create_graph) for victim in range(len(inputs))]
        return Evaluation(
            tuple(torch.stack(tensors) for tensors in zip(*(one.gradients for one in found), strict=True)),
            torch.stack([one.losses for one in found]),
            torch.stack([one.outputs for one in found]),
            {name: torch.stack([one.buffers[name] for one in found]) for name in found[0].buffers},
        )

    def _one(self, victim: int, inputs: Tensor, labels: Tensor, create_graph: bool) -> Evaluation:
        """Differentiate one victim, with inputs (B, ...) and labels (B,) or (B, K)."""
        parameters = _own(dict(self._model.named_parameters()), self._parameters, victim)
        leaves = {name: _differentiable(parameters[name]) for name in self._names}
        # Copies, since a model may write to its buffers in any mode.
        own = {n: t.clone() for n, t in _own(dict(self._model.named_buffers()), self._buffers, victim).items()}
        norms = NormMode({id(tensor): name for name, tensor in own.items()})
        with _refusing(), _drawing_from(self._seed, inputs.device):
            with norms, autocast(self._precision, inputs):
                outputs = functional_call(self._model, {**parameters, **leaves, **own}, (inputs,)).to(inputs.dtype)
            loss = one_loss(self._loss(outputs, labels))
            gradients = torch.autograd.grad(
                loss, list(leaves.values()), create_graph=create_graph, allow_unused=True, materialize_grads=True
            )
        if not create_graph:
            loss, outputs = loss.detach(), outputs.detach()
        return Evaluation(gradients, loss, outputs, moved_buffers(own, norms.updated, self._mode))


def _own(shared: State, stacked: State, victim: int) -> dict[str, Tensor]:
    """Return one victim's tensors; those that were given for it stay part of what they were computed from."""
    return {name: stacked[name][victim] if name in stacked else tensor.detach() for name, tensor in shared.items()}


def _differentiable(weight: Tensor) -> Tensor:
    return weight if weight.requires_grad else weight.detach().requires_grad_()


@contextlib.contextmanager
def _refusing() -> Iterator[None]:
    """Say in one sentence that a model cannot be differentiated at all."""
    try:
        yield
    except RuntimeError as error:
        if is_out_of_memory(error):
            raise
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise UnsupportedModelError(f"the model cannot be differentiated ({reason}); see its forward pass") from error


@contextlib.contextmanager
def _drawing_from(seed: int | None, device: torch.device) -> Iterator[None]:
    """Let torch draw from a seed, and put its state back; without one, let it draw as it does."""
    if seed is None:
        yield
        return
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.default_generator.manual_seed(seed)
        if device.type == "cuda":
            torch.cuda.default_generators[device.index or 0].manual_seed(seed)
        yield
