"""The general path: `torch.func.grad` of one victim, mapped over all of them."""

import contextlib
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from gradveil.engine._norms import NormMode
from gradveil.engine.evaluation import Evaluation, one_loss
from gradveil.engine.runtime import Precision, is_out_of_memory
from gradveil.errors import UnsupportedModelError
from gradveil.types import LossFn, Mode, State


class VmappedGradients:
    """Gradients of any model that `torch.func` can differentiate; see `gradient_function` for the arguments."""

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
        self._model, self._loss, self._names, self._mode, self._precision = model, loss, names, mode, precision
        shared = {name: tensor.detach() for name, tensor in model.named_parameters()}
        self._parameters = {name: parameters.get(name, shared[name]) for name in names}
        self._frozen = {name: parameters.get(name, t) for name, t in shared.items() if name not in names}
        self._buffers = {name: buffers.get(name, tensor.detach()) for name, tensor in model.named_buffers()}
        stacked = {*parameters, *buffers}
        self._axes = tuple(
            {name: 0 if name in stacked else None for name in group}
            for group in (self._parameters, self._frozen, self._buffers)
        )

    def __call__(self, inputs: Tensor, labels: Tensor) -> Evaluation:
        """Differentiate V victims with inputs (V, B, ...) and labels (V, B) or (V, B, K)."""
        mapped = vmap(grad(self._one, has_aux=True), in_dims=(*self._axes, 0, 0))
        arguments = (self._parameters, self._frozen, self._buffers, inputs, labels)
        with module_mode(self._model, self._mode), without_fast_attention():
            try:
                gradients, (losses, outputs, buffers) = mapped(*arguments)
            except RuntimeError as error:
                if is_out_of_memory(error):
                    raise
                raise _unsupported(self._model, error, again=lambda: mapped(*arguments)) from error
        return Evaluation(tuple(gradients[name] for name in self._names), losses, outputs, buffers)

    def _one(
        self, parameters: State, frozen: State, buffers: State, inputs: Tensor, labels: Tensor
    ) -> tuple[Tensor, tuple[Tensor, Tensor, State]]:
        own = {**buffers, **written_buffers(buffers, self._mode)}
        norms = NormMode({id(tensor): name for name, tensor in own.items()})
        with norms, autocast(self._precision, inputs):
            outputs = functional_call(self._model, {**parameters, **frozen, **own}, (inputs,))
        loss = one_loss(self._loss(outputs.to(inputs.dtype), labels))
        return loss, (loss, outputs.to(inputs.dtype), moved_buffers(own, norms.updated, self._mode))


def written_buffers(buffers: State, mode: Mode) -> dict[str, Tensor]:
    """Copy the buffers that modules may write to in place, which keeps their writes away from the caller's."""
    return {name: tensor.clone() for name, tensor in buffers.items() if mode == "train" or not _only_read(name)}


def _only_read(name: str) -> bool:
    """Tell the statistics that norms leave alone in eval mode, and that are too many to copy for nothing."""
    return name.endswith(("running_mean", "running_var"))


def moved_buffers(own: State, by_norms: State, mode: Mode) -> dict[str, Tensor]:
    """Return the buffers after a forward pass in train mode: those of norms, and those that modules wrote in place."""
    moved = {name: t.detach() for name, t in own.items() if mode == "train" and t.is_floating_point() and t._version}
    return {**moved, **by_norms}


def autocast(precision: Precision, like: Tensor) -> contextlib.AbstractContextManager[None]:
    """Run a model in bf16 if asked to."""
    return torch.autocast(like.device.type, torch.bfloat16, enabled=precision == "bf16")


@contextlib.contextmanager
def without_fast_attention() -> Iterator[None]:
    """Switch off the attention kernels that have no second derivative."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


@contextlib.contextmanager
def module_mode(model: nn.Module, mode: Mode) -> Iterator[None]:
    """Put all modules into a mode and back into the ones they had."""
    before = {module: module.training for module in model.modules()}
    model.train(mode == "train")
    try:
        yield
    finally:
        for module, training in before.items():
            module.training = training


def _unsupported(model: nn.Module, error: Exception, *, again: Callable[[], object]) -> UnsupportedModelError:
    """Name the innermost module in which the mapped call broke, by making the call again."""
    entered: list[str] = []
    names = {module: name or type(module).__name__ for name, module in model.named_modules()}

    def enter(module: nn.Module, _arguments: tuple[object, ...]) -> None:
        entered.append(f"{names[module]} ({type(module).__name__})")

    def leave(_module: nn.Module, _arguments: tuple[object, ...], _output: object) -> None:
        entered.pop()

    handles = [m.register_forward_pre_hook(enter) for m in names] + [m.register_forward_hook(leave) for m in names]
    try:
        again()
    except Exception:  # noqa: S110 - it is run again only to see where it breaks
        pass
    finally:
        for handle in handles:
            handle.remove()
    where = f"module {entered[-1]}" if entered else "the loss or the backward pass of the model"
    reason = str(error).strip().splitlines()[0].partition(". ")[0] if str(error).strip() else type(error).__name__
    return UnsupportedModelError(
        f"{where} uses an operation that cannot be differentiated for many victims at once ({reason}); "
        "replace it by one that is free of in-place writes and of data-dependent Python, or use eval mode"
    )
