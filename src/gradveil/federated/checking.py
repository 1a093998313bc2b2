"""Pre-flight: does a recorded update fit what is said about it? Without any data."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

import torch
from torch import Tensor, nn

from gradveil.engine import trainable
from gradveil.errors import GradVeilError
from gradveil.federated.observing import recorded_model
from gradveil.federated.recorder import About, Recorded
from gradveil.models import layers

Outcome: TypeAlias = Literal["passed", "failed", "unknown"]

_ADAM_FIRST: Final = (1 - 0.9) / math.sqrt(1 - 0.999)
"""Largest move of an entry by one step of Adam, in units of the rate (Kingma and Ba 2015, Sec. 2.1)."""
_SLACK: Final = 1.01
_SMALL: Final = 1e-4
_MEAN: Final = ".running_mean"


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at.

    Args:
        name: of it.
        outcome: `unknown` where the recording does not say enough to tell.
        reason: in words.
    """

    name: str
    outcome: Outcome
    reason: str


def preflight(recorded: Recorded, model: nn.Module | None = None) -> tuple[Check, ...]:
    """Look whether keys, shapes, numbers, size and running statistics fit what the recording says.

    Args:
        recorded: the update.
        model: of the architecture; built from the recording's spec if None.

    Example:
        >>> made = Recorded(before={"w": torch.ones(2)}, buffers={}, update={"w": torch.tensor([0.0, math.inf])})
        >>> [check.name for check in preflight(made, nn.Flatten()) if check.outcome == "failed"]
        ['model', 'numbers']
    """
    checks = [_check_model(recorded, model), _check_shapes(recorded), _check_numbers(recorded)]
    if all(check.outcome != "failed" for check in checks):
        checks += [_check_size(recorded, model), *_check_statistics(recorded)]
    return tuple(checks)


def _check_model(recorded: Recorded, model: nn.Module | None) -> Check:
    if model is None and recorded.about.model is None:
        return Check("model", "unknown", "the recording does not say which model it has")
    try:
        filled = recorded_model(recorded, model)
    except GradVeilError as error:
        return Check("model", "failed", str(error))
    return Check("model", "passed", f"{len(trainable(filled))} of {len(recorded.before)} parameters were trained")


def _check_shapes(recorded: Recorded) -> Check:
    for name, tensor in recorded.update.items():
        if name not in recorded.before:
            return Check("shapes", "failed", f"the update has '{name}', which the model before it has not")
        here, there = tuple(tensor.shape), tuple(recorded.before[name].shape)
        if here != there:
            return Check("shapes", "failed", f"the update of '{name}' has shape {here}, but the weight has {there}")
    frozen = [name for name in recorded.before if name not in recorded.update]
    words = f"all but {', '.join(frozen)}" if frozen else "all parameters"
    if not recorded.update:
        return Check("shapes", "failed", "the update is empty")
    return Check("shapes", "passed", f"the update holds {words}")


def _check_numbers(recorded: Recorded) -> Check:
    for part in ("before", "buffers", "update", "buffers_after"):
        for name, tensor in getattr(recorded, part).items():
            if not bool(torch.isfinite(tensor).all()):
                return Check("numbers", "failed", f"{part} of '{name}' holds numbers that are not finite")
    if all(not bool(tensor.any()) for tensor in recorded.update.values()):
        return Check("numbers", "failed", "every entry of the update is zero, so that nothing was trained")
    return Check("numbers", "passed", "all numbers are finite")


def _check_size(recorded: Recorded, model: nn.Module | None) -> Check:
    """Compare the update with the farthest that so many steps at such a rate can move the weights."""
    about = recorded.about
    needed = ["shares"] if about.shares == "gradient" else ["shares", "steps", "lr", "optimizer"]
    missing = [name for name in needed if getattr(about, name) is None]
    if missing:
        return Check("size", "unknown", f"the recording does not say {', '.join(missing)}")
    if about.optimizer == "adam" and about.shares == "difference":
        largest = max(float(tensor.abs().max()) for tensor in recorded.update.values())
        return _compare("the largest entry of the update", largest, (about.lr or 0) * (about.steps or 0) * _ADAM_FIRST)
    found = _head_bias(recorded, model)
    if found is None or about.loss != "cross-entropy" or about.weight_decay or not about.reduction:
        return Check("size", "unknown", "only cross-entropy without weight decay, of a known layer, bounds the update")
    samples = (about.batch_size or 0) if about.reduction == "sum" else 1
    if not samples:
        return Check("size", "unknown", "the recording does not say batch_size")
    # The gradient of a sample by the outputs is softmax minus one-hot, never longer than the square root of 2.
    bound = math.sqrt(2) * samples * _reach(about)
    return _compare("the update of the last bias", float(found.norm()), bound)


def _compare(what: str, found: float, bound: float) -> Check:
    if found > _SLACK * bound:
        words = f"{what} is {found:.3g}, but steps and learning rate allow {bound:.3g} at most: one of them is wrong"
        return Check("size", "failed", words)
    if found < _SMALL * bound:
        words = f"{what} is {found:.3g} of {bound:.3g} at most: a converged model, or a wrong learning rate"
        return Check("size", "unknown", words)
    return Check("size", "passed", f"{what} is {found:.3g}, and {bound:.3g} is the most that is possible")


def _reach(about: About) -> float:
    """Return how far gradients of length 1 can move a weight."""
    if about.shares == "gradient":
        return 1.0
    return (about.lr or 0) * (about.steps or 0) / (1 - min(about.momentum or 0, 0.999))


def _head_bias(recorded: Recorded, model: nn.Module | None) -> Tensor | None:
    """Return the update of the last linear layer's bias."""
    try:
        name = f"{layers.last_linear(recorded_model(recorded, model))}.bias"
    except GradVeilError:
        return None
    return recorded.update.get(name)


def _check_statistics(recorded: Recorded) -> Iterator[Check]:
    """Look whether running statistics moved as so many steps in such a mode move them."""
    about = recorded.about
    after = {n: t for n, t in recorded.buffers_after.items() if n in recorded.buffers}
    if not after:
        return
    if about.mode is None:
        yield Check("statistics", "unknown", "the recording does not say in which mode the client trained")
        return
    moved = [n for n, t in after.items() if n.endswith(_MEAN) and not torch.equal(t, recorded.buffers[n])]
    means = [n for n in after if n.endswith(_MEAN)]
    if about.mode == "eval" and moved:
        yield Check("statistics", "failed", f"'{moved[0]}' changed, which training in eval mode does not do")
    elif about.mode == "train" and len(moved) < len(means):
        still = next(n for n in means if n not in moved)
        yield Check("statistics", "failed", f"'{still}' did not change, which training in train mode would do")
    else:
        yield Check("statistics", "passed", f"running statistics fit {about.mode} mode")
    yield from _check_count(recorded, about)


def _check_count(recorded: Recorded, about: About) -> Iterator[Check]:
    counted = {
        int(tensor - recorded.buffers[name])
        for name, tensor in recorded.buffers_after.items()
        if name.endswith(".num_batches_tracked") and name in recorded.buffers
    }
    # A client that trains in a stack does not count, which tells nothing.
    if not counted - {0} or about.steps is None or about.mode != "train":
        return
    if counted == {about.steps}:
        yield Check("steps", "passed", f"batch norm counted {about.steps} steps, as stated")
    else:
        yield Check("steps", "failed", f"batch norm counted {max(counted)} steps, but {about.steps} are stated")
