"""Signs of the update."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, final

from torch import Tensor
from typing_extensions import override

from gradveil.defenses._base import Adversary, UpdateDefense
from gradveil.engine import spread
from gradveil.streams import Streams
from gradveil.types import Gradients, Paper


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Sign(UpdateDefense):
    """Share one bit per entry: whether it grows or shrinks.

    Nothing is kept back and there is no noise; unlike `quantization` the result is biased. There is no setting at
    which it changes nothing.

    Protects the magnitudes. Weakened by the number of entries: the signs of a large network tell the direction of its
    gradient nearly as well as the gradient does.

    Args:
        scale: `one` shares -1, 0 and 1; `mean` multiplies the signs of a tensor by its mean magnitude.
    """

    paper: ClassVar[Paper | None] = Paper(
        title="signSGD: Compressed Optimisation for Non-Convex Problems",
        authors="Bernstein, Wang, Azizzadenesheli, Anandkumar",
        year=2018,
        url="https://arxiv.org/abs/1802.04434",
    )
    adversary: ClassVar[Adversary] = Adversary(
        reason="the informed adversary matches by the likelihood of the signs; that attack is not built yet",
    )
    off: ClassVar[Mapping[str, object] | None] = None

    scale: Literal["one", "mean"] = "mean"

    @override
    def apply(self, update: Gradients, *, streams: Streams) -> Gradients:
        if self.scale == "one":
            return tuple(tensor.sign() for tensor in update)
        return tuple(tensor.sign() * _mean_magnitude(tensor) for tensor in update)


def _mean_magnitude(tensor: Tensor) -> Tensor:
    return spread(tensor.abs().flatten(1).mean(1), tensor)
