"""Robbing the Fed: an imprint block in front of the network."""

from dataclasses import dataclass, replace
from math import prod
from typing import ClassVar, Literal, final

import torch
from torch import Tensor, nn
from typing_extensions import override

from gradveil.attacks._active import ActiveAttack, find_block, put_before, server_streams
from gradveil.attacks._bins import ImprintBlock, Source, Statistic, direction, own_bins, quantiles, thresholds
from gradveil.attacks._readout import largest, pixels, reconstruction, rows_as_inputs, take
from gradveil.engine import Runtime, find_normalization
from gradveil.errors import KnowledgeError
from gradveil.streams import Streams
from gradveil.types import Auxiliary, Card, Observation, Paper, Reconstruction

_HIT = 1e-4  # share of the largest bias gradient below which a bin counts as empty


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Imprint(ActiveAttack):
    """Sort the images of a batch into bins by a statistic; an image that is alone in its bin comes out exactly.

    The server puts a linear layer with one row per bin before the network. The difference of two neighbouring rows of
    its gradient belongs to the images of one bin. Among the details are the bins that were `hit`, and how many images
    are alone in theirs if all bins are equally likely (`expected alone`, see `expected_singletons`).

    Args:
        bins: rows of the block.
        source: of the thresholds: quantiles of the statistic on `auxiliary` images, or of a `gaussian` or `laplace`
            distribution.
        statistic: `mean` pixel, `fourier` or `random` weights.
        mode: frequency of the `fourier` statistic.
        center: mean of the distribution, in standardized pixels.
        scale: its standard deviation.
        gain: of the block.
        keep: which bins are kept if more are hit than there are samples, which only noise brings about: those of the
            `largest-bias` gradient, or of the `largest-weight` or `smallest-weight` gradient on average, as the two
            published programs do.
    """

    paper: ClassVar[Paper] = Paper(
        title="Robbing the Fed: Directly Obtaining Private Data in Federated Learning with Modified Models",
        authors="Fowl, Geiping, Czaja, Goldblum, Goldstein",
        year=2022,
        url="https://arxiv.org/abs/2110.13057",
    )
    batches: ClassVar[str] = "any up to the number of bins"
    card: ClassVar[Card] = Card(
        fails="where images share a bin, where the thresholds do not fit the data, and where the client checks the "
        "architecture",
        costs="no computation; each bin costs 2·C·H·W parameters in the network that is sent",
        suggested="bins from auxiliary images, several times as many as samples",
        interacts="noise and several local steps weaken it; a small gain makes its gradients large against fixed "
        "noise, and clipping takes that back",
    )
    threat: ClassVar[str] = "G"

    bins: int = 128
    source: Source = "auxiliary"
    statistic: Statistic = "mean"
    mode: int = 32
    center: float = 0.0
    scale: float = 1.0
    gain: float = 1e-3
    keep: Literal["largest-bias", "largest-weight", "smallest-weight"] = "largest-bias"

    def __post_init__(self) -> None:
        if self.bins < 2:
            raise ValueError(f"bins must be at least 2, got {self.bins}")
        if self.scale <= 0 or self.gain <= 0:
            raise ValueError(f"scale and gain must be above 0, got {self.scale} and {self.gain}")

    @override
    def poison(
        self,
        model: nn.Module,
        *,
        input_shape: tuple[int, int, int, int],
        auxiliary: Auxiliary | None,
        streams: Streams,
    ) -> nn.Module:
        like = next(model.parameters())
        weights = direction(self.statistic, prod(input_shape[1:]), mode=self.mode, streams=server_streams(streams))
        if self.source != "auxiliary":
            edges = thresholds(quantiles(self.source, self.bins, center=self.center, scale=self.scale))
        elif auxiliary is None or auxiliary.inputs is None:
            raise KnowledgeError("imprint takes its bins from auxiliary images; give some, or set source=gaussian")
        else:
            images = find_normalization(model).standardize(auxiliary.inputs.cpu().float())
            values = images.flatten(1) @ weights
            levels = torch.arange(1, self.bins) / self.bins
            edges = thresholds(torch.quantile(values, levels), values)
        return put_before(model, "imprint", ImprintBlock(weights.to(like), edges.to(like), gain=self.gain))

    @override
    def run(self, observation: Observation, *, streams: Streams, runtime: Runtime) -> Reconstruction:
        path, _ = find_block(observation, ImprintBlock, "imprint")
        names = observation.names
        weight, bias = (observation.update[names.index(f"{path}.bins.{kind}")] for kind in ("weight", "bias"))
        weight, bias = own_bins(weight.double(), bias.double())
        candidates = rows_as_inputs(weight, bias)
        batch, scores = observation.input_shape[0], self._scores(weight, bias)
        chosen = largest(scores, batch, tolerance=0)
        images = pixels(observation, take(candidates, chosen))
        # The share of samples without an image of their own.
        guess = reconstruction(observation, images, objective=(chosen < 0).double().mean(1))
        expected = torch.full_like(guess.objective, expected_singletons(batch, self.bins))
        return replace(guess, details={"hit": (scores > 0).sum(1), "expected alone": expected})

    def _scores(self, weight: Tensor, bias: Tensor) -> Tensor:
        """Return (V, K), above 0 for bins that were hit, larger for those to keep."""
        size = bias.abs() / bias.abs().amax(1, keepdim=True)
        mean = weight.mean(2).abs().clamp_min(1e-300)
        rules = {"largest-bias": size, "largest-weight": mean, "smallest-weight": 1 / mean}
        return torch.where(size > _HIT, rules[self.keep], 0)


def expected_singletons(batch: int, bins: int) -> float:
    """Return how many of a batch are alone in their bin on average, if all bins are equally likely.

    Example:
        >>> round(expected_singletons(64, 128), 1), round(expected_singletons(64, 1000), 1)
        (39.0, 60.1)
    """
    return batch * (1 - 1 / bins) ** (batch - 1)
