"""Regression with known mixing, the upper bound for every decoder of mixtures."""

from dataclasses import dataclass
from typing import ClassVar, Literal, final

from typing_extensions import override

from gradveil.attacks._decode_magnitudes import Solver, misfit, solve_magnitudes
from gradveil.attacks._decode_regression import solve_mixtures
from gradveil.attacks._decode_signs import fix_signs
from gradveil.attacks._decoding import Decoder, Decoding, Encodings
from gradveil.engine import Runtime
from gradveil.streams import Streams
from gradveil.types import Card, Knowledge, Paper


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeOracle(Decoder):
    """Solve for the private images when it is known which of them is in which encoding, and how much of each.

    No adversary knows this: the result is an upper bound and never the verdict. Of flipped signs only magnitudes are
    left, which determine every pixel up to one sign for all images; it is taken from neighbours and from [0, 1].

    Args:
        flipped: whether signs were flipped: `no` for Mixup, `yes` for InstaHide.
        solver: of the regression on magnitudes, `alternating`, or `adam` as published.
        steps: of the alternation or of Adam.
        lr: of Adam.
        signs: `open` leaves the sign of every pixel as the regression found it, as published.
    """

    paper: ClassVar[Paper] = Paper(
        title="Is Private Learning Possible with Instance Encoding?",
        authors="Carlini, Deng, Garg, Jha, Mahloujifar, Mahmoody, Thakurta, Tramèr",
        year=2020,
        url="https://arxiv.org/abs/2011.05315",
    )
    requires: ClassVar[Knowledge] = Knowledge.ENCODING
    card: ClassVar[Card] = Card(
        fails="fewer encodings than images; with flipped signs fewer than a few times as many, or images of noise, in "
        "which no pixel is like its neighbours",
        costs="one pseudo-inverse per group; with flipped signs some hundred products with it",
        suggested="the defaults; solver=adam and signs=open are the published regression, which stops at wrong signs",
        interacts="it is told which private image is in which encoding and how much of it: an upper bound, never the "
        "verdict; images of a public set, which it is not told, are noise around their mean",
    )

    flipped: Literal["no", "yes"] = "yes"
    solver: Solver = "alternating"
    steps: int = 1000
    lr: float = 0.01
    signs: Literal["fixed", "open"] = "fixed"

    def __post_init__(self) -> None:
        if self.steps < 1 or self.lr <= 0:
            raise ValueError(f"steps must be at least 1 and lr above 0, got {self.steps} and {self.lr}")

    @override
    def decode(self, encodings: Encodings, *, streams: Streams, runtime: Runtime) -> Decoding:
        if encodings.weights is None:
            raise ValueError("the oracle decoder needs the weights of the mixtures; give Encodings(weights=...)")
        seen, weights = encodings.centered(), encodings.weights.to(encodings.images)
        if self.flipped == "no":
            found, own = solve_mixtures(weights, seen.flatten(2))
            objective = (weights @ found - own).square().mean((1, 2))
            images = found.unflatten(2, seen.shape[2:])
        else:
            found = solve_magnitudes(
                weights, seen, solver=self.solver, steps=self.steps, lr=self.lr, streams=streams, runtime=runtime
            )
            objective = misfit(weights, found, seen)
            images = found.unflatten(2, seen.shape[2:])
            images = fix_signs(images, encodings.center()) if self.signs == "fixed" else images
        return Decoding(images=(images + encodings.center()).clamp(0, 1), objective=objective, weights=weights)
