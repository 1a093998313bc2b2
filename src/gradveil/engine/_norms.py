"""Norms of many victims: differentiable twice, and without touching anybody's running statistics."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from gradveil.errors import UnsupportedModelError


class NormMode(TorchFunctionMode):
    """Computes norms inside `vmap`, and keeps the new running statistics of batch norm aside.

    The weights of layer and instance norms are applied outside of them: inside, the rule of `vmap` for the gradient of
    a weight takes mean and deviation for constants, and the second derivative comes out wrong.

    Args:
        names: of the running statistics, by the identity of their tensors.
    """

    def __init__(self, names: Mapping[int, str]) -> None:
        super().__init__()
        self._names = names
        self.updated: dict[str, Tensor] = {}

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Take over the norms; let everything else pass."""
        kwargs = kwargs or {}
        if func is F.layer_norm:
            return _layer_norm(*args, **kwargs)
        if func is F.instance_norm:
            return _instance_norm(*args, **kwargs)
        if func is torch._weight_norm:
            return _weight_norm(*args, **kwargs)
        if func is F.batch_norm:
            call = batch_norm_arguments(*args, **kwargs)
            if call["training"]:
                normalized = normalize_batch(call, victims=None, names=self._names, updated=self.updated)
                return affine(normalized, call["weight"], call["bias"])
        return func(*args, **kwargs)


def batch_norm_arguments(
    input: Tensor,  # noqa: A002 - the name torch gives it
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> dict[str, Any]:
    """Name the arguments of a call of batch norm."""
    return dict(locals())


def normalize_batch(
    call: Mapping[str, Any], *, victims: int | None, names: Mapping[int, str], updated: dict[str, Tensor]
) -> Tensor:
    """Standardize each victim's batch by its own statistics.

    Args:
        call: the arguments of batch norm.
        victims: number of victims merged into the batch axis; None for one alone.
        names: of the running statistics, by the identity of their tensors.
        updated: receives the new ones by name, (V, C) if victims are merged, (C,) otherwise; a norm that runs twice
            moves its statistics twice.
    """
    inputs: Tensor = call["input"]
    stacked = inputs.unflatten(0, (victims or 1, -1))
    axes = [1, *range(3, stacked.ndim)]
    mean, variance = stacked.mean(axes, keepdim=True), stacked.var(axes, correction=0, keepdim=True)

    count = stacked[0].numel() // stacked.shape[2]
    if count == 1:
        raise UnsupportedModelError(
            "batch norm in train mode needs more than one value per channel, got one; use more samples or eval mode"
        )
    unbiased = variance * (count / (count - 1))
    for old, new in ((call["running_mean"], mean), (call["running_var"], unbiased)):
        name = names.get(id(old))
        if name is not None:
            fresh = new.detach().flatten(1) if victims else new.detach().flatten()
            updated[name] = (1 - call["momentum"]) * updated.get(name, old) + call["momentum"] * fresh
    normalized: Tensor = (stacked - mean) * torch.rsqrt(variance + call["eps"])
    return normalized.flatten(0, 1)


def affine(normalized: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """Scale and shift each channel."""
    shape = (1, -1, *[1] * (normalized.ndim - 2))
    scaled = normalized if weight is None else normalized * weight.view(shape)
    return scaled if bias is None else scaled + bias.view(shape)


def _layer_norm(
    input: Tensor,  # noqa: A002 - the name torch gives it
    normalized_shape: list[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    normalized = F.layer_norm(input, normalized_shape, eps=eps)
    scaled = normalized if weight is None else normalized * weight
    return scaled if bias is None else scaled + bias


def _instance_norm(
    input: Tensor,  # noqa: A002 - the name torch gives it
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    normalized = F.instance_norm(input, running_mean, running_var, None, None, use_input_stats, momentum, eps)
    return affine(normalized, weight, bias)


def _weight_norm(direction: Tensor, length: Tensor, dim: int = 0) -> Tensor:
    """Give a weight its length; the fused kernel of a GPU has no second derivative inside `vmap`."""
    scaled: Tensor = direction * (length / torch.norm_except_dim(direction, 2, dim))
    return scaled
