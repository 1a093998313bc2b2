"""Linear layers by their module path, and what enters them."""

from dataclasses import dataclass

from torch import Tensor, nn
from torch.func import functional_call

from gradveil.errors import UnsupportedModelError, unknown_name
from gradveil.types import State


def find_linear(model: nn.Module, path: str) -> str:
    """Return the path of a linear layer, after checking that there is one; an empty path means the last one.

    Example:
        >>> find_linear(nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)), "")
        '3'
    """
    found: list[str] = []
    for name, layer in model.named_modules():
        # What a defense hangs below a linear layer is not a layer of the network.
        if name and isinstance(layer, nn.Linear) and not any(name.startswith(f"{outer}.") for outer in found):
            found.append(name)
    if not found:
        raise UnsupportedModelError(
            f"the defense needs an nn.Linear in the network, but {type(model).__name__} has none"
        )
    if path and path not in found:
        raise unknown_name("linear layer", path, found)
    return path or found[-1]


def linear(model: nn.Module, path: str) -> nn.Linear:
    """Return a linear layer by its path; an empty path means the last one."""
    layer = model.get_submodule(find_linear(model, path))
    assert isinstance(layer, nn.Linear)
    return layer


def insert_before(model: nn.Module, path: str, name: str, module: nn.Module) -> None:
    """Put a module of one tensor before a layer, in place; it is registered, and comes in all lists, right before it.

    Example:
        >>> model = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
        >>> insert_before(model, "1", "extra", nn.Tanh())
        >>> [name for name, _ in model.named_children()]
        ['0', 'extra', '1']
    """
    above, _, last = path.rpartition(".")
    parent = model.get_submodule(above)
    children = dict(parent.named_children())
    parent._modules.clear()
    for key, child in children.items():
        if key == last:
            parent.add_module(name, module)
        parent.add_module(key, child)
    if not isinstance(parent, nn.Sequential):  # which runs whatever is registered
        children[last].register_forward_pre_hook(_Before(module))


@dataclass(frozen=True, slots=True)
class _Before:
    """A hook that changes what enters a layer; a class, so that it is copied and written together with the network."""

    module: nn.Module

    def __call__(self, _layer: nn.Module, arguments: tuple[Tensor, ...]) -> tuple[Tensor]:
        changed: Tensor = self.module(arguments[0])
        return (changed,)


def features(model: nn.Module, state: State, inputs: Tensor, *, path: str) -> Tensor:
    """Return what enters a linear layer, (B, d), when the network runs with a state of its own on (B, ...)."""
    seen: list[Tensor] = []

    def read(_layer: nn.Module, arguments: tuple[Tensor, ...]) -> None:
        seen.append(arguments[0])

    handle = model.get_submodule(path).register_forward_pre_hook(read)
    try:
        functional_call(model, dict(state), (inputs,))
    finally:
        handle.remove()
    if not seen or seen[-1].ndim != 2:
        shape = tuple(seen[-1].shape) if seen else "nothing"
        raise UnsupportedModelError(f"layer '{path}' must take one (batch, features) tensor, got {shape}; name another")
    return seen[-1]
