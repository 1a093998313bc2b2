"""The mod that keeps, on the client, what replaying a recorded update needs."""

import logging
from dataclasses import dataclass
from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp.typing import ClientAppCallable, Mod

from gradveil.federated.granting import Ledger, save_granted
from gradveil.flower._messages import client_of, is_buffer, is_training, read_arrays, round_of

_log = logging.getLogger(__name__)


def witness(folder: Path | str, ledger: Ledger) -> Mod:
    """Make a mod that keeps what a client trained on, for its own pre-flight; it sends nothing anywhere.

    It belongs last (`mods=[record(...), protect(...), witness(...)]`), so that it sees the update before the noise.
    The app's training calls `ledger.saw(images, labels)` before the forward pass of every step, which keeps the order
    of the samples and the random state. `gradveil audit --recorded FILE... --granted FOLDER` replays with it.

    Args:
        folder: for `round-R-client-C.safetensors`, readable by the owner only; it holds private samples.
        ledger: the one that the training writes to; one per process that trains.

    Example:
        >>> witness("granted", Ledger()).folder.name
        'granted'
    """
    return Witness(folder=Path(folder), ledger=ledger)


@dataclass(frozen=True, slots=True, kw_only=True)
class Witness:
    """The mod; see `witness`."""

    folder: Path
    ledger: Ledger

    def __call__(self, message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        """Let the app train, and keep what it noted."""
        if not is_training(message):
            return call_next(message, context)
        before, number = read_arrays(message.content), round_of(message)
        self.ledger.open()
        reply = call_next(message, context)
        if reply.has_error():
            return reply
        after = read_arrays(reply.content)
        clean = {n: before[n] - t for n, t in after.items() if n in before and not is_buffer(n)}
        granted = self.ledger.close(clean)
        if granted is None:
            _log.warning("the training noted no samples, so that round %d cannot be replayed; call ledger.saw", number)
        else:
            save_granted(granted, self.folder / f"round-{number}-client-{client_of(context)}.safetensors")
        return reply
