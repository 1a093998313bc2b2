"""A recorded update: one safetensors file with what left a client, and what is known about how it was made."""

import dataclasses
import json
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Final, Literal, Self

import safetensors.torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from gradveil.errors import RecordError
from gradveil.federated.views import Sighting
from gradveil.storage import write_atomically
from gradveil.types import LocalTraining, Mode, State

FORMAT: Final = 1
_HEADER: Final = "gradveil-update"
_UNKNOWN: Final = "unknown"
_PARTS: Final = ("before", "buffers", "update", "buffers_after")


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """What an update does not say about itself; None is unknown, and stays so in the file.

    Args:
        model: spec of the architecture, such as `lenet:activation=relu`.
        input_shape: (C, H, W) of one image.
        num_classes: K.
        mean: of the normalization that is the model's first step; empty for none.
        std: of it.
        loss: `cross-entropy`, or a name that the reader must know what to do with.
        mode: of batch norm while training.
        batch_size: samples that the client trained on in this round.
        optimizer: `sgd` or `adam`.
        lr: local learning rate.
        momentum: of SGD.
        nesterov: whether it was Nesterov's.
        weight_decay: added to the gradient.
        steps: local optimizer steps.
        local_batch_size: samples of one step; 0 for all of them at every step.
        shuffled: whether the order of the samples changes from pass to pass.
        reduction: of the loss over the samples of a step.
        shares: what the update is: the gradient of one step, or the difference of weights, before minus after.
        defenses: specs joined by ` + `; empty for none.
        client: who sent it.
        round: when.
    """

    model: str | None = None
    input_shape: tuple[int, ...] | None = None
    num_classes: int | None = None
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    loss: str | None = None
    mode: Mode | None = None
    batch_size: int | None = None
    optimizer: Literal["sgd", "adam"] | None = None
    lr: float | None = None
    momentum: float | None = None
    nesterov: bool | None = None
    weight_decay: float | None = None
    steps: int | None = None
    local_batch_size: int | None = None
    shuffled: bool | None = None
    reduction: Literal["mean", "sum"] | None = None
    shares: Literal["gradient", "difference"] | None = None
    defenses: str | None = None
    client: int | None = None
    round: int | None = None

    @property
    def unknown(self) -> tuple[str, ...]:
        """Name what is not known."""
        return tuple(item.name for item in fields(self) if getattr(self, item.name) is None)

    def filled(self, others: Self) -> Self:
        """Take from others what is not known here."""
        return replace(self, **{name: getattr(others, name) for name in self.unknown})

    @classmethod
    def of_local(cls, local: LocalTraining) -> Self:
        """Take over local training settings."""
        known = {item.name: getattr(local, item.name) for item in fields(local)}
        known["shares"] = "difference" if local.shares == "weights" else local.shares
        return cls(**{**known, "local_batch_size": local.local_batch_size or 0})

    def local(self) -> LocalTraining:
        """Return the local training settings; an error names those that are not known."""
        names = [item.name for item in fields(LocalTraining)]
        missing = [name for name in names if name in self.unknown]
        if missing:
            raise RecordError(f"the recording does not say {', '.join(missing)}; give them when recording")
        values = {name: getattr(self, name) for name in names}
        return LocalTraining(**{**values, "local_batch_size": self.local_batch_size or None})


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Recorded:
    """What left a client.

    Args:
        before: all parameters of the model that the client was sent, by name.
        buffers: its buffers.
        update: of the parameters that the client trained.
        buffers_after: what the client sent back of its buffers; empty if it withheld them.
        about: what is known beside it.
    """

    before: State
    buffers: State
    update: State
    buffers_after: State = field(default_factory=dict)
    about: About = field(default_factory=About)


def save_update(recorded: Recorded, path: Path | str) -> None:
    """Write a recorded update; an interrupted write leaves no half of it."""
    tensors = {
        f"{part}/{name}": tensor.detach().cpu().contiguous().clone()
        for part in _PARTS
        for name, tensor in getattr(recorded, part).items()
    }
    known = {name: _UNKNOWN if value is None else value for name, value in dataclasses.asdict(recorded.about).items()}
    header = {_HEADER: json.dumps({"format": FORMAT, **known})}
    write_atomically(Path(path), safetensors.torch.save(tensors, metadata=header), private=True)


def load_update(path: Path | str) -> Recorded:
    """Read a recorded update; nothing in the file is executed.

    Example:
        >>> import tempfile, torch
        >>> made = Recorded(before={"w": torch.ones(2)}, buffers={}, update={"w": torch.zeros(2)}, about=About(lr=0.1))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_update(made, f"{folder}/update.safetensors")
        ...     read = load_update(f"{folder}/update.safetensors")
        >>> read.about.lr, read.about.momentum, read.before["w"]
        (0.1, None, tensor([1., 1.]))
    """
    path = Path(path)
    if not path.is_file():
        raise RecordError(f"there is no recorded update at {path}; correct the path")
    try:
        with safe_open(str(path), framework="pt", device="cpu") as file:
            tensors: dict[str, Tensor] = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            header = (file.metadata() or {}).get(_HEADER)
    except SafetensorError as error:
        raise RecordError(f"{path} is not a whole safetensors file ({error}); record it again") from error
    if header is None:
        raise RecordError(f"{path} is a safetensors file, but not a recorded update; give one that was recorded")
    parts = {part: {n.partition("/")[2]: t for n, t in tensors.items() if n.startswith(f"{part}/")} for part in _PARTS}
    return Recorded(**parts, about=_about(header, path))


def recorded_from(sighting: Sighting, about: About) -> Recorded:
    """Record what an observer saw in a simulated federation.

    Args:
        sighting: of one victim.
        about: what is known beside it, such as the model's spec and the local training.
    """
    seen = sighting.observation
    model = {name: tensor.detach() for name, tensor in seen.model.named_parameters()}
    before = {**model, **{name: tensor[0] for name, tensor in (seen.parameters or {}).items()}}
    buffers = {name: tensor.detach() for name, tensor in seen.model.named_buffers()}
    shape = seen.input_shape
    known = About(
        input_shape=shape[1:],
        num_classes=seen.num_classes,
        mode=seen.mode,
        batch_size=shape[0],
        client=sighting.clients[0] if len(sighting.clients) == 1 else None,
        round=sighting.round,
    )
    return Recorded(
        before=before,
        buffers={**buffers, **{name: tensor[0] for name, tensor in (seen.buffers or {}).items()}},
        update={name: tensor[0] for name, tensor in zip(seen.names, seen.update, strict=True)},
        buffers_after={name: tensor[0] for name, tensor in (seen.buffers_after or {}).items()},
        about=about.filled(known if seen.local is None else known.filled(About.of_local(seen.local))),
    )


def _about(header: str, path: Path) -> About:
    try:
        values: Any = json.loads(header)
    except json.JSONDecodeError as error:
        raise RecordError(f"the header of {path} is not JSON ({error}); record it again") from error
    if not isinstance(values, Mapping) or values.get("format") != FORMAT:
        found = values.get("format") if isinstance(values, Mapping) else None
        raise RecordError(f"{path} has format {found}, but this version reads {FORMAT}; record it again")
    hints = typing.get_type_hints(About)
    known = {name: checked_value(name, hints[name], value, path) for name, value in values.items() if name in hints}
    about = About(**known)
    _check_local(about, path)
    return about


def _check_local(about: About, path: Path) -> None:
    """Refuse local training that cannot be; what is not known is taken for something that can."""
    stated = {item.name: getattr(about, item.name) for item in fields(LocalTraining) if item.name not in about.unknown}
    possible = {"shares": "difference", "momentum": 0.5}
    try:
        LocalTraining(**{**possible, **stated, "local_batch_size": about.local_batch_size or None})
    except ValueError as error:
        raise RecordError(f"{path} states local training that cannot be ({error}); correct it") from error


def checked_value(name: str, kind: Any, value: object, path: Path) -> Any:
    """Bring a value of JSON or TOML to the type of its field of `About`."""
    if value == _UNKNOWN:
        return None
    (wanted,) = [option for option in typing.get_args(kind) if option is not type(None)]
    if typing.get_origin(wanted) is tuple and isinstance(value, list):
        number = typing.get_args(wanted)[0]
        if all(isinstance(item, int | float) and not isinstance(item, bool) for item in value):
            return tuple(number(item) for item in value)
    elif typing.get_origin(wanted) is Literal and value in typing.get_args(wanted):
        return value
    elif wanted is float and isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    elif isinstance(wanted, type) and type(value) is wanted:
        return value
    raise RecordError(f"{path} says {name} is {value!r}, which cannot be; correct it")
