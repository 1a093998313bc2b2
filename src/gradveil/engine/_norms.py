"""Batch norm in train mode, without touching anybody's running statistics."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode


class BatchNormMode(TorchFunctionMode):
    """Computes train-mode batch norm by hand and keeps the new running statistics aside.

    Args:
        victims: number of victims merged into the batch axis; None inside `vmap`, where there is one.
        names: of the running statistics, by the identity of their tensors.
    """

    def __init__(self, victims: int | None, names: Mapping[int, str]) -> None:
        super().__init__()
        self._victims = victims
        self._names = names
        self.updated: dict[str, Tensor] = {}

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Take over batch norm in train mode; let everything else pass."""
        if func is F.batch_norm:
            call = batch_norm_arguments(*args, **(kwargs or {}))
            if call["training"]:
                normalized, updates = normalize_batch(call, victims=self._victims)
                self.updated |= {self._names[key]: value for key, value in updates.items() if key in self._names}
                return affine(normalized, call["weight"], call["bias"])
        return func(*args, **(kwargs or {}))


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


def normalize_batch(call: Mapping[str, Any], *, victims: int | None) -> tuple[Tensor, dict[int, Tensor]]:
    """Standardize each victim's batch by its own statistics.

    Returns:
        The input standardized, and the new running statistics by the identity of the old ones; (V, C) if victims
        are merged in the batch axis, (C,) otherwise.
    """
    inputs: Tensor = call["input"]
    stacked = inputs.unflatten(0, (victims or 1, -1))
    axes = [1, *range(3, stacked.ndim)]
    mean, variance = stacked.mean(axes, keepdim=True), stacked.var(axes, correction=0, keepdim=True)
    normalized = ((stacked - mean) * torch.rsqrt(variance + call["eps"])).flatten(0, 1)

    count = stacked[0].numel() / stacked.shape[2]
    unbiased = variance * (count / max(count - 1, 1))
    updates = {}
    for old, new in ((call["running_mean"], mean), (call["running_var"], unbiased)):
        if old is not None:
            fresh = new.detach().flatten(1) if victims else new.detach().flatten()
            updates[id(old)] = (1 - call["momentum"]) * old + call["momentum"] * fresh
    return normalized, updates


def affine(normalized: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """Scale and shift each channel."""
    shape = (1, -1, *[1] * (normalized.ndim - 2))
    scaled = normalized if weight is None else normalized * weight.view(shape)
    return scaled if bias is None else scaled + bias.view(shape)
