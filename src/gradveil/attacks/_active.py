"""What a malicious server is: an attack that changes the network before it is sent."""

import copy
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

from torch import Tensor, nn

from gradveil.attacks._base import Attack
from gradveil.errors import UnsupportedModelError
from gradveil.streams import Streams
from gradveil.types import Auxiliary, Observation, State

M = TypeVar("M", bound=nn.Module)


class ActiveAttack(Attack):
    """Sends a changed network, and reads the updates that come back; see `Attack` for the reading.

    Attributes:
        queries: how often a client trains on the same batch; the attack itself reads the last update.
    """

    queries: int = 1

    @abstractmethod
    def poison(
        self,
        model: nn.Module,
        *,
        input_shape: tuple[int, int, int, int],
        auxiliary: Auxiliary | None,
        streams: Streams,
    ) -> nn.Module:
        """Return a changed copy of a network, in which parameters of the original keep their names.

        Args:
            model: as an honest server would send it; it is left alone.
            input_shape: (B, C, H, W) that clients are expected to train on.
            auxiliary: public images to tune the change on.
            streams: the server's randomness; all victims get the same network.
        """

    def poison_again(self, history: Sequence[Observation], *, auxiliary: Auxiliary | None) -> State:  # noqa: ARG002
        """Return what to send in place of the weights of `poison`, (V, *shape) by name; nothing sends them again.

        Args:
            history: what came back so far, one observation of all victims per query.
            auxiliary: public images, as for `poison`.
        """
        return {}


def server_streams(streams: Streams) -> Streams:
    """Return the streams of the server, which has no victims axis: one draw for all."""
    return replace(streams, keys=((0,),)).fork("poison")


def put_before(model: nn.Module, name: str, block: nn.Module) -> nn.Module:
    """Return a copy of a network that runs a block on its (standardized) input first.

    The block is registered as the first child, so that its parameters come first and all others keep their names.

    Example:
        >>> changed = put_before(nn.Sequential(nn.Linear(2, 2)), "block", nn.Linear(2, 2))
        >>> [name for name, _ in changed.named_parameters()]
        ['block.weight', 'block.bias', '0.weight', '0.bias']
    """
    changed = copy.deepcopy(model)
    children = dict(changed.named_children())
    if name in children:
        raise UnsupportedModelError(f"the network has a part called '{name}' already; poison the original one")
    changed._modules.clear()
    for key, child in {name: block, **children}.items():
        changed.add_module(key, child)
    if type(changed).forward is not nn.Sequential.forward:  # which runs whatever is registered
        changed.register_forward_pre_hook(_Before(name))
    return changed


class _Before:
    """A hook that runs a named part first; it looks the part up, so that it survives copies of the network."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, module: nn.Module, arguments: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return (module.get_submodule(self._name)(arguments[0]), *arguments[1:])


def find_block(observation: Observation, kind: type[M], attack: str) -> tuple[str, M]:
    """Return the part of a kind that `poison` put into the observed network, and its path."""
    for path, module in observation.model.named_modules():
        if isinstance(module, kind):
            return path, module
    raise UnsupportedModelError(f"{attack} reads the updates of a network it changed itself; send out `poison(model)`")
