"""Signs that show on the client's own samples: abnormal loss, and a gradient that singles one sample out."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gradveil.engine import patient_function, trainable
from gradveil.federated._findings import Finding
from gradveil.types import LossFn

_LOSS: Final = 20.0
_ONE_SAMPLE: Final = 10.0
_ISOLATED: Final = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """Own samples to try a model on before training; they do not leave the client.

    Args:
        inputs: (N, C, H, W) in [0, 1]; a few dozen are enough.
        labels: (N,).
        loss: of outputs and labels.
    """

    inputs: Tensor
    labels: Tensor
    loss: LossFn = F.cross_entropy


def probe_model(model: nn.Module, probe: Probe) -> Iterator[Finding]:
    """Try a model, in eval mode, on own samples."""
    outputs, losses = _outputs(model, probe)
    yield from _abnormal_loss(losses, outputs.shape[1])
    if len(losses) > 1 and bool(torch.isfinite(losses).all()):
        yield from _isolation(model, probe, outputs)


def gradient_ratio(norms: Tensor) -> Tensor:
    """Return the D-SNR of (N, ...) per-sample norms: the largest over the sum of all others.

    Example:
        >>> gradient_ratio(torch.tensor([8.0, 1.0, 1.0]))
        tensor(4.)
    """
    largest = norms.max(0).values
    return largest / (norms.sum(0) - largest).clamp_min(1e-30)


def _outputs(model: nn.Module, probe: Probe) -> tuple[Tensor, Tensor]:
    training = {module: module.training for module in model.modules()}
    try:
        with torch.no_grad():
            outputs: Tensor = model.eval()(probe.inputs)
    finally:
        for module, was in training.items():
            module.training = was
    pairs = zip(outputs.split(1), probe.labels.split(1), strict=True)
    return outputs, torch.stack([probe.loss(output, label) for output, label in pairs])


def _abnormal_loss(losses: Tensor, classes: int) -> Iterator[Finding]:
    limit = _LOSS + 5 * math.log(classes)
    mean, largest = float(losses.mean()), float(losses.max())
    if mean <= limit and largest <= _ONE_SAMPLE * limit:
        return
    words = (
        f"the loss on own samples is {mean:.3g} and up to {largest:.3g}, where guessing gives {math.log(classes):.3g}"
    )
    yield Finding(kind="loss", severity="suspicious", where="", reason=words)


def _isolation(model: nn.Module, probe: Probe, outputs: Tensor) -> Iterator[Finding]:
    """D-SNR (Garov et al. 2024): in some layer, one sample's gradient drowns those of all others."""
    function = patient_function(model, probe.loss, names=trainable(model), precision="float32")
    gradients = function(probe.inputs[:, None], probe.labels[:, None]).gradients
    named = zip(trainable(model), gradients, strict=True)
    ratios = {name: float(gradient_ratio(g.flatten(1).norm(dim=1))) for name, g in named if g.ndim > 2}
    if not ratios:
        return
    where, ratio = max(ratios.items(), key=lambda item: item[1])
    if ratio <= _ISOLATED:
        return
    # A trained model has one large gradient among small ones where it errs on one sample alone: then all layers have.
    signal = float(gradient_ratio((outputs.softmax(1) - F.one_hot(probe.labels, outputs.shape[1])).norm(dim=1)))
    alone = signal > ratio / _ISOLATED
    words = f"one of {len(outputs)} own samples makes {ratio:.3g} times the gradient of all others together"
    words += ", as the loss of that sample does: a head that fishes, or a model that errs on it alone" if alone else ""
    yield Finding(kind="isolation", severity="suspicious", where=where.removesuffix(".weight"), reason=words)
