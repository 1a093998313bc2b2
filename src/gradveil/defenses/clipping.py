"""Clipping of the update."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, final

from typing_extensions import override

from gradveil.defenses._base import Adversary, UpdateDefense
from gradveil.defenses._norms import clip
from gradveil.streams import Streams
from gradveil.types import Card, Gradients


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Clipping(UpdateDefense):
    """Shorten updates that are longer than a bound, over all tensors together.

    Nothing is kept back and there is no noise.

    Protects nothing by itself: it hides the length of the update, not its direction. It bounds what one client can do
    to the average, and it is the first half of differential privacy, to which noise must be added (`local-dp`).

    Weakened by any attack that compares directions, such as the cosine of inverting gradients.

    Args:
        norm: the longest update that leaves, in the L2 norm; generative gradient leakage was tried against 4.
    """

    adversary: ClassVar[Adversary] = Adversary(
        attack="bayes-optimal",
        reason="clipping scales the update as a whole: the cosine does not see it, and beside noise a trial is clipped",
    )
    off: ClassVar[Mapping[str, object] | None] = {"norm": float("inf")}
    card: ClassVar[Card] = Card(
        fails="always, as a protection by itself: the direction of the update is untouched",
        costs="one pass over the update",
        suggested="the median length of honest updates as norm, together with noise (local-dp)",
        interacts="after noise it shortens the noise too: list it before; it hides nothing that pruning leaves",
    )

    norm: float = 4.0

    def __post_init__(self) -> None:
        if not self.norm > 0:
            raise ValueError(f"norm must be above 0, got {self.norm}")

    @override
    def apply(self, update: Gradients, *, streams: Streams) -> Gradients:
        return clip(update, self.norm)
