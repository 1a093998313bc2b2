"""How large a gradient is against what a defense did to it, and what the SPN paper concludes from it."""

import math
from collections.abc import Mapping
from statistics import median
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from gradveil._serving import Served

Region: TypeAlias = Literal["green", "white", "red"]
"""Where a ratio ||B|| / ||E|| lies: below 1 (the condition of the theorem fails), up to tens, or beyond."""

TENS = 10.0


def perturbation_ratios(
    clean: Mapping[str, Tensor], shared: Mapping[str, Tensor], *, start: Mapping[str, Tensor] | None = None
) -> dict[str, Tensor]:
    """Return ||gradient|| / ||perturbation|| of each parameter that both have, (V,); empty if nothing was perturbed.

    What is as it was, beside something that is not, has an infinite ratio.

    Args:
        clean: (V, *shape) by name, the plain update.
        shared: (V, *shape) by name, what left the client.
        start: to subtract from both to see the change, where weights are shared.

    Example:
        >>> perturbation_ratios({"w": torch.tensor([[3.0, 4.0]])}, {"w": torch.tensor([[3.0, 5.0]])})
        {'w': tensor([5.])}
    """
    ratios = {}
    for name in (name for name in shared if name in clean and clean[name].shape == shared[name].shape):
        before = clean[name]
        perturbation = (shared[name] - before).flatten(1).norm(dim=1)
        length = (before - start[name] if start and name in start else before).flatten(1).norm(dim=1)
        ratios[name] = torch.where(perturbation > 0, length / perturbation, torch.inf)
    return ratios if any(bool(ratio.isfinite().any()) for ratio in ratios.values()) else {}


def ratios_of(served: Served) -> dict[str, Tensor]:
    """Compare what left the clients with the plain update of the same batches on the same network."""
    shared = dict(zip(served.step.observation.names, served.step.evidence.update, strict=True))
    return perturbation_ratios(served.plain, shared, start=served.start)


def region(ratio: float) -> Region:
    """Name the region of a ratio (SPN, Fig. 5 and Sect. 4.2): green below 1, red from tens on, white between.

    Example:
        >>> region(0.5), region(3), region(1000)
        ('green', 'white', 'red')
    """
    if ratio < 1:
        return "green"
    return "white" if ratio < TENS else "red"


def regions(ratios: Mapping[str, Tensor]) -> dict[str, Region]:
    """Name the region of each layer for the median victim.

    The theorem speaks of the gradient of the bias; a layer whose bias was not perturbed, or that has none, is placed by
    its weights.

    Example:
        >>> regions({"fc.weight": torch.tensor([50.0]), "fc.bias": torch.tensor([0.5])})
        {'fc': 'green'}
    """
    layers: dict[str, dict[str, float]] = {}
    for name, ratio in ratios.items():
        path, _, parameter = name.rpartition(".")
        layers.setdefault(path or name, {})[parameter] = median(ratio.double().tolist())
    return {layer: region(_deciding(own)) for layer, own in layers.items()}


def _deciding(own: Mapping[str, float]) -> float:
    """Return the ratio of a layer's bias if that was perturbed, else the smallest of its parameters."""
    bias = own.get("bias", math.inf)
    return bias if math.isfinite(bias) else min(own.values())
