"""The nouns of GradVeil: batch, observation, evidence, reconstruction.

The first axis of every tensor is V, the number of independent victims. An adversary receives an `Observation` and
nothing else; what it must not have travels as `Evidence`.
"""

import enum
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, Protocol, Self, TypeAlias, TypeVar

import torch
from torch import Tensor, nn

Gradients: TypeAlias = tuple[Tensor, ...]
"""One (V, *shape) tensor per parameter that requires a gradient, in the order of the model."""

LossFn: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""Outputs (B, K) and labels (B,) or (B, K) of one victim to one number."""

State: TypeAlias = Mapping[str, Tensor]
"""Named tensors of a model, shared `shape` or stacked `(V, *shape)`."""

Mode: TypeAlias = Literal["eval", "train"]


class Knowledge(enum.Flag):
    """What the adversary knows beyond the model and the update."""

    NOTHING = 0
    LABELS = enum.auto()
    BUFFERS = enum.auto()
    LOCAL_TRAINING = enum.auto()
    DEFENSES = enum.auto()
    AUXILIARY = enum.auto()
    ENCODING = enum.auto()

    def names(self) -> tuple[str, ...]:
        """List the granted items in lower case, as spec files and records spell them."""
        return tuple(flag.name.lower().replace("_", "-") for flag in Knowledge if flag in self and flag.name)


@dataclass(frozen=True, slots=True)
class Paper:
    """Where a method comes from."""

    title: str
    authors: str
    year: int
    url: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """What a reader should know before relying on a method; what it does is the method's docstring.

    Args:
        fails: when it does not do what it promises.
        costs: what one run takes, in the terms of the method: gradients, queries, memory.
        suggested: settings worth starting from.
        interacts: what weakens an attack; what a defense does not go together with.
    """

    fails: str
    costs: str
    suggested: str
    interacts: str


@dataclass(frozen=True, slots=True)
class Batch:
    """The private data of V victims; only client, auditing, metrics and the federation hold one.

    Args:
        inputs: (V, B, C, H, W), pixel values in [0, 1].
        labels: (V, B) class indices or (V, B, K) soft labels.
        sensitive: (V, B) mask, for defenses that protect some samples.
    """

    inputs: Tensor
    labels: Tensor
    sensitive: Tensor | None = None

    @property
    def victims(self) -> int:
        """Number of victims in the stack."""
        return len(self.inputs)

    def select(self, victims: Sequence[int] | slice) -> Self:
        """Keep some victims."""
        return _select(self, victims)

    def to(self, device: torch.device | str) -> Self:
        """Move every tensor."""
        return _to(self, device)


@dataclass(frozen=True, slots=True)
class Protected:
    """What a data or step defense feeds to the model: any range, any number of samples.

    Args:
        inputs: (V, B', ...).
        labels: (V, B') or (V, B', K).
        origin: (V, B', k), which private samples each was made from.
        weights: (V, B', k), and how much of each.
    """

    inputs: Tensor
    labels: Tensor
    origin: Tensor
    weights: Tensor

    @classmethod
    def unchanged(cls, batch: Batch) -> Self:
        """Take a batch as it is."""
        victims, size = batch.inputs.shape[:2]
        origin = torch.arange(size, device=batch.inputs.device).expand(victims, size)[..., None]
        return cls(batch.inputs, batch.labels, origin, torch.ones_like(origin, dtype=batch.inputs.dtype))

    def marked(self, sensitive: Tensor | None) -> Tensor | None:
        """Return (V, B'), which samples hold a sensitive one of the private (V, B); None where nobody marked any.

        Example:
            >>> origin = torch.tensor([[[0, 1], [1, 2]]])
            >>> mixed = Protected(torch.rand(1, 2, 4), torch.zeros(1, 2), origin, torch.full((1, 2, 2), 0.5))
            >>> mixed.marked(torch.tensor([[True, False, False]])).tolist()
            [[True, False]]
        """
        if sensitive is None:
            return None
        private = sensitive.to(self.origin.device, torch.bool)
        return private.gather(1, self.origin.flatten(1)).view_as(self.origin).any(-1)

    def select(self, victims: Sequence[int] | slice) -> Self:
        """Keep some victims."""
        return _select(self, victims)

    def to(self, device: torch.device | str) -> Self:
        """Move every tensor."""
        return _to(self, device)


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalTraining:
    """How the client gets from the model it was sent to the update it shares.

    Args:
        optimizer: `sgd` or `adam`.
        lr: local learning rate.
        momentum: of SGD.
        nesterov: use Nesterov momentum.
        weight_decay: added to the gradient.
        steps: local optimizer steps.
        local_batch_size: samples of one step; None takes the whole batch at every step.
        shuffled: whether the client orders its samples at random.
        reduction: `mean` or `sum` over the samples of a step.
        shares: the gradient of the single step, the difference of weights (before minus after), or the weights.
    """

    optimizer: Literal["sgd", "adam"] = "sgd"
    lr: float = 1.0
    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0
    steps: int = 1
    local_batch_size: int | None = None
    shuffled: bool = False
    reduction: Literal["mean", "sum"] = "mean"
    shares: Literal["gradient", "difference", "weights"] = "gradient"

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ValueError(f"steps must be at least 1, got {self.steps}")
        if not 0 < self.lr < math.inf:
            raise ValueError(f"lr must be above 0 and finite, got {self.lr}")
        if not 0 <= self.weight_decay < math.inf:
            raise ValueError(f"weight_decay must be at least 0 and finite, got {self.weight_decay}")
        if not 0 <= self.momentum < 1:
            raise ValueError(f"momentum must be at least 0 and below 1, got {self.momentum}")
        if self.nesterov and self.momentum == 0:
            raise ValueError("nesterov needs a momentum above 0, got 0; set one or leave nesterov out")
        if self.local_batch_size is not None and self.local_batch_size < 1:
            raise ValueError(f"local_batch_size must be at least 1, got {self.local_batch_size}")
        if self.shares == "gradient" and self.local_batch_size is not None:
            raise ValueError("a client that shares the gradient of one step takes its whole batch, not a local one")
        if self.shares == "gradient" and self.steps > 1:
            raise ValueError(f"a client of {self.steps} local steps shares a difference or weights, not a gradient")


class KnownDefense(Protocol):
    """What an informed adversary can use of a defense; see `defenses.Defense`."""

    def resample(self, update: Gradients, *, streams: Any) -> Gradients:
        """Apply the defense again to a trial update."""

    def log_likelihood(self, observed: Gradients, clean: Gradients) -> Tensor:
        """Return (V,) log p(observed | clean)."""

    def visible(self, update: Gradients) -> Gradients:
        """Return a mask of the entries that the defense lets through."""

    def forward(self, inputs: Tensor) -> Tensor:
        """Apply the defense to images, differentiably."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Auxiliary:
    """Public material the adversary may use.

    Args:
        inputs: (N, C, H, W) public images in [0, 1].
        labels: (N,) their labels.
        generator: maps latents to images.
        extractor: maps images to features.
    """

    inputs: Tensor | None = None
    labels: Tensor | None = None
    generator: nn.Module | None = None
    extractor: nn.Module | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """Everything the adversary sees, and nothing else.

    Args:
        model: as the server sent it; eats images in [0, 1].
        mode: whether the client computed its update in eval or in train mode.
        names: of the shared parameters.
        update: one (V, *shape) tensor per name.
        loss: of one victim's outputs and labels.
        input_shape: (B, C, H, W) as announced.
        num_classes: K.
        knowledge: what was granted; fields below are None unless it grants them.
        labels: (V, B) or (V, B, K), those trained on.
        local: how the client trained.
        buffers_after: (V, *shape) batch-norm statistics the client sent back.
        defenses: the defenses in use.
        auxiliary: public material.
        parameters: (V, *shape) weights by name, where the victims' models differ.
        buffers: (V, *shape) buffers by name, where they differ.
    """

    model: nn.Module
    mode: Mode
    names: tuple[str, ...]
    update: Gradients
    loss: LossFn
    input_shape: tuple[int, int, int, int]
    num_classes: int
    knowledge: Knowledge = Knowledge.NOTHING
    labels: Tensor | None = None
    local: LocalTraining | None = None
    buffers_after: State | None = None
    defenses: tuple[KnownDefense, ...] | None = None
    auxiliary: Auxiliary | None = None
    parameters: State | None = None
    buffers: State | None = None

    @property
    def victims(self) -> int:
        """Number of victims in the stack."""
        return len(self.update[0])

    @property
    def device(self) -> torch.device:
        """Where the update lies."""
        return self.update[0].device

    @property
    def dtype(self) -> torch.dtype:
        """Number format of the update."""
        return self.update[0].dtype

    def select(self, victims: Sequence[int] | slice) -> Self:
        """Keep some victims."""
        return _select(self, victims)

    def repeat(self, times: int) -> Self:
        """Repeat every victim, so that restarts run as further victims: v, v, ..., w, w, ..."""
        return _select(self, [v for v in range(self.victims) for _ in range(times)]) if times > 1 else self


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What the adversary must not have; only auditing and the recorder touch it.

    Args:
        batch: the private batch.
        protected: what the model saw.
        clean: the update before the update defenses.
        update: the update after them.
        buffers_after: (V, *shape) running statistics after the step, whether or not they were shared.
    """

    batch: Batch
    protected: Protected
    clean: Gradients
    update: Gradients
    buffers_after: State = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconstruction:
    """An adversary's guess.

    Args:
        inputs: (V, B, C, H, W) in [0, 1], the private images.
        labels: (V, B) or (V, B, K), None if the attack guesses none.
        protected: (V, B, C, H, W), a guess of what the model saw, where the attack tells it from the private images.
        objective: (V,) the attack's own final objective; lower is better.
        diverged: (V,) victims whose attack met a number that is not finite; they keep their best iterate.
        steps: (V,) iterations used.
        trace: (V, T) objective over time, empty unless asked for.
        captured: whether the step ran as a CUDA graph.
        chunk: victims attacked at once.
        details: (V, ...) by name, whatever else the attack found out, such as a learned shift.
    """

    inputs: Tensor
    labels: Tensor | None = None
    protected: Tensor | None = None
    objective: Tensor
    diverged: Tensor
    steps: Tensor
    trace: Tensor | None = None
    captured: bool = False
    chunk: int = 0
    details: State = field(default_factory=dict)

    @classmethod
    def join(cls, parts: Sequence[Self]) -> Self:
        """Concatenate the chunks of a stack."""
        first = parts[0]
        tensors = {f.name: [getattr(part, f.name) for part in parts] for f in fields(cls)}
        joined = {k: torch.cat(v) for k, v in tensors.items() if isinstance(v[0], Tensor)}
        details = {name: torch.cat([part.details[name] for part in parts]) for name in first.details}
        return replace(
            first,
            chunk=max(part.chunk for part in parts),
            captured=all(part.captured for part in parts),
            details=details,
            **joined,
        )

    def select(self, victims: slice) -> Self:
        """Keep some victims."""
        stacked = {f.name: getattr(self, f.name) for f in fields(self)}
        kept: dict[str, Any] = {k: tensor[victims] for k, tensor in stacked.items() if isinstance(tensor, Tensor)}
        return replace(self, details={name: values[victims] for name, values in self.details.items()}, **kept)


_T = TypeVar("_T", bound=Batch | Protected | Observation)
_STACKED = ("update", "labels", "inputs", "sensitive", "origin", "weights", "parameters", "buffers", "buffers_after")


def _select(value: _T, victims: Sequence[int] | slice) -> _T:
    return _map_stacked(value, lambda tensor: tensor[victims if isinstance(victims, slice) else list(victims)])


def _to(value: _T, device: torch.device | str) -> _T:
    return _map_stacked(value, lambda tensor: tensor.to(device))


def _map_stacked(value: _T, change: Callable[[Tensor], Tensor]) -> _T:
    """Change every tensor that has a victims axis."""
    changed: dict[str, object] = {}
    for item in fields(value):
        content = getattr(value, item.name)
        if item.name not in _STACKED or content is None:
            continue
        if isinstance(content, Tensor):
            changed[item.name] = change(content)
        elif isinstance(content, Mapping):
            changed[item.name] = {name: change(tensor) for name, tensor in content.items()}
        else:
            changed[item.name] = tuple(change(tensor) for tensor in content)
    return replace(value, **changed)  # type: ignore[arg-type]
