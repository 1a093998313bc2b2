"""Layers are named in one way: by their module path, such as `layer1.0.conv1`; the default is the last `nn.Linear`.

What enters and leaves a layer can be read while the network runs, also under `torch.func.functional_call`, `vmap` and
`grad`, and the readings can be differentiated.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call

from gradveil.errors import UnsupportedModelError, unknown_name
from gradveil.types import State


class Tap(NamedTuple):
    """What was read at one layer.

    Args:
        inputs: its first argument, (B, ...).
        outputs: what it returned, (B, ...).
    """

    inputs: Tensor
    outputs: Tensor


class LayerSummary(NamedTuple):
    """One line about a layer.

    Args:
        path: module path.
        kind: class name.
        output_shape: of one sample.
        parameters: how many numbers it learns.
    """

    path: str
    kind: str
    output_shape: tuple[int, ...]
    parameters: int


def find(model: nn.Module, path: str | None = None) -> str:
    """Return the path of a layer, after checking that there is one; None means the last linear layer.

    Example:
        >>> find(nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)))
        '3'
    """
    if path is None:
        return last_linear(model)
    paths = [name for name, _ in model.named_modules() if name]
    if path not in paths:
        near = get_close_matches(path, paths, cutoff=0.5)
        raise unknown_name("layer", path, paths if near else [name for name, _ in model.named_children()])
    return path


def last_linear(model: nn.Module) -> str:
    """Return the path of the linear layer that was registered last, which makes the outputs of a classifier."""
    return _linears(model)[-1]


def first_linear(model: nn.Module) -> str:
    """Return the path of the linear layer that was registered first, which eats the features.

    Example:
        >>> first_linear(nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)))
        '1'
    """
    return _linears(model)[0]


def parameters_of(model: nn.Module, path: str | None = None) -> tuple[str, ...]:
    """List the names of the parameters at or below a layer, in the order of the model.

    Example:
        >>> parameters_of(nn.Sequential(nn.Flatten(), nn.Linear(4, 3)), "1")
        ('1.weight', '1.bias')
    """
    prefix = f"{find(model, path)}."
    return tuple(name for name, _ in model.named_parameters() if name.startswith(prefix))


def run_with(model: nn.Module, state: State, inputs: Tensor, *, paths: Iterable[str]) -> tuple[Tensor, dict[str, Tap]]:
    """Run a network with other weights and read what enters and leaves some of its layers.

    The readings lie on the way to the outputs, so that both can be differentiated with respect to inputs and weights,
    and the outputs with respect to a reading. A layer that runs several times keeps its last run. The model itself
    stays as it is; like `functional_call`, this is not for two threads with one model.

    Args:
        model: any network of one tensor.
        state: parameters and buffers by name; the model's own take the place of missing ones.
        inputs: (B, ...).
        paths: of the layers to read.

    Returns:
        The outputs, and one reading per path.

    Example:
        >>> model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
        >>> outputs, taps = run_with(model, {}, torch.zeros(5, 4), paths=["2"])
        >>> taps["2"].inputs.shape, torch.equal(taps["2"].outputs, outputs)
        (torch.Size([5, 3]), True)
    """
    paths = [find(model, path) for path in paths]
    with _tapped(model, paths) as taps:
        outputs = functional_call(model, dict(state), (inputs,))

    for path in paths:
        if path not in taps:
            raise UnsupportedModelError(f"layer '{path}' did not run on these inputs; name a layer that does")
    return outputs, taps


def describe(model: nn.Module, input_shape: tuple[int, ...]) -> tuple[LayerSummary, ...]:
    """List all layers that have no layers inside and run, without computing anything.

    Args:
        model: any network of one tensor.
        input_shape: of one sample.

    Example:
        >>> describe(nn.Sequential(nn.Flatten(), nn.Linear(4, 3)), (1, 2, 2))[1]
        LayerSummary(path='1', kind='Linear', output_shape=(3,), parameters=15)
    """
    leaves = {path: layer for path, layer in model.named_modules() if path and not any(layer.children())}
    named = (*model.named_parameters(), *model.named_buffers())
    # Tensors of the meta device have a shape and no content; two samples satisfy batch norm in train mode.
    state = {name: torch.empty_like(tensor, device="meta") for name, tensor in named}
    dtype = next((tensor.dtype for tensor in state.values() if tensor.is_floating_point()), None)
    inputs = torch.empty(2, *input_shape, device="meta", dtype=dtype)
    with _tapped(model, leaves) as taps:
        functional_call(model, state, (inputs,))
    return tuple(_summary(path, layer, taps[path]) for path, layer in leaves.items() if path in taps)


def _linears(model: nn.Module) -> list[str]:
    found = [path for path, layer in model.named_modules() if path and isinstance(layer, nn.Linear)]
    if not found:
        raise UnsupportedModelError(f"{type(model).__name__} has no nn.Linear inside; name a layer by its path")
    return found


@contextmanager
def _tapped(model: nn.Module, paths: Iterable[str]) -> Iterator[dict[str, Tap]]:
    """Collect readings for the time of a block."""
    taps: dict[str, Tap] = {}
    handles = [model.get_submodule(path).register_forward_hook(_reader(taps, path)) for path in paths]
    try:
        yield taps
    finally:
        for handle in handles:
            handle.remove()


def _reader(taps: dict[str, Tap], path: str) -> Callable[[nn.Module, tuple[Any, ...], Any], Tensor]:
    def read(layer: nn.Module, arguments: tuple[Any, ...], outputs: Any) -> Tensor:
        if not (arguments and isinstance(arguments[0], Tensor) and isinstance(outputs, Tensor)):
            raise UnsupportedModelError(f"{type(layer).__name__} at '{path}' does not turn one tensor into another")
        taps[path] = Tap(arguments[0], outputs)
        # The network goes on with a copy: an activation that works in place must not change what was read.
        return outputs.clone()

    return read


def _summary(path: str, layer: nn.Module, tap: Tap) -> LayerSummary:
    parameters = sum(math.prod(parameter.shape) for parameter in layer.parameters())
    return LayerSummary(path, type(layer).__name__, tuple(tap.outputs.shape[1:]), parameters)
