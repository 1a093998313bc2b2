"""A strategy that goes on without the clients that fail, says who they were, and loses no finished round."""

import logging
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from gradveil.errors import RecordError
from gradveil.federated.round_log import append_row
from gradveil.federated.settings import FederationError
from gradveil.flower._messages import read_arrays, to_arrays, to_state
from gradveil.storage import TensorFolder
from gradveil.types import State

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Turnout:
    """Who took part in a round.

    Args:
        round: its number.
        asked: nodes that were sent the model.
        used: nodes whose update was averaged.
        failed: why a node's was not, by node; those that did not answer in time are among them.
        norm: mean length of the updates used.
    """

    round: int
    asked: tuple[int, ...]
    used: tuple[int, ...]
    failed: Mapping[int, str] = field(default_factory=dict)
    norm: float = math.nan


class GuardedStrategy(Strategy):  # type: ignore[misc]
    """Wrap a strategy so that what cannot be averaged is left out and reported, and every round is kept.

    Args:
        strategy: any of Flower's.
        folder: for the model after every round and `turnout.csv`; a server that is started again with it goes on
            after the last finished round. None keeps nothing.
    """

    def __init__(self, strategy: Strategy, folder: Path | str | None = None) -> None:
        self.strategy = strategy
        self.folder = None if folder is None else Path(folder)
        self.turnouts: list[Turnout] = []
        self.done = 0
        self._sent: State = {}
        self._asked: tuple[int, ...] = ()

    def resume(self, initial: ArrayRecord) -> ArrayRecord:
        """Return the model of the last finished round, or the initial one; later rounds count on from it."""
        saved = None if self.folder is None else TensorFolder(self.folder).load("last")
        if saved is None:
            return initial
        self.done = int(saved.pop("gradveil/round"))
        fits = {name: tensor.shape for name, tensor in to_state(initial).items()}
        if fits != {name: tensor.shape for name, tensor in saved.items()}:
            raise FederationError(f"{self.folder} holds rounds of another model; name a new folder, or remove it")
        _log.info("going on after round %d of %s", self.done, self.folder)
        return to_arrays(saved)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Remember who is asked, and what for."""
        messages = list(self.strategy.configure_train(self.done + server_round, arrays, config, grid))
        self._sent, self._asked = to_state(arrays), tuple(int(one.metadata.dst_node_id) for one in messages)
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Average what can be averaged, say what cannot, and keep the result."""
        number = self.done + server_round
        usable, failed = self._sort(replies)
        turnout = Turnout(
            round=number,
            asked=self._asked,
            used=tuple(int(one.metadata.src_node_id) for one in usable),
            failed=failed,
            norm=sum(self._norm(one) for one in usable) / len(usable) if usable else math.nan,
        )
        self.turnouts.append(turnout)
        self._report(turnout)
        if not usable:
            reasons = "; ".join(f"node {node}: {reason}" for node, reason in failed.items())
            raise FederationError(f"no client shared a usable update in round {number} ({reasons or 'none was asked'})")
        arrays, metrics = self.strategy.aggregate_train(number, usable)
        if self.folder is not None and arrays is not None:
            TensorFolder(self.folder).save("last", {**to_state(arrays), "gradveil/round": torch.tensor(number)})
        return arrays, metrics

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Leave evaluation to the wrapped strategy."""
        messages: Iterable[Message] = self.strategy.configure_evaluate(self.done + server_round, arrays, config, grid)
        return messages

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Leave evaluation to the wrapped strategy."""
        return self.strategy.aggregate_evaluate(self.done + server_round, replies)

    def summary(self) -> None:
        """Leave the summary to the wrapped strategy."""
        self.strategy.summary()

    def _sort(self, replies: Iterable[Message]) -> tuple[list[Message], dict[int, str]]:
        usable: list[Message] = []
        failed: dict[int, str] = {}
        for reply in replies:
            reason = _fault(reply, self._sent)
            if reason:
                failed[int(reply.metadata.src_node_id)] = reason
            else:
                usable.append(reply)
        answered = {*failed, *(int(one.metadata.src_node_id) for one in usable)}
        return usable, {**failed, **dict.fromkeys(sorted(set(self._asked) - answered), "no answer in time")}

    def _norm(self, reply: Message) -> float:
        after = read_arrays(reply.content)
        moved = [(t - self._sent[n]).double().norm() for n, t in after.items() if t.is_floating_point()]
        return float(torch.stack(moved).norm())

    def _report(self, turnout: Turnout) -> None:
        for node, reason in turnout.failed.items():
            _log.warning("round %d goes on without node %d: %s", turnout.round, node, reason)
        if self.folder is None:
            return
        row = {
            "round": turnout.round,
            "asked": len(turnout.asked),
            "used": len(turnout.used),
            "failed": len(turnout.failed),
            "update norm": turnout.norm,
            "reasons": "; ".join(f"{node}: {reason}" for node, reason in turnout.failed.items()),
        }
        append_row(self.folder / "turnout.csv", row)


def guarded(strategy: Strategy, folder: Path | str | None = None) -> GuardedStrategy:
    """Wrap a strategy; see `GuardedStrategy`."""
    return GuardedStrategy(strategy, folder)


def _fault(reply: Message, sent: State) -> str:
    """Say why a reply cannot be averaged; empty if it can."""
    if reply.has_error():
        return f"the client failed ({str(reply.error.reason).strip().splitlines()[-1] if reply.error.reason else ''})"
    try:
        after = read_arrays(reply.content)
    except RecordError as error:
        return str(error)
    if set(after) != set(sent):
        odd = sorted(set(after) ^ set(sent))
        return f"its arrays are others than those it was sent, such as '{odd[0]}'"
    for name, tensor in after.items():
        if tensor.shape != sent[name].shape:
            return f"'{name}' has shape {tuple(tensor.shape)} instead of {tuple(sent[name].shape)}"
        if not bool(torch.isfinite(tensor).all()):
            return f"'{name}' holds numbers that are not finite"
    return ""
