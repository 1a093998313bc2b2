"""How weights start; a row of the table is a name in spec files."""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, Literal, TypeAlias

import torch
from torch import nn

from gradveil.errors import UnsupportedModelError

Init: TypeAlias = Literal["uniform-0.5", "uniform-0.3", "kaiming", "kaiming-uniform", "default"]
"""Normalization layers start as the identity in all of them, the rest as follows.

`uniform-b`: weights and biases in ±b (0.5 in DLG, 0.3 in SPN). `kaiming`: convolutions normal by the fan out, without
bias, and linear layers as torch has them (ResNet, ATS). `kaiming-uniform`: uniform by the fan in with the gain of the
ReLU, without bias (SPN). `default`: as torch has them.
"""

Weighted: TypeAlias = nn.Conv2d | nn.Linear


def initialize(model: nn.Module, init: Init, *, generator: torch.Generator) -> None:
    """Fill all parameters and buffers of a network in place, in the order of its modules.

    Args:
        model: of convolutions, linear layers and normalization layers; others may hold no parameters.
        init: one of the names above.
        generator: where the numbers come from.
    """
    fill = RULES[init]
    for path, module in model.named_modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            fill(module, generator)
        elif isinstance(module, nn.BatchNorm2d | nn.GroupNorm):
            module.reset_parameters()
        elif _holds_tensors(module):
            raise UnsupportedModelError(f"no rule to initialize {type(module).__name__} at '{path}'; add one")


def _holds_tensors(module: nn.Module) -> bool:
    return any(True for _ in (*module.parameters(recurse=False), *module.buffers(recurse=False)))


def _uniform(layer: Weighted, generator: torch.Generator, *, bound: float) -> None:
    for parameter in layer.parameters(recurse=False):
        nn.init.uniform_(parameter, -bound, bound, generator=generator)


def _kaiming(layer: Weighted, generator: torch.Generator) -> None:
    if isinstance(layer, nn.Linear):
        _default(layer, generator)
        return
    nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu", generator=generator)
    _zero_bias(layer)


def _kaiming_uniform(layer: Weighted, generator: torch.Generator) -> None:
    nn.init.kaiming_uniform_(layer.weight, nonlinearity="relu", generator=generator)
    _zero_bias(layer)


def _default(layer: Weighted, generator: torch.Generator) -> None:
    nn.init.kaiming_uniform_(layer.weight, a=math.sqrt(5), generator=generator)
    if layer.bias is not None:
        bound = 1 / math.sqrt(layer.weight[0].numel())
        nn.init.uniform_(layer.bias, -bound, bound, generator=generator)


def _zero_bias(layer: Weighted) -> None:
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)


RULES: Final[Mapping[Init, Callable[[Weighted, torch.Generator], None]]] = {
    "uniform-0.5": partial(_uniform, bound=0.5),
    "uniform-0.3": partial(_uniform, bound=0.3),
    "kaiming": _kaiming,
    "kaiming-uniform": _kaiming_uniform,
    "default": _default,
}
