"""Standardization of pixels as the first step of a model."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class Standardize:
    """Subtract a mean and divide by a standard deviation, channel by channel; a forward pre-hook.

    Args:
        mean: of each channel.
        std: of each channel, above 0.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]
    _cache: dict[tuple[torch.device, torch.dtype], tuple[Tensor, Tensor]] = field(
        default_factory=dict, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        if len(self.mean) != len(self.std):
            raise ValueError(f"mean and std must have one number per channel, got {len(self.mean)} and {len(self.std)}")
        if min(self.std, default=1.0) <= 0:
            raise ValueError(f"std must be above 0, got {min(self.std)}")

    def __call__(self, _module: nn.Module, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        """Standardize the first argument of a forward call."""
        return (self.standardize(arguments[0]), *arguments[1:])

    def standardize(self, pixels: Tensor) -> Tensor:
        """Map pixels in [0, 1] to what the model was trained on; without channels, leave them."""
        if not self.mean:
            return pixels
        mean, std = self._tensors(pixels)
        return (pixels - mean) / std

    def pixels(self, standardized: Tensor) -> Tensor:
        """Map standardized values back to pixels."""
        if not self.mean:
            return standardized
        mean, std = self._tensors(standardized)
        return standardized * std + mean

    def _tensors(self, like: Tensor) -> tuple[Tensor, Tensor]:
        key = (like.device, like.dtype)
        if key not in self._cache:
            values = torch.tensor([self.mean, self.std], dtype=torch.float64)[..., None, None]
            mean, std = values.to(device=like.device, dtype=like.dtype)
            self._cache[key] = (mean, std)
        return self._cache[key]

    def __deepcopy__(self, memo: dict[int, Any]) -> "Standardize":
        return Standardize(self.mean, self.std)


def normalized(model: nn.Module, mean: Sequence[float], std: Sequence[float]) -> nn.Module:
    """Copy a model and make standardization its first step, so that it eats images in [0, 1].

    The names of parameters and buffers stay as they are; attacks read mean and std from the copy.

    Example:
        >>> model = normalized(nn.Flatten(), mean=[0.5], std=[0.25])
        >>> model(torch.ones(1, 1, 1, 2))
        tensor([[2., 2.]])
    """
    if find_normalization(model).mean:
        raise ValueError("the model is normalized already; normalize the plain model instead")
    copied = copy.deepcopy(model)
    copied.register_forward_pre_hook(Standardize(tuple(map(float, mean)), tuple(map(float, std))))
    return copied


def find_normalization(model: nn.Module) -> Standardize:
    """Return the standardization of a model; one without channels, which changes nothing, if it has none."""
    found = [hook for hook in model._forward_pre_hooks.values() if isinstance(hook, Standardize)]
    return found[0] if found else Standardize((), ())
