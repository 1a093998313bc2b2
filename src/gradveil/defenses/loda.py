"""Learning to Obscure Data."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, final, get_args

import torch
from torch import Tensor
from typing_extensions import override

from gradveil.defenses._base import Adversary, DataDefense
from gradveil.defenses._obscuring import Descent, draw_start, image_streams, obscure
from gradveil.defenses._obscuring_features import (
    Extractor,
    LayerFeatures,
    Reading,
    Variant,
    layer_set,
    untrained,
)
from gradveil.streams import Streams
from gradveil.types import Card, Paper, Protected

_WEIGHTS: dict[Variant, float] = {"loda1": 20.0, "loda2": 30.0, "loda3": 1.0}


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Loda(DataDefense):
    """Train on images that an extractor takes for the private ones and that look as different as possible.

    An image is obscured from a random public image of the client's pool, or from noise without one, which its content
    and the seed decide: it comes out the same at every step. Sets are better obscured once, by `gradveil.obscuring`.
    Protects what is visible in a recovered image; an adversary who has the extractor can aim at what the features keep.
    Protects nothing where features are strong and c is small: then the private image itself is what it converges to.

    Args:
        variant: layers and weight, `loda1` and `loda2` for CIFAR-10, `loda3` for SVHN.
        reading: layers as the `paper` says or as its `program` has them.
        layers: to align instead of the variant's, by module path; `fc:input` means what enters `fc`.
        c: weight of looking different; None for the variant's 20, 30 or 1.
        steps: of normalized gradient descent; 0 leaves the public image as it is.
        lr: length of a step, over all pixels of an image.
        extractor: checkpoint of `gradveil train extractor`; None takes random convolutions, for trials alone.
    """

    paper: ClassVar[Paper | None] = Paper(
        title="Defense Against Gradient Leakage Attacks via Learning to Obscure Data",
        authors="Wan, Xu, Liu, Ren, Fan, Tang",
        year=2022,
        url="https://arxiv.org/abs/2206.00769",
    )
    adversary: ClassVar[Adversary] = Adversary(
        attack="loda-aware",
        reason="who has the extractor looks for a private image that the recovered one is stationary for",
    )
    card: ClassVar[Card] = Card(
        fails="a weight c that is small against the features: then descent ends at the private image itself; an "
        "adversary with the extractor can aim at what the features keep",
        costs="500 forward and backward passes of the extractor per image, once per private set; some accuracy",
        suggested="an extractor of gradveil train extractor on public images, loda1 or loda2 for natural images; sets "
        "obscured once, by gradveil obscure",
        interacts="augmentation at training acts on obscured images; without a pool of public ones descent starts from "
        "noise",
    )
    off: ClassVar[Mapping[str, object] | None] = None

    variant: Variant = "loda1"
    reading: Reading = "paper"
    layers: tuple[str, ...] = ()
    c: float | None = None
    steps: int = 500
    lr: float = 0.1
    extractor: Extractor | None = None

    def __post_init__(self) -> None:
        for name, kind in (("variant", Variant), ("reading", Reading)):
            if getattr(self, name) not in get_args(kind):
                raise ValueError(f"{name} must be {' or '.join(get_args(kind))}, got '{getattr(self, name)}'")
        _ = self.descent

    @property
    def descent(self) -> Descent:
        """Steps and weights."""
        return Descent(c=_WEIGHTS[self.variant] if self.c is None else self.c, steps=self.steps, lr=self.lr)

    def features(self, images: Tensor) -> LayerFeatures:
        """Return the map from images (N, C, H, W) like these to what is aligned, (N, F)."""
        model = (
            self.extractor.network(images)
            if self.extractor
            else untrained(images.shape[1], c=self.descent.c, like=images)
        )
        found = LayerFeatures(model, self.layers or layer_set(model, self.variant, self.reading))
        return found.to(device=images.device, dtype=images.dtype)

    @override
    def protect(self, data: Protected, *, pool: Tensor | None, streams: Streams) -> Protected:
        private = data.inputs.flatten(0, 1)
        start = draw_start(private, pool, image_streams(private, streams))
        # Without gradients of weights, and with none of the caller's.
        with torch.no_grad():
            obscured = obscure(private, start, self.features(private), self.descent)
        return replace(data, inputs=obscured.view(data.inputs.shape))
