"""The mod that protects what leaves a client."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

from flwr.app import Context, Message
from flwr.clientapp.typing import ClientAppCallable, Mod
from torch import Tensor, nn

from gradveil.client import Client, share_update
from gradveil.defenses import Defense, UpdateDefense
from gradveil.defenses import defenses as known_defenses
from gradveil.errors import RecordError, SpecError
from gradveil.flower._messages import (
    Memory,
    Randomness,
    client_of,
    is_buffer,
    is_training,
    read_arrays,
    replace_arrays,
    round_of,
    without_randomness,
)
from gradveil.spec import build
from gradveil.streams import Streams
from gradveil.types import State

Buffers: TypeAlias = Literal["withhold", "noise", "pass"]


def protect(
    defenses: Sequence[Defense | str],
    *,
    buffers: Buffers = "withhold",
    seed: int | None = None,
    keep: Path | str | None = None,
) -> Mod:
    """Make a mod that protects the update of any app whose clients are sent a model and send theirs back.

    It belongs after a mod that records (`mods=[record(...), protect(...)]`) and before the app's training. Buffers
    are told by their names, `running_mean`, `running_var` and `num_batches_tracked`; everything else of floating-point
    numbers is protected as a weight.

    Args:
        defenses: those that act on updates, as objects or such as `gaussian-noise:std=1e-3`, in order.
        buffers: of floating-point numbers, such as running statistics, which tell of the data too: `withhold` sends
            the server's own back, `noise` applies the defenses to their change, `pass` lets them through.
        seed: of the noise; None draws one that nobody else knows. A server that knows it can take the noise off.
        keep: folder for what defenses keep between rounds, so that a restarted client goes on; None keeps it in
            Flower's context.

    Example:
        >>> protect(["clipping:norm=1", "gaussian-noise:std=1e-3"]).defenses[1].std
        0.001
    """
    made = tuple(build(known_defenses, one) if isinstance(one, str) else one for one in defenses)
    wrong = [known_defenses.name_of(one) for one in made if not isinstance(one, UpdateDefense)]
    if wrong:
        raise SpecError(
            f"{', '.join(wrong)} acts inside the training, where a mod cannot reach; use gradveil.flower.client_app"
        )
    if buffers not in {"withhold", "noise", "pass"}:
        raise SpecError(f"buffers must be withhold, noise or pass, got '{buffers}'")
    memory = Memory("gradveil-protect", None if keep is None else Path(keep))
    return Protect(defenses=made, buffers=buffers, seed=seed, memory=memory)


@dataclass(frozen=True, slots=True, kw_only=True)
class Protect:
    """The mod; see `protect`."""

    defenses: tuple[Defense, ...]
    buffers: Buffers
    seed: int | None
    memory: Memory
    _warned: set[str] = field(default_factory=set, compare=False, repr=False)

    def __call__(self, message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        """Let the app train, and change what it sends."""
        if not is_training(message):
            return call_next(message, context)
        before, number = read_arrays(message.content), round_of(message)
        reply = call_next(message, context)
        if reply.has_error():
            return reply
        after = read_arrays(reply.content)
        _check(before, after)

        kept = self.memory.load(context)
        own = Randomness.read(kept, seed=self.seed).turn(number)
        streams = own.streams(client_of(context), number)
        weights = [name for name, tensor in after.items() if tensor.is_floating_point() and not is_buffer(name)]
        sent, left = self._share(weights, before, after, without_randomness(kept), streams)
        replace_arrays(reply.content, {**after, **sent, **self._of_buffers(before, after, streams.fork("buffers"))})
        self.memory.save(context, {**left, **own.write()})
        return reply

    def _share(
        self, names: list[str], before: State, after: State, kept: State, streams: Streams
    ) -> tuple[dict[str, Tensor], State]:
        """Return protected values of some tensors, and what the defenses keep."""
        # The client only tells the defenses apart; its model and loss are the app's own and never asked.
        client = Client(model=nn.Identity(), loss=_unasked, defenses=self.defenses)
        update = tuple((before[name] - after[name])[None] for name in names)
        shared = share_update(update, client, kept=kept, streams=streams)
        return {n: before[n] - tensor[0] for n, tensor in zip(names, shared.update, strict=True)}, shared.kept

    def _of_buffers(self, before: State, after: State, streams: Streams) -> dict[str, Tensor]:
        names = [name for name, tensor in after.items() if tensor.is_floating_point() and is_buffer(name)]
        if not names:
            return {}
        self._say_once(names)
        if self.buffers == "pass":
            return {}
        if self.buffers == "withhold":
            return {name: before[name] for name in names}
        noisy, _ = self._share(names, before, after, {}, streams)
        return {n: tensor.clamp_min(0) if n.endswith("running_var") else tensor for n, tensor in noisy.items()}

    def _say_once(self, names: list[str]) -> None:
        words = {
            "withhold": "are withheld, since they tell of the data: the server keeps its own, so that a model with "
            "batch norm may test worse; choose buffers='noise' or 'pass', or a model with group norm",
            "pass": "pass unprotected, and tell of the data; a guarantee of a defense does not cover them",
        }.get(self.buffers)
        if words and not self._warned:
            self._warned.add(self.buffers)
            warnings.warn(f"running statistics such as '{names[0]}' {words}", stacklevel=2)


def _check(before: State, after: State) -> None:
    for name, tensor in after.items():
        if name not in before:
            raise RecordError(f"the client sends '{name}', which it was not sent, so that it has no update to protect")
        if before[name].shape != tensor.shape:
            here, there = tuple(tensor.shape), tuple(before[name].shape)
            raise RecordError(f"the client sends '{name}' of shape {here}, but was sent {there}; keep the shape")


def _unasked(outputs: Tensor, labels: Tensor) -> Tensor:  # noqa: ARG001
    raise AssertionError("a mod does not train")
