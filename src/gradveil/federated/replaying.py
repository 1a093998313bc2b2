"""Pre-flight with the granted batch: train again as stated, and see whether the same update comes out."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal

import torch
from torch import Tensor, nn

from gradveil.client import Client, step
from gradveil.errors import GradVeilError
from gradveil.federated._retraining import retrained
from gradveil.federated.granting import Granted
from gradveil.federated.observing import recorded_model, stated_loss
from gradveil.federated.recorder import About, Recorded
from gradveil.streams import Streams
from gradveil.types import Batch, LossFn, Mode, State

LIMIT: Final = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """What training again gave.

    Args:
        residual: ||replayed - recorded|| / ||recorded|| with the stated settings.
        passed: whether it is small enough.
        advice: in words; names the setting whose change lowers the residual most, if it is not.
        setting: its name, empty if passed or if no change helps.
        tried: the residual of every change tried, by words.
    """

    residual: float
    passed: bool
    advice: str
    setting: str
    tried: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class _Change:
    """A setting that may have been stated wrongly."""

    setting: str
    words: str
    about: About
    frozen: tuple[str, ...] = ()


def replay(
    recorded: Recorded,
    batch: Batch,
    *,
    model: nn.Module | None = None,
    loss: LossFn | None = None,
    clean: State | None = None,
    limit: float = LIMIT,
) -> Replay:
    """Train on the granted batch as the recording says, and compare.

    Args:
        recorded: the update; its local training must be known.
        batch: of one victim, (1, B, ...), in the order in which the client used its samples.
        model: of the architecture; built from the recording's spec if None.
        loss: of outputs and labels; cross-entropy if the recording says so.
        clean: the update before noise and other update defenses, where the client kept it; else the one that left.
        limit: residual that passes.
    """
    recorded = replace(recorded, update=clean or recorded.update)
    sent, function = recorded_model(recorded, model), loss or stated_loss(recorded.about)

    def train(change: _Change) -> State:
        return _trained(recorded, sent, function, batch, change)

    return _compared(recorded, train, limit=limit, seen=0)


def replay_granted(
    recorded: Recorded,
    granted: Granted,
    *,
    model: nn.Module | None = None,
    loss: LossFn | None = None,
    limit: float = LIMIT,
) -> Replay:
    """Take the very steps that a client noted, with its samples, order and random states, and compare.

    The update before noise is compared where the client kept it, else the one that left.

    Args:
        recorded: the update; its local training must be known.
        granted: what the client noted.
        model: of the architecture; built from the recording's spec if None.
        loss: of outputs and labels; cross-entropy if the recording says so.
        limit: residual that passes.
    """
    recorded = replace(recorded, update=_trained_only(granted.clean, recorded) or recorded.update)
    sent, function = recorded_model(recorded, model), loss or stated_loss(recorded.about)

    def train(change: _Change) -> State:
        return retrained(recorded, sent, function, granted, change.about, frozen=change.frozen)

    return _compared(recorded, train, limit=limit, seen=granted.steps)


def _trained_only(clean: State, recorded: Recorded) -> State:
    return {name: tensor for name, tensor in clean.items() if name in recorded.update}


def _compared(recorded: Recorded, train: Callable[[_Change], State], *, limit: float, seen: int) -> Replay:
    """Train as stated; if another update comes out, change one setting at a time."""
    stated = _Change("", "as stated", recorded.about)
    first = train(stated)
    residual = _residual(first, recorded.update)
    if residual <= limit:
        return Replay(residual=residual, passed=True, advice="the update was replayed", setting="", tried={})

    found: dict[str, float] = {}
    best = stated
    for change in _changes(recorded, first, seen):
        try:
            found[change.words] = _residual(train(change), recorded.update)
        except (GradVeilError, ValueError):  # a change that this model or batch does not allow is none
            continue
        if found[change.words] < found.get(best.words, residual):
            best = change
    return Replay(
        residual=residual,
        passed=False,
        advice=_advice(best, residual, found.get(best.words, residual), limit),
        setting=best.setting,
        tried=found,
    )


def _advice(best: _Change, residual: float, reached: float, limit: float) -> str:
    if not best.setting:
        return f"the replayed update differs by {residual:.2g}, and no single change of a setting brings it nearer"
    enough = "which explains it" if reached <= limit else f"still above {limit:g}, so that something else differs too"
    return f"the replayed update differs by {residual:.2g}; with {best.words} by {reached:.2g}, {enough}"


def _trained(recorded: Recorded, model: nn.Module, loss: LossFn, batch: Batch, change: _Change) -> State:
    """Return the update that a client of the changed settings would share, zero where it is frozen."""
    for name in recorded.update:
        model.get_parameter(name).requires_grad_(name not in change.frozen)
    try:
        local = replace(change.about.local(), shuffled=False)  # the batch is in the order of use already
        client = Client(model=model, loss=loss, local=local, mode=change.about.mode or "eval")
        seen = step(batch, client, streams=Streams(seed=0, purpose="replay")).observation
    finally:
        for name in recorded.update:
            model.get_parameter(name).requires_grad_(True)
    shared = {name: tensor[0] for name, tensor in zip(seen.names, seen.update, strict=True)}
    return {name: shared.get(name, torch.zeros_like(tensor)) for name, tensor in recorded.update.items()}


def _changes(recorded: Recorded, first: State, seen: int) -> Iterator[_Change]:
    """List what may have been stated wrongly, one at a time; `seen` steps were noted, 0 if nobody counted."""
    about, local = recorded.about, recorded.about.local()
    reduction: Literal["mean", "sum"] = "sum" if local.reduction == "mean" else "mean"
    yield _Change("reduction", f"reduction={reduction}", replace(about, reduction=reduction))
    mode: Mode = "train" if about.mode == "eval" else "eval"
    yield _Change("mode", f"mode={mode}", replace(about, mode=mode))
    still = tuple(name for name, tensor in recorded.update.items() if not bool(tensor.any()))
    if still:
        yield _Change("frozen", f"{', '.join(still)} frozen", about, still)
    if local.shares == "gradient":
        return
    for momentum in {0.0, 0.5, 0.9, 0.95, 0.99} - {local.momentum}:
        yield _Change("momentum", f"momentum={momentum:g}", replace(about, momentum=momentum))
    for lr in _rates(local.lr, first, recorded.update):
        yield _Change("lr", f"lr={lr:.6g}", replace(about, lr=lr))
    for steps in sorted({seen, 1, local.steps - 1, local.steps + 1, 2 * local.steps} - {0, local.steps}):
        yield _Change("steps", f"steps={steps}", replace(about, steps=steps))
    for decay in {0.0, 1e-4, 5e-4, 1e-3, 1e-2} - {local.weight_decay}:
        yield _Change("weight_decay", f"weight_decay={decay:g}", replace(about, weight_decay=decay))


def _rates(lr: float, first: State, wanted: State) -> list[float]:
    """Guess the rate from the lengths of both updates, and the powers of ten beside the stated one."""
    product = sum(float((first[name].double() * wanted[name].double()).sum()) for name in wanted)
    square = sum(float(tensor.double().square().sum()) for tensor in first.values())
    scaled = lr * product / square if square > 0 else 0.0
    return [rate for rate in (scaled, lr / 10, lr * 10) if rate > 0]


def _residual(found: State, wanted: State) -> float:
    left, right = (_flat(state, list(wanted)) for state in (found, wanted))
    return float((left - right).norm() / right.norm())


def _flat(state: State, names: list[str]) -> Tensor:
    return torch.cat([state[name].double().flatten() for name in names])
