"""Adaptive attack on obscured data: look for the image that the obscured one is stationary for."""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal, final

import torch
from torch import Tensor
from typing_extensions import override

from gradveil.attacks._decode_stationarity import stationarity
from gradveil.attacks._decoding import Decoder, Decoding, Encodings
from gradveil.engine import SGD, Adam, Optimizer, Runtime, Variable, minimize
from gradveil.errors import DataError
from gradveil.streams import Streams
from gradveil.types import Auxiliary, Card, Knowledge, Paper


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeLoda(Decoder):
    """Take an obscured image x' for a stationary point of LODA's objective, and solve that condition for the private x.

    Minimizes ‖J(x')ᵀ(g(x') - g(x)) - w·(x' - x)‖² over x in [0, 1] (Eq. 6), every image on its own. The extractor g is
    public, and its layers are those of the defense. Keeps the best iterate by that objective. Starts grey: the obscured
    image meets its own condition, and a search from there would stay.

    Args:
        weight: w; the paper searches 0, 1, 5, 10 and 20 and takes 1, its program has 5, the condition itself has c.
        steps: of gradient descent; the paper searches 50, 100, 200 and 400.
        lr: its step size.
        norm: `squared` as the paper writes it, or `plain` as in its program, whose step size is the default.
        optimizer: plain `descent`, or `adam`.
    """

    paper: ClassVar[Paper] = Paper(
        title="Defense Against Gradient Leakage Attacks via Learning to Obscure Data",
        authors="Wan, Xu, Liu, Ren, Fan, Tang",
        year=2022,
        url="https://arxiv.org/abs/2206.00769",
    )
    requires: ClassVar[Knowledge] = Knowledge.AUXILIARY
    card: ClassVar[Card] = Card(
        fails="obscured images that descent left far from a stationary point or on the border of [0, 1]; features that "
        "keep little of the image; an obscured image recovered inexactly",
        costs="two backward passes of the extractor per step and image",
        suggested="weight at the c of the defense as well as the published 1; adam with lr 0.02 where descent stalls",
        interacts="it needs the extractor and the layers of the defense: another extractor aims at other features",
    )
    joint: ClassVar[bool] = False

    weight: float = 1.0
    steps: int = 100
    lr: float = 0.01
    norm: Literal["squared", "plain"] = "plain"
    optimizer: Literal["descent", "adam"] = "descent"

    def __post_init__(self) -> None:
        if not (0 <= self.weight < math.inf and self.steps >= 1 and 0 < self.lr < math.inf):
            came = f"{self.weight}, {self.steps} and {self.lr}"
            raise ValueError(
                f"weight must be at least 0, steps at least 1, lr above 0, and all of them finite, got {came}"
            )

    @override
    def decode(self, encodings: Encodings, *, streams: Streams, runtime: Runtime) -> Decoding:
        extractor = (encodings.auxiliary or Auxiliary()).extractor
        if extractor is None:
            raise DataError(
                "the adaptive attack needs the extractor of the defense; give Auxiliary(extractor=...), or grant the "
                "defenses of a client that has loda"
            )
        obscured = encodings.images.flatten(0, 1).clamp(0, 1)

        def objective(values: tuple[Tensor, ...]) -> Tensor:
            squares = stationarity(values[0], obscured, extractor, weight=self.weight).square().flatten(1).sum(1)
            return squares if self.norm == "squared" else squares.clamp_min(1e-24).sqrt()

        bounds = torch.zeros_like(obscured[:1, :1, :1, :1]), torch.ones_like(obscured[:1, :1, :1, :1])
        optimizer: Optimizer = SGD(lr=self.lr, momentum=0.0) if self.optimizer == "descent" else Adam(lr=self.lr)
        found = minimize(
            objective,
            [Variable(start=torch.full_like(obscured, 0.5), low=bounds[0], high=bounds[1])],
            optimizer=optimizer,
            steps=self.steps,
            runtime=runtime,
        )
        shape = encodings.images.shape
        return Decoding(images=found.values[0].view(shape), objective=found.objective.view(shape[:2]).mean(1))
