"""The last layer as a filter of samples: where to cut a feature, and what is left of an update after the cut."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor, nn

from gradveil.attacks._informed import features_entering
from gradveil.engine import trainable
from gradveil.errors import KnowledgeError, UnsupportedModelError
from gradveil.types import Auxiliary, LossFn, Observation

_CLEAN = 0.02  # of a sample: what may be missing of one, or be there of others, where one was caught


@dataclass(frozen=True, slots=True)
class Cut:
    """A threshold on one feature of the last layer.

    Args:
        feature: its number.
        threshold: value of the feature.
        slope: of the logit that is 0 at the threshold; 1 over the standard deviation of the feature.
        low: a value that lies below all features of auxiliary images by a standard deviation.
        high: one that lies above them likewise.
    """

    feature: int
    threshold: float
    slope: float
    low: float
    high: float

    @classmethod
    def of(cls, model: nn.Module, path: str, auxiliary: Auxiliary | None, *, share: float, feature: int | None) -> Self:
        """Find the value that a share of auxiliary images stays below; the feature that varies most, if none is given.

        A slope of 1 stands for one standard deviation of the feature.
        """
        if auxiliary is None or auxiliary.inputs is None:
            raise KnowledgeError("fishing by feature takes its threshold from auxiliary images; give some")
        images = auxiliary.inputs.to(next(model.parameters()))
        with torch.no_grad():
            values = features_entering(copy.deepcopy(model).eval(), {}, images, path).float()
        widths = values.std(0)
        number = int(widths.argmax()) if feature is None else feature
        width, column = float(widths[number]), values[:, number]
        if not width > 0:
            raise UnsupportedModelError(f"feature {number} is the same for all auxiliary images; name another")
        low, high = float(column.min()) - width, float(column.max()) + width
        return cls(number, float(column.quantile(share)), 1 / width, low, high)

    def narrowed(self, thresholds: Sequence[Tensor], caught: Sequence[Tensor]) -> Tensor:
        """Return the (V,) thresholds to ask next: what caught one sample, or the middle of what can.

        Args:
            thresholds: (V,) that were asked, query by query.
            caught: (V,) samples that each let through.
        """
        low, high = (torch.full_like(caught[0], value) for value in (self.low, self.high))
        found = torch.full_like(low, torch.nan)
        for asked, count in zip(thresholds, caught, strict=True):
            low = torch.where(count < 1 - _CLEAN, low.maximum(asked), low)
            high = torch.where(count > 1 + _CLEAN, high.minimum(asked), high)
            found = torch.where((count - 1).abs() <= _CLEAN, asked, found)
        return torch.where(found.isnan(), (low + high) / 2, found)


def last_linear(model: nn.Module) -> str:
    """Return the path of the last linear layer with a bias.

    Example:
        >>> last_linear(nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)))
        '3'
    """
    layers: list[str] = [
        path for path, layer in model.named_modules() if isinstance(layer, nn.Linear) and layer.bias is not None
    ]
    if not layers:
        raise UnsupportedModelError(f"fishing needs a last linear layer with a bias; {type(model).__name__} has none")
    return layers[-1]


def check_before(model: nn.Module, path: str) -> None:
    """Refuse a network that trains nothing before its last linear layer, where the samples are read."""
    if all(name.startswith(f"{path}.") for name in trainable(model)):
        raise UnsupportedModelError(f"nothing before the last linear layer '{path}' is trained; use analytic")


def count_caught(observation: Observation, path: str, target: int) -> Tensor:
    """Return (V,) how many samples the last layer let through, as the gradient of the target's bias counts them."""
    bias = observation.update[observation.names.index(f"{path}.bias")]
    return -observation.input_shape[0] * bias[:, target]


def before_last(observation: Observation, path: str, target: int) -> Observation:
    """Keep the update of what comes before the last layer, as that of one sample which the target logit pulls."""
    kept = [i for i, name in enumerate(observation.names) if not name.startswith(f"{path}.")]
    return replace(
        observation,
        names=tuple(observation.names[i] for i in kept),
        update=tuple(observation.update[i] for i in kept),
        input_shape=(1, *observation.input_shape[1:]),
        labels=torch.full((observation.victims, 1), target, device=observation.device),
        loss=_pull(target),
    )


def _pull(target: int) -> LossFn:
    """Return the loss whose gradient at the features is minus the target's row, as it is for a sample let through."""

    def loss(outputs: Tensor, labels: Tensor) -> Tensor:  # noqa: ARG001
        return -outputs[:, target].mean()

    return loss
