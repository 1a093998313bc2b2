"""How likely an observed update is, given the clean one: what an informed adversary maximizes."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from gradveil.types import Gradients

_WIDTH = 0.01  # of the step between signs, in mean magnitudes
_LEAST = 0.05  # probability below which the logarithm of a rounding goes on as a straight line


def normal_log_likelihood(observed: Gradients, centre: Gradients, std: float) -> Tensor:
    """Return (V,) the log density of independent normal noise on every entry.

    Args:
        observed: the update that left.
        centre: the update before the noise.
        std: of the noise; without any there is no density.

    Example:
        >>> normal_log_likelihood((torch.tensor([[1.0]]),), (torch.tensor([[1.0]]),), 0.5)
        tensor([-0.2258])
    """
    if std == 0:
        raise NotImplementedError("an update without noise has no density")
    pairs = zip(observed, centre, strict=True)
    squares = torch.stack([(o - c).square().flatten(1).sum(1) for o, c in pairs]).sum(0)
    return -squares / (2 * std**2) - _entries(observed) * math.log(std * math.sqrt(2 * math.pi))


def laplace_log_likelihood(observed: Gradients, centre: Gradients, scale: float) -> Tensor:
    """Return (V,) the log density of independent Laplace noise on every entry.

    Example:
        >>> laplace_log_likelihood((torch.tensor([[1.0]]),), (torch.tensor([[0.0]]),), 0.5)
        tensor([-2.])
    """
    if scale == 0:
        raise NotImplementedError("an update without noise has no density")
    sums = torch.stack([(o - c).abs().flatten(1).sum(1) for o, c in zip(observed, centre, strict=True)]).sum(0)
    return -sums / scale - _entries(observed) * math.log(2 * scale)


def sign_log_likelihood(observed: Tensor, clean: Tensor) -> Tensor:
    """Return (V,) the log probability of observed signs, softened so that a trial near the truth has a slope.

    A logistic curve stands for the step, as wide as a share of the trial's own mean magnitude, so that scaling the
    trial changes nothing.
    An entry that is exactly zero was zero before.

    Args:
        observed: (V, *shape), whose signs count.
        clean: (V, *shape).

    Example:
        >>> sign_log_likelihood(torch.tensor([[1.0, -1.0]]), torch.tensor([[0.01, 1.99]]))
        tensor([-199.3133])
    """
    values = clean.flatten(1)
    width = _WIDTH * values.abs().mean(1, keepdim=True).clamp_min(torch.finfo(values.dtype).tiny)
    signs, relative = observed.flatten(1).sign(), values / width
    return torch.where(signs == 0, -relative.abs(), F.logsigmoid(signs * relative)).sum(1)


def rounding_log_likelihood(observed: Tensor, clean: Tensor, levels: int) -> Tensor:
    """Return (V,) the log probability of a stochastic rounding to multiples of norm / levels.

    An entry that lies between two levels becomes one of them, each as often as the other is far. For small
    probabilities the logarithm goes on as a straight line, so that a trial which is off by a level or more has a slope.

    Args:
        observed: (V, *shape), in multiples of a step.
        clean: (V, *shape).
        levels: of each sign.

    Example:
        >>> rounding_log_likelihood(torch.tensor([[0.0, 1.0, 4.0]]), torch.tensor([[0.25, 1.0, 4.0]]), 5).exp()
        tensor([0.7500])
    """
    shown, values = observed.flatten(1), clean.flatten(1)
    step = _step(shown, levels)
    probability = 1 - ((values - shown) / step).abs()
    line = math.log(_LEAST) + probability / _LEAST - 1
    return torch.where(probability > _LEAST, probability.clamp_min(_LEAST).log(), line).sum(1)


def _step(shown: Tensor, levels: int) -> Tensor:
    """Return (V, 1) the step of which all entries of (V, n) are multiples: the smallest entry over 1, or 2, or ...

    Where there is none, since noise came after the rounding, it is the norm over the levels. An update of zeros does
    not tell its step, which counts as infinite: nothing is known.
    """
    sizes = shown.abs()
    smallest = torch.where(sizes > 0, sizes, torch.inf).amin(1, keepdim=True)
    step = torch.where(torch.isfinite(smallest), shown.norm(dim=1, keepdim=True) / levels, torch.inf)
    found = torch.zeros_like(smallest, dtype=torch.bool)
    for divisor in range(1, levels + 1):
        multiples = sizes / smallest * divisor
        whole = ((multiples - multiples.round()).abs() < 1e-4 * (1 + multiples)).all(1, keepdim=True)
        step = torch.where(whole & ~found, smallest / divisor, step)
        found = found | whole
    return step


def _entries(update: Gradients) -> int:
    return sum(tensor[0].numel() for tensor in update)
