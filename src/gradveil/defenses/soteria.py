"""Soteria."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar, Literal, final

import torch
from torch import Tensor, nn
from torch.func import vjp
from typing_extensions import override

from gradveil.defenses._base import Adversary, StepDefense, StepResult
from gradveil.defenses._layers import features, find_linear
from gradveil.defenses._network import StackedNetwork
from gradveil.engine import over_victims
from gradveil.errors import UnsupportedModelError
from gradveil.streams import Streams
from gradveil.types import Card, Gradients, Paper, Protected, State

_ROWS = 64  # of the Jacobian at once
_PIXELS = 2**26  # pulled back at once, over rows and images; layers hold some tens of times as many numbers


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Soteria(StepDefense):
    """Drop the columns of one linear layer's gradient that belong to features which move least with the image.

    Protects the representation that enters the layer: dropped columns no longer tell it. The gradients of all other
    tensors, and the layer's bias, leave as they are.

    Weakened by leaving that one tensor out of the comparison, which restores the attack almost fully.

    Args:
        fraction: percentile of the scores below which features are dropped, from 0 to 1; the release uses 0.01
            against DLG and 0.6 against inverting gradients.
        layer: module path of the defended layer; empty for the last linear one.
        denominator: what divides a feature's sensitivity: `absolute` its magnitude, `signed` its value as in the
            release, which ranks negative features wrongly; both agree after ReLU and sigmoid.
        eps: added to it; the release uses 0.1 in one script and none in another.
    """

    paper: ClassVar[Paper | None] = Paper(
        title="Soteria: Provable Defense against Privacy Leakage in Federated Learning from Representation Perspective",
        authors="Sun, Li, Wang, Yang, Li, Chen",
        year=2021,
        url="https://arxiv.org/abs/2012.06043",
    )
    adversary: ClassVar[Adversary] = Adversary(
        attack="bayes-optimal",
        reason="empty columns show what was dropped, and who knows of the defense matches everything else",
    )
    off: ClassVar[Mapping[str, object] | None] = {"fraction": 0.0}
    card: ClassVar[Card] = Card(
        fails="against who leaves the defended tensor out of the comparison; against analytic attacks on another "
        "linear layer",
        costs="one row of the Jacobian per feature of the defended layer and sample, up to 64 at a time",
        suggested="fraction=0.6 on the last linear layer, denominator=absolute",
        interacts="dcs2 and dp-sgd compute the gradient in their own way and cannot be combined with it; noise "
        "after it fills the empty columns and hides which they were; it scores in eval mode, whatever "
        "the mode of training",
    )

    fraction: float = 0.6
    layer: str = ""
    denominator: Literal["absolute", "signed"] = "absolute"
    eps: float = 0.1

    def __post_init__(self) -> None:
        if not 0 <= self.fraction < 1:
            raise ValueError(f"fraction must be at least 0 and below 1, got {self.fraction}")
        if self.eps < 0:
            raise ValueError(f"eps must be at least 0, got {self.eps}")

    @override
    def gradient(
        self, network: StackedNetwork, /, data: Protected, *, sensitive: Tensor | None, streams: Streams
    ) -> StepResult:
        path = find_linear(network.model, self.layer)
        if f"{path}.weight" not in network.names:
            raise UnsupportedModelError(f"soteria prunes the gradient of '{path}.weight', but it is not trained")
        found = network(data.inputs, data.labels)
        gradients = [gradient.detach() for gradient in found.gradients]
        index = network.names.index(f"{path}.weight")
        gradients[index] = gradients[index] * self._mask(network, data.inputs, path)[:, None]
        return StepResult(tuple(gradients), data, {name: tensor.detach() for name, tensor in found.buffers.items()})

    @override
    def visible(self, update: Gradients) -> Gradients:
        return tuple(_filled_columns(tensor) for tensor in update)

    def _mask(self, network: StackedNetwork, inputs: Tensor, path: str) -> Tensor:
        """Return (V, d), 0 for the features to drop and 1 for the others."""
        representation, sensitivity = _sensitivity(network, inputs, path)
        value = representation.abs() if self.denominator == "absolute" else representation
        # A feature that is 0 and does not move with its image tells nothing, whatever it is divided by.
        scores = (sensitivity / (value + self.eps)).nan_to_num(nan=0.0).sum(1)
        threshold = scores.quantile(self.fraction, dim=1, keepdim=True)
        return (scores.abs() >= threshold).to(inputs.dtype)


def _filled_columns(tensor: Tensor) -> Tensor:
    """Return a mask of the columns of a matrix, (V, m, n), that are not empty; of all entries of other tensors."""
    if tensor.ndim != 3:
        return torch.ones_like(tensor, dtype=torch.bool)
    return (tensor != 0).any(1, keepdim=True).expand_as(tensor)


def _sensitivity(network: StackedNetwork, inputs: Tensor, path: str) -> tuple[Tensor, Tensor]:
    """Return the (V, B, d) features, and how far each moves with its image: the norm of its row of the Jacobian."""
    state = {**network.parameters, **network.buffers}

    def of_victim(own: State, images: Tensor) -> Tensor:
        return features(network.model, own, images, path=path)

    # Without it, pulling back would keep what a second derivative needs, of every row.
    with _evaluating(network.model), torch.no_grad():
        pulled = vjp(lambda images: over_victims(of_victim, state, images), inputs)
        representation, pull = pulled[0], pulled[1]
        rows = torch.eye(representation.shape[-1], dtype=inputs.dtype, device=inputs.device)
        at_once = min(_ROWS, max(1, _PIXELS // inputs.numel()))
        norms = [_norms(pull, chunk, representation) for chunk in rows.split(at_once)]
    return representation.detach(), torch.cat(norms).movedim(0, -1)


def _norms(pull: Callable[[Tensor], tuple[Tensor]], rows: Tensor, like: Tensor) -> Tensor:
    """Return (rows, V, B), the norms of some rows of every Jacobian."""

    def of_row(_: State, row: Tensor) -> Tensor:
        moved = pull(row.expand_as(like))[0].flatten(2)
        norm: Tensor = torch.linalg.vector_norm(moved, dim=2)
        return norm

    return over_victims(of_row, {}, rows)


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Run a network by its running statistics, as the release scores it, and put it back into its mode."""
    before = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, training in before.items():
            module.training = training
