"""The condition that an obscured image meets for its private one, and who knows what it depends on."""

import copy
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from gradveil.errors import KnowledgeError
from gradveil.types import Auxiliary, Observation


def stationarity(images: Tensor, obscured: Tensor, extractor: nn.Module, *, weight: float) -> Tensor:
    """Return (N, C, H, W), J(x')ᵀ(g(x') - g(x)) - w·(x' - x), which is zero where x' is stationary for x (Eq. 5).

    Args:
        images: (N, C, H, W), the x; the result can be differentiated with respect to it.
        obscured: (N, C, H, W), the x'.
        extractor: g, from (N, C, H, W) to (N, F).
        weight: w.
    """
    with torch.enable_grad():
        leaf = obscured.detach().requires_grad_()
        features = extractor(leaf)
        difference = features.detach() - extractor(images)
        (pulled,) = torch.autograd.grad(features, leaf, difference, create_graph=True)
    return pulled - weight * (obscured - images)


def condition(images: Tensor, obscured: Tensor, extractor: nn.Module, *, weight: float) -> Tensor:
    """Return what `stationarity` does, as a function that can be differentiated by both images.

    Args:
        images: (N, C, H, W), the x.
        obscured: (N, C, H, W), the x'.
        extractor: g, from (N, C, H, W) to (N, F).
        weight: w.
    """
    with torch.enable_grad():
        own = obscured if obscured.requires_grad else obscured.detach().requires_grad_()
        features = extractor(own)
        (pulled,) = torch.autograd.grad(features, own, features - extractor(images), create_graph=True)
    return pulled - weight * (own - images)


@runtime_checkable
class Obscuring(Protocol):
    """What a known obscuring defense tells."""

    @property
    def descent(self) -> Any:
        """Its settings, of which `c` is the weight of looking different."""

    def features(self, images: Tensor) -> nn.Module:
        """Return the map from images (N, C, H, W) like these to what it aligns."""


def known_extractor(observation: Observation, like: Tensor) -> nn.Module:
    """Return the features of the known defense, or those that the adversary has otherwise."""
    known = [defense for defense in observation.defenses or () if isinstance(defense, Obscuring)]
    given = known[0].features(like[0]) if known else (observation.auxiliary or Auxiliary()).extractor
    if given is None:
        raise KnowledgeError("loda-aware needs the extractor of a known defense; grant it or Auxiliary(extractor=...)")
    own = copy.deepcopy(given).to(device=observation.device, dtype=observation.dtype)
    return own.eval().requires_grad_(False)


def known_weight(observation: Observation) -> float:
    """Return the weight c of the known defense, 20 where none tells."""
    known = [defense for defense in observation.defenses or () if isinstance(defense, Obscuring)]
    return float(known[0].descent.c) if known else 20.0
