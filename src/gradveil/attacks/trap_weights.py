"""Trap weights: a first layer that each image activates in few rows of its own."""

import copy
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor, nn
from typing_extensions import override

from gradveil.attacks._active import ActiveAttack, server_streams
from gradveil.attacks._input_layer import InputLayer, find_input_linear
from gradveil.attacks._noisy_system import largest_rows, solve
from gradveil.attacks._readout import alone_in_a_row, reconstruction
from gradveil.engine import Runtime, find_normalization
from gradveil.streams import Streams
from gradveil.types import Auxiliary, Card, Observation, Paper, Reconstruction


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class TrapWeights(ActiveAttack):
    """Rewrite the network's own first linear layer so that most rows stay silent; who is alone in one is read off it.

    In every row a random half of the weights is negative and the other half repeats the same values, positive and a
    little smaller: only images that happen to be bright in the right places activate it. The architecture stays as it
    was. With auxiliary images each row's bias is set so that one image in B activates it, which is when rows with one
    image are most frequent; without, the bias is 0 and `scale` keeps rows silent.

    Args:
        std: of the negative weights.
        scale: of the positive weights against the negative ones, at most 1; None takes the paper's 0.95, or 1 with
            auxiliary images, so that how bright an image is does not count.
    """

    paper: ClassVar[Paper] = Paper(
        title="When the Curious Abandon Honesty: Federated Learning Is Not Private",
        authors="Boenisch, Dziedzic, Schuster, Shamsabadi, Shumailov, Papernot",
        year=2021,
        url="https://arxiv.org/abs/2112.02918",
    )
    batches: ClassVar[str] = "any"
    card: ClassVar[Card] = Card(
        fails="without a ReLU behind a linear first layer, and on images that activate the same rows",
        costs="no optimization; how many images it finds grows with the width of the layer",
        suggested="auxiliary images like those of the clients, from which each row gets its threshold",
        interacts="noise, clipping of single samples, and a client that looks at its activations weaken it",
    )
    threat: ClassVar[str] = "F"

    std: float = 0.5
    scale: float | None = None

    def __post_init__(self) -> None:
        if self.std <= 0 or (self.scale is not None and not 0 < self.scale <= 1):
            raise ValueError(f"std must be above 0 and scale in (0, 1], got {self.std} and {self.scale}")

    @override
    def poison(
        self,
        model: nn.Module,
        *,
        input_shape: tuple[int, int, int, int],
        auxiliary: Auxiliary | None,
        streams: Streams,
    ) -> nn.Module:
        changed = copy.deepcopy(model)
        layer = changed.get_submodule(find_input_linear(changed, input_shape[1:]))
        assert isinstance(layer, nn.Linear)
        public = None if auxiliary is None else auxiliary.inputs
        scale = self.scale or (0.95 if public is None else 1.0)
        traps = _traps(layer.out_features, layer.in_features, self.std, scale, server_streams(streams))
        threshold = torch.zeros(layer.out_features)
        if public is not None:
            values = public.cpu().float().flatten(1) @ traps.T
            threshold = values.kthvalue(max(1, round(len(values) * (1 - 1 / input_shape[0]))), dim=0).values

        # The traps are for pixels; the layer eats them standardized.
        normalization, black = find_normalization(changed), torch.zeros(input_shape[1:])
        offset, one = (normalization.pixels(black + value).flatten() for value in (0.0, 1.0))
        with torch.no_grad():
            layer.weight.copy_(traps * (one - offset))
            layer.bias.copy_(traps @ offset - threshold)
        return changed

    @override
    def run(self, observation: Observation, *, streams: Streams, runtime: Runtime) -> Reconstruction:
        weight, bias = InputLayer.of(observation).gradients(observation.update)
        residual = solve(weight, bias, largest_rows(bias, None)[:, :, None].expand_as(weight)).residual
        return reconstruction(observation, alone_in_a_row(observation, weight, bias), objective=residual)


def _traps(rows: int, size: int, std: float, scale: float, streams: Streams) -> Tensor:
    """Draw (m, d) weights: pairs of a negative value and its smaller positive copy, in random places."""
    half = size // 2
    negative = -std * streams.normal("traps", (rows, half))[0].abs()
    pairs = torch.cat([negative, -scale * negative, torch.zeros(rows, size - 2 * half)], 1)
    return pairs.gather(1, streams.uniform("places", (rows, size))[0].argsort(1))
