"""Adaptive attack on obscured data: look for the image that the obscured one is stationary for."""

from dataclasses import dataclass
from typing import ClassVar, Literal, final

import torch
from torch import Tensor, nn
from typing_extensions import override

from gradveil.attacks._decoding import Decoder, Decoding, Encodings
from gradveil.engine import SGD, Adam, Optimizer, Runtime, Variable, minimize
from gradveil.errors import DataError
from gradveil.streams import Streams
from gradveil.types import Auxiliary, Knowledge, Paper


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeLoda(Decoder):
    """Take an obscured image x' for a stationary point of LODA's objective, and solve that condition for the private x.

    Minimizes ‖J(x')ᵀ(g(x') - g(x)) - w·(x' - x)‖² over x in [0, 1] (Eq. 6), every image on its own. The extractor g is
    public, and its layers are those of the defense. Keeps the best iterate by that objective.

    Args:
        weight: w; the paper searches 0, 1, 5, 10 and 20 and takes 1, its program has 5, the condition itself has c.
        steps: of gradient descent; the paper searches 50, 100, 200 and 400.
        lr: its step size.
        norm: `squared` as the paper writes it, or `plain` as in its program, whose step size is the default.
        start: `grey`, or the obscured `encoding` itself.
        optimizer: plain `descent`, or `adam`.
    """

    paper: ClassVar[Paper] = Paper(
        title="Defense Against Gradient Leakage Attacks via Learning to Obscure Data",
        authors="Wan, Xu, Liu, Ren, Fan, Tang",
        year=2022,
        url="https://arxiv.org/abs/2206.00769",
    )
    requires: ClassVar[Knowledge] = Knowledge.AUXILIARY
    joint: ClassVar[bool] = False

    weight: float = 1.0
    steps: int = 100
    lr: float = 0.01
    norm: Literal["squared", "plain"] = "plain"
    start: Literal["grey", "encoding"] = "grey"
    optimizer: Literal["descent", "adam"] = "descent"

    def __post_init__(self) -> None:
        if self.weight < 0 or self.steps < 1 or self.lr <= 0:
            came = f"{self.weight}, {self.steps} and {self.lr}"
            raise ValueError(f"weight must be at least 0, steps at least 1 and lr above 0, got {came}")

    @override
    def decode(self, encodings: Encodings, *, streams: Streams, runtime: Runtime) -> Decoding:
        extractor = (encodings.auxiliary or Auxiliary()).extractor
        if extractor is None:
            raise DataError("the adaptive attack needs the extractor of the defense; give Auxiliary(extractor=...)")
        obscured = encodings.images.flatten(0, 1).clamp(0, 1)

        def objective(values: tuple[Tensor, ...]) -> Tensor:
            squares = stationarity(values[0], obscured, extractor, weight=self.weight).square().flatten(1).sum(1)
            return squares if self.norm == "squared" else squares.clamp_min(1e-24).sqrt()

        start = obscured if self.start == "encoding" else torch.full_like(obscured, 0.5)
        bounds = torch.zeros_like(obscured[:1, :1, :1, :1]), torch.ones_like(obscured[:1, :1, :1, :1])
        optimizer: Optimizer = SGD(lr=self.lr, momentum=0.0) if self.optimizer == "descent" else Adam(lr=self.lr)
        found = minimize(
            objective,
            [Variable(start=start, low=bounds[0], high=bounds[1])],
            optimizer=optimizer,
            steps=self.steps,
            runtime=runtime,
        )
        shape = encodings.images.shape
        return Decoding(images=found.values[0].view(shape), objective=found.objective.view(shape[:2]).mean(1))


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
