"""SPEAR: exact gradient inversion of batches."""

from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor
from typing_extensions import override

from gradveil.attacks._base import Attack
from gradveil.attacks._input_layer import InputLayer
from gradveil.attacks._readout import pixels, reconstruction
from gradveil.attacks._sparse_factors import Inversion, LowRank, invert, pick, propose, refine, row_weights
from gradveil.engine import Runtime
from gradveil.errors import UnsupportedModelError
from gradveil.streams import Streams
from gradveil.types import Card, Observation, Paper, Reconstruction

_SOLVED = 0.95  # agreement of every sample; one wrong direction leaves about half


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class SPEAR(Attack):
    """Invert a whole batch through its first linear layer, using that ReLU makes its gradient low-rank and sparse.

    The weight gradient of B samples has rank B. Rows in which a sample is inactive single out its direction; rows are
    drawn at random until the sparsest directions explain the batch, and the bias gradient fixes their lengths. The
    network's own activations tell whether the result is right: the objective is the share that disagrees.

    Args:
        draws: sets of rows tried in one round.
        rounds: at most.
        tolerance: share of a sample's largest gradient below which it counts as inactive. 1e-3 bears more noise; but
            two samples of one class have nearly the same gradient in an untrained network, and their difference looks
            sparse to a large tolerance.
    """

    paper: ClassVar[Paper] = Paper(
        title="SPEAR: Exact Gradient Inversion of Batches in Federated Learning",
        authors="Dimitrov, Baader, Müller, Vechev",
        year=2024,
        url="https://arxiv.org/abs/2403.03945",
    )
    batches: ClassVar[str] = "2 to about 20"
    card: ClassVar[Card] = Card(
        fails="without a ReLU right behind a linear first layer with bias, with a batch beyond the layer's width, with "
        "two samples that are the same, and on dark or bright images, of which few rows are silent",
        costs="draws of rows, of which about one in 2^(B-1) / B succeeds: the cost doubles with every sample, from "
        "seconds for 8 to 10 on a CPU",
        suggested="the defaults; tolerance=1e-3 bears more noise, but confuses similar samples of one class",
        interacts="noise near 1e-3 of the gradient, pruning and quantization stop it; clipping and scaling of the "
        "whole update do not",
    )

    draws: int = 2048
    rounds: int = 64
    tolerance: float = 1e-4

    def __post_init__(self) -> None:
        for name in ("draws", "rounds"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not 0 < self.tolerance < 1:
            raise ValueError(f"tolerance must be between 0 and 1, got {self.tolerance}")

    @override
    def run(self, observation: Observation, *, streams: Streams, runtime: Runtime) -> Reconstruction:
        layer, batch = InputLayer.of(observation), observation.input_shape[0]
        weight, bias = layer.gradients(observation.update)
        if batch > min(weight.shape[1:]):
            raise UnsupportedModelError(f"spear needs a first layer at least as wide as the batch of {batch}; use more")
        factors = LowRank.of(weight, bias, batch, tolerance=self.tolerance)
        picked = factors.shift.new_zeros((len(weight), 0, batch))
        nothing = torch.full_like(factors.right, torch.nan)
        best = Inversion(nothing, torch.zeros_like(factors.shift))
        used = torch.zeros(len(weight), dtype=torch.long, device=weight.device)
        finite = torch.isfinite(weight).all(2).all(1) & torch.isfinite(bias).all(1)

        rounds = self.rounds if runtime.probe is None else 1
        for number in range(rounds):
            unsolved = finite & (best.agreement.amin(1) < _SOLVED)
            if not bool(unsolved.any()):
                break
            used += unsolved
            drawn = streams.uniform(f"rows/{number}", (self.draws, batch - 1), like=weight)
            fresh = propose(factors, drawn, row_weights(factors, picked))
            picked = pick(factors, torch.cat([picked, fresh], 1))
            refined = refine(factors, refine(factors, picked))
            found = invert(factors, refined, layer.weight.double(), layer.bias.double())
            best = _better(best, found, unsolved)
            runtime.progress(runtime.name, number + 1, rounds)
        images = pixels(observation, best.inputs)
        return reconstruction(observation, images, objective=1 - best.agreement.mean(1), steps=used)


def _better(old: Inversion, new: Inversion, unsolved: Tensor) -> Inversion:
    """Take over the new result of victims that are unsolved and agree more than before."""
    better = unsolved & (new.agreement.mean(1) > old.agreement.mean(1))
    return Inversion(
        torch.where(better[:, None, None], new.inputs, old.inputs),
        torch.where(better[:, None], new.agreement, old.agreement),
    )
