"""Robbing the Fed: an imprint block in front of the network."""

from dataclasses import dataclass, replace
from math import prod
from typing import ClassVar, Literal, final

import torch
from torch import Tensor, nn
from typing_extensions import override

from gradveil.attacks import _bins
from gradveil.attacks._active import ActiveAttack, find_block, put_before, server_streams
from gradveil.attacks._bins import ImprintBlock, Source, Statistic
from gradveil.attacks._peeling import Views, missing, peel, present_first
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

    With several `views`, which is no part of the paper, the bins are shared among as many statistics. An image that is
    alone by one of them is subtracted from its bins of the others, where that leaves others alone, and so on
    (`taken out` counts them): nearly all of a batch comes out of twice as many bins.

    Args:
        bins: rows of the block.
        source: of the thresholds: quantiles of the statistic on `auxiliary` images, or of a `gaussian` or `laplace`
            distribution.
        statistic: `mean` pixel, `fourier` or `random` weights.
        mode: frequency of the `fourier` statistic.
        center: mean of the distribution, in standardized pixels.
        scale: its standard deviation.
        gain: of the block.
        views: statistics among which the bins are shared; those after the first have random weights.
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
        suggested="bins from auxiliary images, several times as many as samples; `views=3` where they are few",
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
    views: int = 1
    keep: Literal["largest-bias", "largest-weight", "smallest-weight"] = "largest-bias"

    def __post_init__(self) -> None:
        if self.views < 1 or self.bins < 2 * self.views:
            raise ValueError(f"bins must be at least 2 for each of 1 or more views, got {self.bins} and {self.views}")
        if self.views > 1 and self.source != "auxiliary":
            raise ValueError(f"source must be auxiliary for several views, got {self.source}")
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
        like, streams, size = next(model.parameters()), server_streams(streams), prod(input_shape[1:])
        weights = _bins.directions(self.statistic, size, mode=self.mode, views=self.views, streams=streams)
        edges = torch.stack([self._edges(own, model, auxiliary) for own in weights])
        checks = _bins.rectified_checks(size, streams=streams).to(like) if self.views > 1 else None
        block = ImprintBlock(weights.to(like), edges.to(like), gain=self.gain, checks=checks)
        return put_before(model, "imprint", block)

    def _edges(self, weights: Tensor, model: nn.Module, auxiliary: Auxiliary | None) -> Tensor:
        """Return the thresholds of one statistic."""
        count = self.bins // self.views
        if self.source != "auxiliary":
            return _bins.thresholds(_bins.quantiles(self.source, count, center=self.center, scale=self.scale))
        if auxiliary is None or auxiliary.inputs is None:
            raise KnowledgeError("imprint takes its bins from auxiliary images; give some, or set source=gaussian")
        images = find_normalization(model).standardize(auxiliary.inputs.cpu().float())
        values = images.flatten(1) @ weights
        return _bins.thresholds(torch.quantile(values, torch.arange(1, count) / count), values)

    @override
    def run(self, observation: Observation, *, streams: Streams, runtime: Runtime) -> Reconstruction:
        path, block = find_block(observation, ImprintBlock, "imprint")
        names, batch = observation.names, observation.input_shape[0]
        weight, bias = (observation.update[names.index(f"{path}.bins.{kind}")] for kind in ("weight", "bias"))
        weight, bias = _bins.own_bins(weight.double(), bias.double(), views=block.views)
        most, count = bias.abs().amax(1, keepdim=True), self.bins // self.views
        hit = (self._scores(weight, bias, most) > 0)[:, :count].sum(1)
        peeled, weight, bias = peel(weight, bias, Views.of(block), batch)
        scores = self._scores(weight[:, :count], bias[:, :count], most)
        others = take(rows_as_inputs(weight, bias), largest(scores, batch, tolerance=0))
        images = present_first(torch.cat([peeled, others], 1))[:, :batch]
        # The share of samples without an image of their own.
        guess = reconstruction(observation, pixels(observation, images), objective=missing(images).double().mean(1))
        expected = torch.full_like(guess.objective, expected_singletons(batch, count))
        found = (~missing(peeled)).sum(1)
        return replace(guess, details={"hit": hit, "expected alone": expected, "taken out": found})

    def _scores(self, weight: Tensor, bias: Tensor, most: Tensor) -> Tensor:
        """Return (V, K), above 0 for bins that were hit, larger for those to keep."""
        size = bias.abs() / most
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
