"""What every second stage is: it turns encodings, true or recovered from gradients, into private images."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self, final

import torch
from torch import Tensor

from gradveil.engine import Runtime
from gradveil.errors import DataError, KnowledgeError
from gradveil.streams import Streams
from gradveil.types import Auxiliary, Card, Knowledge, Paper, Reconstruction


@dataclass(frozen=True, slots=True, kw_only=True)
class Encodings:
    """What a decoder sees of V independent groups of encodings.

    Args:
        images: (V, N, C, H, W) in plain pixels, of any range.
        labels: (V, N, K) soft labels, None unless they are known.
        weights: (V, N, P) how much of each of P images is in each encoding; None unless `knowledge` grants it.
        mean: of each channel, around which signs were flipped; empty for zero.
        knowledge: what was granted.
        auxiliary: public images, and the extractor of an obscuring defense.
    """

    images: Tensor
    labels: Tensor | None = None
    weights: Tensor | None = None
    mean: tuple[float, ...] = ()
    knowledge: Knowledge = Knowledge.NOTHING
    auxiliary: Auxiliary | None = None

    def __post_init__(self) -> None:
        if self.images.ndim != 5:
            raise DataError(f"encodings must be (groups, number, C, H, W), got shape {tuple(self.images.shape)}")
        if not self.images.is_floating_point():
            raise DataError(f"encodings must be floating-point, got {self.images.dtype}; divide bytes by 255")
        if len(self.mean) not in {0, self.images.shape[2]}:
            raise DataError(f"mean must hold one number per channel, {self.images.shape[2]}, got {len(self.mean)}")
        for name, values in (("labels", self.labels), ("weights", self.weights)):
            if values is not None and (values.ndim != 3 or values.shape[:2] != self.images.shape[:2]):
                wanted = f"({', '.join(map(str, self.images.shape[:2]))}, ...)"
                raise DataError(f"{name} of encodings must be {wanted} like images, got {tuple(values.shape)}")
        if self.weights is not None and Knowledge.ENCODING not in self.knowledge:
            raise KnowledgeError("the weights of mixtures are known only to an adversary who knows encoding; grant it")

    @classmethod
    def joined(cls, guesses: Sequence[Reconstruction], *, knowledge: Knowledge = Knowledge.NOTHING) -> Self:
        """Take what an attack recovered from several steps of one client as one group of encodings.

        Args:
            guesses: (V, B, ...) each; all their images are encodings of one private set.
            knowledge: what was granted; labels are taken over where they are soft.
        """
        images = torch.cat([guess.inputs.flatten(0, 1) for guess in guesses])
        soft = [g.labels.flatten(0, 1) for g in guesses if g.labels is not None and g.labels.ndim == 3]
        labels = torch.cat(soft)[None] if len(soft) == len(guesses) else None
        return cls(images=images[None], labels=labels, knowledge=knowledge)

    def centered(self) -> Tensor:
        """Return (V, N, C, H, W), the encodings around the mean."""
        return self.images - self.center()

    def center(self) -> Tensor:
        """Return the mean as (C, 1, 1), or (1, 1, 1) where there is none."""
        like = self.images
        return torch.tensor(self.mean or (0.0,), dtype=like.dtype, device=like.device).view(-1, 1, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoding:
    """What a decoder found.

    Args:
        images: (V, P, C, H, W) in [0, 1].
        objective: (V,) its own final objective; lower is better.
        weights: (V, N, P) how much of each image it took to be in each encoding; None where nothing was mixed.
    """

    images: Tensor
    objective: Tensor
    weights: Tensor | None = None


class Decoder(ABC):
    """Guesses private images from encodings; a leaf is a frozen dataclass whose fields are hyperparameters.

    Class attributes:
        paper: where the decoder comes from.
        requires: what it cannot do without.
        joint: whether it needs the encodings of several steps or clients together.
        card: what to know before relying on it.
    """

    paper: ClassVar[Paper]
    requires: ClassVar[Knowledge] = Knowledge.NOTHING
    joint: ClassVar[bool] = True
    card: ClassVar[Card]

    @property
    def oracle(self) -> bool:
        """Whether it is given what no adversary knows, so that its result is an upper bound and never the verdict."""
        return Knowledge.ENCODING in self.requires

    @final
    def __call__(self, encodings: Encodings, *, streams: Streams, runtime: Runtime | None = None) -> Decoding:
        """Decode every group of encodings.

        Args:
            encodings: what the adversary has; it is not changed. Weights reach oracles alone.
            streams: the decoder's randomness; bound to the groups here if it is not yet.
            runtime: precision and progress.
        """
        missing = self.requires & ~encodings.knowledge
        if missing:
            needs, knows = ", ".join(missing.names()), ", ".join(encodings.knowledge.names()) or "nothing"
            raise KnowledgeError(f"{type(self).__name__} needs {needs}, but the adversary knows {knows}; grant it")
        if not bool(encodings.images.isfinite().all()):
            raise DataError("encodings must be finite, but the attack that recovered some of them gave no numbers")
        runtime = runtime or Runtime(precision="float32")
        seen = encodings if self.oracle else _without_weights(encodings)
        with runtime.numerics():
            return self.decode(seen, streams=streams.bind(len(seen.images)), runtime=runtime)

    @abstractmethod
    def decode(self, encodings: Encodings, *, streams: Streams, runtime: Runtime) -> Decoding:
        """Decode: the paper's algorithm and nothing else."""


def _without_weights(encodings: Encodings) -> Encodings:
    """Keep what only an oracle may use from who works on the same encodings beside one."""
    return replace(encodings, weights=None, knowledge=encodings.knowledge & ~Knowledge.ENCODING)
