"""Decoding of mixtures without knowing how they were mixed."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal, TypeAlias, final

import torch
import torch.nn.functional as F
from torch import Tensor
from typing_extensions import override

from gradveil.attacks._decode_classes import map_by_class, tell_apart, worth_comparing
from gradveil.attacks._decode_clusters import affinity, assign, coefficients, grow_clusters, pick_clusters
from gradveil.attacks._decode_magnitudes import misfit, solve_magnitudes
from gradveil.attacks._decode_refinement import Mixtures, refine
from gradveil.attacks._decode_regression import solve_mixtures
from gradveil.attacks._decode_signs import fix_signs
from gradveil.attacks._decode_similarity import Similarity, compare, train_similarity
from gradveil.attacks._decoding import Decoder, Decoding, Encodings
from gradveil.engine import Runtime
from gradveil.engine.runtime import Checkpoint
from gradveil.errors import DataError
from gradveil.streams import Streams
from gradveil.types import Auxiliary, Card, Knowledge, Paper

Compared: TypeAlias = Callable[[Tensor | None], Tensor]
"""Pairs that are asked for (N, N), None for all, to logits (N, N)."""

_MAPPING = "mapping"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeMixing(Decoder):
    """Find encodings that share an image, then which image is in which, how much, and solve for the images.

    A network is trained on mixtures of public images to compare two encodings; encodings are clustered by it; every
    encoding is given its images by minimum-cost flow; regression on the encodings, or on their magnitudes where signs
    were flipped, gives the images. The published second network, which compares an encoding with a cluster, is replaced
    by the mean similarity to the members. Additions: the assignment is judged again by the images found; soft labels,
    where known, give the shares, and where they name about as many classes as there are images in an encoding, only
    encodings with a class in common are compared, and every class is divided into its images on its own.

    Args:
        images: P, private images looked for.
        k: of them in every encoding.
        from_pool: further images of every encoding, from a public set; nobody looks for those.
        flipped: whether signs were flipped: `no` for Mixup, `yes` for InstaHide.
        train_steps: of the network.
        pairs: of encodings in a step.
        width: channels of the network.
        lr: of its Adam.
        refinements: rounds at most in which the images found decide again who is in which encoding; 0 as published.
        steps: of the regression.
    """

    paper: ClassVar[Paper] = Paper(
        title="Is Private Learning Possible with Instance Encoding?",
        authors="Carlini, Deng, Garg, Jha, Mahloujifar, Mahmoody, Thakurta, Tramèr",
        year=2020,
        url="https://arxiv.org/abs/2011.05315",
    )
    requires: ClassVar[Knowledge] = Knowledge.AUXILIARY
    card: ClassVar[Card] = Card(
        fails="few encodings of each image, so that clusters are empty; public images of another kind than the private "
        "ones; encodings recovered with much noise, which regression turns into noise of images",
        costs="training of a small network per group, a comparison of all pairs of encodings (with labels, of those "
        "that share a class), and one linear program per refinement",
        suggested="several times as many encodings of each image as it has partners; soft labels, where they are "
        "known, without which flipped signs hide much more",
        interacts="images of a public set in the encodings (from_pool) are noise, which more encodings average "
        "away; flipped signs leave the sign of every pixel open, which smooth images give away, noisy ones not",
    )

    images: int = 50
    k: int = 4
    from_pool: int = 0
    flipped: Literal["no", "yes"] = "yes"
    train_steps: int = 5000
    pairs: int = 256
    width: int = 64
    lr: float = 1e-3
    refinements: int = 120
    steps: int = 1000

    def __post_init__(self) -> None:
        for name in ("images", "k", "train_steps", "pairs", "width", "steps"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in ("refinements", "from_pool"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be at least 0, got {getattr(self, name)}")
        if self.images < self.k:
            raise ValueError(f"images must be at least k={self.k}, got {self.images}")

    @override
    def decode(self, encodings: Encodings, *, streams: Streams, runtime: Runtime) -> Decoding:
        mixed, count = self.k + self.from_pool, encodings.images.shape[1]
        if count < self.images:
            raise DataError(
                f"images={self.images} are looked for in fewer encodings, {count}; give more, or lower images"
            )
        public, flipped = public_images(encodings, at_least=2 * mixed) - encodings.center(), self.flipped == "yes"
        visible: Callable[[Tensor], Tensor] = torch.abs if flipped else torch.clone
        settings = Similarity(k=mixed, steps=self.train_steps, batch=self.pairs, width=self.width, lr=self.lr)
        weights = []
        for group, seen in enumerate(encodings.centered()):
            labels = None if encodings.labels is None else encodings.labels[group]
            own, checkpoint = streams.select([group]), Checkpoint(runtime.named(f"mapping-{group}"))
            kept = checkpoint.load()
            if not kept:
                part = runtime.named(f"similarity-{group}")
                network = train_similarity(public, visible, settings, streams=own, runtime=part)
                kept = {_MAPPING: self.mapping(partial(compare, network, visible(seen)), labels, streams=own)}
                checkpoint.save(kept.copy, finished=True)
            telling = labels if labels is not None and tell_apart(labels, k=self.k) else None
            mixtures = Mixtures(seen=seen, k=self.k, flipped=flipped, labels=telling)
            first, part = kept[_MAPPING].to(seen), runtime.named(f"refinement-{group}")
            weights.append(refine(first, mixtures, rounds=self.refinements, streams=own, runtime=part))
        return self._regress(encodings, torch.stack(weights), streams=streams, runtime=runtime)

    def mapping(self, compared: Compared, labels: Tensor | None, *, streams: Streams) -> Tensor:
        """Return (N, P), how much of each image is in each encoding.

        Args:
            compared: returns logits (N, N) of one group, for all pairs or for those that are asked for.
            labels: (N, K) soft labels of the group, None if they are unknown.
            streams: of the group.
        """
        if labels is not None and tell_apart(labels, k=self.k):
            return map_by_class(compared(worth_comparing(labels)), labels, images=self.images)
        # Summed, logarithms of probabilities say how likely all members share an image; two shared ones count as one.
        scores = F.logsigmoid(compared(None)).fill_diagonal_(0)
        average = len(scores) * self.k / self.images
        size = min(len(scores) - 1, max(4, round(average)))
        masks = pick_clusters(grow_clusters(scores, size=size, streams=streams), scores, count=self.images)
        chosen = assign(affinity(masks, scores), k=self.k)
        shares = coefficients(chosen, labels, k=self.k)
        return shares if labels is not None else shares * self.k / (self.k + self.from_pool)

    def _regress(self, encodings: Encodings, mixing: Tensor, *, streams: Streams, runtime: Runtime) -> Decoding:
        seen, shape = encodings.centered(), encodings.images.shape[2:]
        if self.flipped == "yes":
            found = solve_magnitudes(
                mixing, seen, solver="alternating", steps=self.steps, lr=0.01, streams=streams, runtime=runtime
            )
            objective = misfit(mixing, found, seen)
            images = fix_signs(found.unflatten(2, shape), encodings.center())
        else:
            found, own = solve_mixtures(mixing, seen.flatten(2))
            objective = (mixing @ found - own).square().mean((1, 2))
            images = found.unflatten(2, shape)
        return Decoding(images=(images + encodings.center()).clamp(0, 1), objective=objective, weights=mixing)


def public_images(encodings: Encodings, *, at_least: int) -> Tensor:
    """Return the adversary's public images, after checking that they fit the encodings."""
    public = (encodings.auxiliary or Auxiliary()).inputs
    if public is None or len(public) < at_least:
        have = 0 if public is None else len(public)
        raise DataError(f"the decoder needs at least {at_least} public images, got {have}; give Auxiliary(inputs=...)")
    if public.shape[1:] != encodings.images.shape[2:]:
        shapes = f"{tuple(encodings.images.shape[2:])} like the encodings, got {tuple(public.shape[1:])}"
        raise DataError(f"public images must be {shapes}; resize them or choose others")
    return public.to(encodings.images)
