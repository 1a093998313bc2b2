"""Analytic reconstruction from a linear layer with a bias."""

from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor
from typing_extensions import override

from gradveil.attacks._base import Attack
from gradveil.attacks._input_layer import InputLayer
from gradveil.attacks._labels import with_labels
from gradveil.attacks._noisy_system import Certificate, certify, largest_rows, solve
from gradveil.attacks._readout import alone_in_a_row, pixels, reconstruction
from gradveil.engine import Runtime
from gradveil.streams import Streams
from gradveil.types import Card, Gradients, Observation, Paper, Reconstruction, State


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Analytic(Attack):
    """Divide the weight gradient of the first linear layer by its bias gradient: each row is the image.

    One sample is exact, from any loss. Under noise the rows are a noisy linear system, solved by least squares; its
    condition and error bound are reported by `certificate` where the perturbation is known. Of a larger batch it finds
    the samples that were alone in activating some row, which is chance (`spear` and `trap-weights` do better).

    Args:
        rows: equations per pixel, those of the largest bias gradients; 1 is the paper's division, None takes all.
    """

    paper: ClassVar[Paper] = Paper(
        title="Rethinking Privacy Preserving Deep Learning: How to Evaluate and Thwart Privacy Attacks",
        authors="Fan, Ng, Ju, Zhang, Liu, Chan, Yang",
        year=2020,
        url="https://arxiv.org/abs/2006.11601",
    )
    batches: ClassVar[str] = "1; of larger ones, samples that are alone in a neuron"
    card: ClassVar[Card] = Card(
        fails="on networks that begin with a convolution or with a layer without bias, and on samples of a batch that "
        "activate the same rows",
        costs="one least-squares solution per pixel, next to nothing",
        suggested="all rows under noise; rows=1 is the paper's division",
        interacts="noise on the bias gradient and a private first layer weaken it; pruning does not as long as the "
        "adversary knows of it and some row survives at each pixel",
    )

    rows: int | None = None

    def __post_init__(self) -> None:
        if self.rows is not None and self.rows < 1:
            raise ValueError(f"rows must be at least 1, got {self.rows}")

    @override
    def run(self, observation: Observation, *, streams: Streams, runtime: Runtime) -> Reconstruction:
        layer = InputLayer.of(observation)
        weight, bias = layer.gradients(observation.update)
        solved = solve(weight, bias, self._known(observation, layer, bias))
        if observation.input_shape[0] == 1:
            labels = with_labels(observation, "idlg").labels if _has_last_layer(observation) else observation.labels
            images = pixels(observation, solved.inputs[:, None])
            return reconstruction(observation, images, objective=solved.residual, labels=labels)
        images = alone_in_a_row(observation, weight, bias)
        return reconstruction(observation, images, objective=solved.residual)

    def certificate(self, observation: Observation, clean: Gradients) -> Certificate:
        """Bound the error on a batch of one, from the update before the defenses, which only the auditor has."""
        layer = InputLayer.of(observation)
        weight, bias = layer.gradients(observation.update)
        return certify(weight, bias, *layer.gradients(clean), largest_rows(bias, self.rows))

    @override
    def certify(self, observation: Observation, clean: Gradients) -> State:
        if observation.input_shape[0] > 1:
            return {}
        found = self.certificate(observation, clean)
        return {"condition": found.condition, "error bound": found.bound}

    def _known(self, observation: Observation, layer: InputLayer, bias: Tensor) -> Tensor:
        """Return the (V, m, d) equations to use: the rows, without what a known defense hides."""
        known = torch.ones_like(observation.update[layer.number], dtype=torch.bool)
        seen = torch.ones_like(bias, dtype=torch.bool)
        for defense in observation.defenses or ():
            visible = defense.visible(observation.update)
            known, seen = known & visible[layer.number], seen & visible[layer.bias_number]
        return known & (seen & largest_rows(torch.where(seen, bias, 0), self.rows))[:, :, None]


def _has_last_layer(observation: Observation) -> bool:
    return any(t.ndim == 3 and t.shape[1] == observation.num_classes for t in observation.update)
