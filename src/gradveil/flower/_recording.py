"""Recording: the mod on a client, and the strategy of a server that keeps what every client sends."""

import tomllib
import typing
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord
from flwr.clientapp.typing import ClientAppCallable, Mod
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from torch import Tensor

from gradveil.errors import RecordError, SpecError
from gradveil.federated.recorder import About, Recorded, checked_value, save_update
from gradveil.flower._messages import client_of, is_buffer, is_training, read_arrays, round_of, to_state
from gradveil.types import LocalTraining, Mode, State


def record(
    folder: Path | str,
    *,
    model: str | None = None,
    loss: str | None = None,
    local: LocalTraining | None = None,
    mode: Mode | None = None,
    input_shape: Sequence[int] | None = None,
    num_classes: int | None = None,
    normalization: tuple[Sequence[float], Sequence[float]] | None = None,
    batch_size: int | None = None,
    defenses: str | None = None,
    stated: Path | str | None = None,
) -> Mod:
    """Make a mod that writes what leaves this client, one safetensors file per round, for `gradveil audit --recorded`.

    Put before `protect`, it records what the server sees; put after it, the update before the noise. What is not
    given is stored as unknown, and the audit says which attacks that rules out.

    Args:
        folder: for `round-R-client-C.safetensors`, readable by the owner only.
        model: spec such as `lenet`, or words for a model of your own, which the audit must then be given.
        loss: such as `cross-entropy`.
        local: how the app trains: optimizer, rate, steps, batches; what it shares is the difference of weights.
        mode: of batch norm while training.
        input_shape: (C, H, W) of one image.
        num_classes: K.
        normalization: mean and std of each channel, where the app standardizes pixels in [0, 1].
        batch_size: samples used in a round; None takes `num-examples` of the reply, if it is there.
        defenses: in words, for the report; empty says that there are none.
        stated: a TOML file with a `[tool.gradveil]` table, such as the app's pyproject.toml; given arguments win.
    """
    mean, std = normalization or (None, None)
    given = About(
        model=model,
        loss=loss,
        mode=mode,
        input_shape=None if input_shape is None else tuple(map(int, input_shape)),
        num_classes=num_classes,
        mean=None if mean is None else tuple(map(float, mean)),
        std=None if std is None else tuple(map(float, std)),
        batch_size=batch_size,
        defenses=defenses,
    )
    if local is not None:
        given = given.filled(replace(About.of_local(local), shares="difference"))
    about = given if stated is None else given.filled(read_stated(stated))
    return Record(folder=Path(folder), about=about)


def read_stated(path: Path | str) -> About:
    r"""Read what is known of an app from the `[tool.gradveil]` table of a TOML file; its keys are those of `About`.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = Path(folder, "pyproject.toml").write_text('[tool.gradveil]\nlr = 0.1\ninput-shape = [1, 28, 28]')
        ...     read_stated(f"{folder}/pyproject.toml").input_shape
        (1, 28, 28)
    """
    try:
        table = tomllib.loads(Path(path).read_text(encoding="utf-8")).get("tool", {}).get("gradveil", {})
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise SpecError(f"{path} cannot be read as TOML ({error}); give the app's pyproject.toml") from error
    hints = typing.get_type_hints(About)
    found = {}
    for key, value in table.items():
        name = key.replace("-", "_")
        if name not in hints:
            known = ", ".join(item.name for item in fields(About))
            raise SpecError(f"[tool.gradveil] of {path} says {key}, which is none of {known}")
        found[name] = checked_value(name, hints[name], value, Path(path))
    return About(**found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """The mod; see `record`."""

    folder: Path
    about: About

    def __call__(self, message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        """Let the app train, and write what it sends."""
        if not is_training(message):
            return call_next(message, context)
        before, number = read_arrays(message.content), round_of(message)
        reply = call_next(message, context)
        if not reply.has_error():
            write_reply(reply, before, self.about, number=number, client=client_of(context), folder=self.folder)
        return reply


def recorded(strategy: Strategy, folder: Path | str, *, about: About | None = None) -> Strategy:
    """Wrap a strategy so that it also keeps every client's update, as an honest-but-curious server could.

    Args:
        strategy: any of Flower's, which aggregates as before.
        folder: for `round-R-client-NODE.safetensors`.
        about: what the server knows of the clients' training.
    """
    return RecordingStrategy(strategy, Path(folder), about or About(shares="difference"))


class RecordingStrategy(Strategy):  # type: ignore[misc]
    """The wrapped strategy; see `recorded`."""

    def __init__(self, strategy: Strategy, folder: Path, about: About) -> None:
        self.strategy, self.folder, self.about = strategy, folder, about
        self._sent: State = {}

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Remember the model that goes out."""
        self._sent = to_state(arrays)
        messages: Iterable[Message] = self.strategy.configure_train(server_round, arrays, config, grid)
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Write down every reply, then aggregate."""
        replies = list(replies)
        for reply in replies:
            if not reply.has_error():
                node = int(reply.metadata.src_node_id)
                write_reply(reply, self._sent, self.about, number=server_round, client=node, folder=self.folder)
        arrays, metrics = self.strategy.aggregate_train(server_round, replies)
        return arrays, metrics

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Leave evaluation to the wrapped strategy."""
        messages: Iterable[Message] = self.strategy.configure_evaluate(server_round, arrays, config, grid)
        return messages

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Leave evaluation to the wrapped strategy."""
        return self.strategy.aggregate_evaluate(server_round, replies)

    def summary(self) -> None:
        """Leave the summary to the wrapped strategy."""
        self.strategy.summary()


def write_reply(reply: Message, before: State, about: About, *, number: int, client: int, folder: Path) -> Path:
    """Write one recorded update; a reply that does not fit the model is written as it came, for the pre-flight."""
    after = read_arrays(reply.content)
    known = About(round=number, client=client, batch_size=_examples(reply), shares="difference")
    update = {
        name: before[name] - tensor if before.get(name) is not None and before[name].shape == tensor.shape else tensor
        for name, tensor in after.items()
        if not is_buffer(name)
    }
    if not update:
        raise RecordError("a reply holds no weights, so that there is nothing to record; send the model back")
    made = Recorded(
        before={name: tensor for name, tensor in before.items() if not is_buffer(name)},
        buffers={name: tensor for name, tensor in before.items() if is_buffer(name)},
        update=update,
        buffers_after={
            name: tensor for name, tensor in after.items() if is_buffer(name) and moved(before, name, tensor)
        },
        about=about.filled(known),
    )
    path = folder / f"round-{number}-client-{client}.safetensors"
    save_update(made, path)
    return path


def moved(before: State, name: str, tensor: Tensor) -> bool:
    """Tell whether a buffer came back otherwise than it went; training moves it, and who withholds it does not."""
    return not tensor.is_floating_point() or name not in before or not torch.equal(before[name], tensor)


def _examples(reply: Message) -> int | None:
    for metrics in reply.content.metric_records.values():
        value: Any = metrics.get("num-examples")
        if isinstance(value, int):
            return value
    return None
