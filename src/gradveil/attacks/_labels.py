"""Labels from the gradient of the last layer.

With cross-entropy the gradient of a class's bias is the mean over the batch of its probability minus one for each
sample of the class; the row of the weight is the same with every sample weighted by its features.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final, Literal, TypeAlias

import torch
from torch import Tensor

from gradveil.errors import KnowledgeError
from gradveil.types import Observation

LabelMethod: TypeAlias = Literal["idlg", "analytic", "yin", "wainakh", "bias-corrected", "least-squares"]
LabelRule: TypeAlias = LabelMethod | Literal["optimized"]


@dataclass(frozen=True, slots=True)
class _Estimate:
    """How many samples of each class there seem to be.

    Args:
        amounts: (V, K), in samples; only their order counts for methods that cannot tell how many.
        present: (V, K), classes that get a label before any class gets its second.
    """

    amounts: Tensor
    present: Tensor


def recover(observation: Observation, *, method: LabelMethod = "least-squares") -> Tensor:
    """Read the labels of a batch off the update; classes may repeat, and be fewer than samples.

    Args:
        observation: of a network whose last layer is linear, trained with cross-entropy.
        method: `idlg` (row sums), `analytic` (signs of the bias) and `yin` (row minima) tell which classes there are,
            and go round them again if samples are left; `wainakh` (row sums) and `bias-corrected` estimate what one
            sample adds; `least-squares` solves for the counts and is the best on batches with repeated labels.

    Returns:
        (V, B) class indices in ascending order: a gradient does not tell which image has which label.
    """
    estimate = _METHODS[method](observation)
    return _allot(estimate, observation.input_shape[0])


def with_labels(observation: Observation, rule: LabelRule) -> Observation:
    """Fill in labels that the adversary does not know; `optimized` leaves them to the optimizer."""
    if observation.labels is not None or rule == "optimized":
        return observation
    return replace(observation, labels=recover(observation, method=rule))


def last_weight(observation: Observation) -> Tensor:
    """Return the (V, K, features) update of the last matrix with one row per class."""
    return observation.update[_last(observation)]


def _last(observation: Observation) -> int:
    for number, tensor in reversed(list(enumerate(observation.update))):
        if tensor.ndim == 3 and tensor.shape[1] == observation.num_classes:
            return number
    raise KnowledgeError(
        f"labels cannot be read from an update without a last layer of {observation.num_classes} rows; grant labels"
    )


def _last_bias(observation: Observation) -> Tensor:
    """Return the (V, K) update of the last layer's bias."""
    name = observation.names[_last(observation)].removesuffix("weight") + "bias"
    if name not in observation.names:
        raise KnowledgeError("this label method reads the bias of the last layer, which has none; use wainakh or yin")
    return observation.update[observation.names.index(name)]


def _idlg(observation: Observation) -> _Estimate:
    """With features that are not negative, only a true class has a negative row (Zhao et al. 2020, Sec. 3.2)."""
    return _in_order(last_weight(observation).sum(2))


def _yin(observation: Observation) -> _Estimate:
    """The classes with the smallest entries (Yin et al. 2021, Eq. 6)."""
    return _in_order(last_weight(observation).amin(2))


def _analytic(observation: Observation) -> _Estimate:
    """Only a true class can have a negative bias gradient; no other class is ever taken."""
    bias = _last_bias(observation)
    ordered, present = _in_order(bias), bias < 0
    return _Estimate(torch.where(present, ordered.amounts, ordered.amounts - 1e6), present)


def _in_order(scores: Tensor) -> _Estimate:
    """Rank the classes, smallest score first; a taken class falls behind all others."""
    ranks = scores.argsort(dim=1, stable=True).argsort(1)
    return _Estimate(-ranks.to(scores.dtype) / scores.shape[1], torch.zeros_like(scores, dtype=torch.bool))


def _wainakh(observation: Observation) -> _Estimate:
    """Divide row sums by what one sample adds (Wainakh et al. 2022, Sec. 4.1)."""
    sums = last_weight(observation).sum(2)
    return _in_units(sums, observation.input_shape[0], factor=1 + 1 / observation.num_classes)


def _bias_corrected(observation: Observation) -> _Estimate:
    """Do the same with the bias, whose gradient does not depend on features."""
    return _in_units(_last_bias(observation), observation.input_shape[0], factor=1.0)


def _in_units(sums: Tensor, batch: int, *, factor: float) -> _Estimate:
    """Divide (V, K) sums by the impact of one sample, which the negative ones add up to."""
    impact = sums.clamp(max=0).sum(1, keepdim=True) * factor / batch
    return _Estimate(sums / impact.clamp(max=-torch.finfo(sums.dtype).tiny), sums < 0)


def _least_squares(observation: Observation) -> _Estimate:
    """Solve for the number of samples of each class (Ma et al. 2023).

    A row of the weight gradient over its bias gradient is the mean feature of its class; the network's last layer turns
    it into the probabilities P that samples of this class get. Then P^T n - n = B * bias gradient, and n sums to B.
    """
    weight, bias = last_weight(observation).double(), _last_bias(observation).double()
    batch, classes = observation.input_shape[0], observation.num_classes
    features = _class_features(torch.nan_to_num(weight), torch.nan_to_num(bias)[:, :, None])
    head, offset = (parameter.double() for parameter in _last_parameters(observation))
    probabilities = (features @ head.transpose(-1, -2) + offset[..., None, :]).softmax(-1)

    system = probabilities.transpose(1, 2) - torch.eye(classes, dtype=weight.dtype, device=weight.device)
    system = torch.cat([system, torch.ones_like(system[:, :1])], 1)
    sides = torch.cat([batch * bias / update_scale(observation), torch.full_like(bias[:, :1], batch)], 1)
    # The pseudo-inverse is the least-squares solution, also where classes cannot be told apart.
    counts = torch.linalg.pinv(system) @ torch.nan_to_num(sides)[:, :, None]
    return _Estimate(counts.squeeze(2), torch.zeros_like(bias, dtype=torch.bool))


def _class_features(weight: Tensor, bias: Tensor) -> Tensor:
    """Return (V, K, features), rows over biases; a bias near 0 tells nothing, and its class gets the mean of all."""
    mean = (bias * weight).sum(1, keepdim=True) / bias.square().sum(1, keepdim=True).clamp_min(1e-30)
    doubt = 0.1 * bias.square().mean(1, keepdim=True) + 1e-30
    return (bias * weight + doubt * mean) / (bias.square() + doubt)


def _last_parameters(observation: Observation) -> tuple[Tensor, Tensor]:
    """Return the last layer's weight and bias, (K, features) and (K,) or stacked."""
    weight = observation.names[_last(observation)]
    bias = weight.removesuffix("weight") + "bias"
    own = observation.parameters or {}
    first, second = (own.get(name, observation.model.get_parameter(name).detach()) for name in (weight, bias))
    return first, second


def update_scale(observation: Observation) -> float:
    """Return the factor between the update and the mean gradient, as far as the adversary knows."""
    local = observation.local
    if local is None:
        return 1.0
    moved = local.lr * local.steps if local.shares == "difference" and local.optimizer == "sgd" else 1.0
    return moved * (observation.input_shape[0] if local.reduction == "sum" else 1)


def _allot(estimate: _Estimate, batch: int) -> Tensor:
    """Give (V, batch) labels, one after the other, to the class with the most samples left.

    The class that was given a label is the one that loses a sample; the published rule of Wainakh et al. takes it from
    the class that the first stage happened to end with.
    """
    left = torch.nan_to_num(estimate.amounts).clone()
    counts = torch.zeros_like(left, dtype=torch.long)
    for _ in range(batch):
        first = 1e9 * (estimate.present & (counts == 0))
        chosen = torch.zeros_like(counts).scatter(1, (left + first).argmax(1, keepdim=True), 1)
        counts, left = counts + chosen, left - chosen
    numbers = torch.arange(batch, device=left.device).expand(len(left), batch).contiguous()
    return torch.searchsorted(counts.cumsum(1), numbers, right=True)


_METHODS: Final[Mapping[LabelMethod, Callable[[Observation], _Estimate]]] = MappingProxyType(
    {
        "idlg": _idlg,
        "analytic": _analytic,
        "yin": _yin,
        "wainakh": _wainakh,
        "bias-corrected": _bias_corrected,
        "least-squares": _least_squares,
    }
)
