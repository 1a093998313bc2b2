"""The client's step: the only place where a private batch becomes an observation."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from gradveil._local import local_update
from gradveil.defenses import DataDefense, Defense, ModelDefense, StepDefense, UpdateDefense
from gradveil.engine import Runtime, trainable
from gradveil.errors import DataError, SpecError
from gradveil.streams import Streams
from gradveil.types import (
    Auxiliary,
    Batch,
    Evidence,
    Gradients,
    Knowledge,
    LocalTraining,
    LossFn,
    Mode,
    Observation,
    Protected,
    State,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Both sides of the wall: what the adversary sees, and what only the auditor has."""

    observation: Observation
    evidence: Evidence


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """How a client trains and what it shares.

    Args:
        model: as the server sent it; eats images in [0, 1].
        loss: of the outputs and labels of one client, averaged over samples.
        defenses: in the order of the client step; the kind of a defense is the place where it acts.
        local: the client's training.
        mode: of batch norm while training.
        pool: (N, C, H, W) further images that a data defense may draw from.
    """

    model: nn.Module
    loss: LossFn
    defenses: tuple[Defense, ...] = ()
    local: LocalTraining = field(default_factory=LocalTraining)
    mode: Mode = "eval"
    pool: Tensor | None = None

    def __post_init__(self) -> None:
        steps = [type(d).__name__ for d in self.defenses if isinstance(d, StepDefense)]
        if len(steps) > 1:
            raise SpecError(f"one step can be computed in one way only, got {', '.join(steps)}; keep one of them")

    @property
    def data_defenses(self) -> tuple[DataDefense, ...]:
        """Those that act on the batch."""
        return tuple(d for d in self.defenses if isinstance(d, DataDefense))

    @property
    def model_defenses(self) -> tuple[ModelDefense, ...]:
        """Those that act on the network."""
        return tuple(d for d in self.defenses if isinstance(d, ModelDefense))

    @property
    def step_defense(self) -> StepDefense | None:
        """The one that computes the gradient, if any."""
        return next((d for d in self.defenses if isinstance(d, StepDefense)), None)

    @property
    def update_defenses(self) -> tuple[UpdateDefense, ...]:
        """Those that act on what leaves."""
        return tuple(d for d in self.defenses if isinstance(d, UpdateDefense))


def step(
    batch: Batch,
    client: Client,
    *,
    streams: Streams,
    knowledge: Knowledge = Knowledge.NOTHING,
    auxiliary: Auxiliary | None = None,
    parameters: State | None = None,
    buffers: State | None = None,
    runtime: Runtime | None = None,
) -> Step:
    """Train on private batches and share the protected updates of V clients.

    Args:
        batch: of every client.
        client: what they have in common.
        streams: the clients' randomness.
        knowledge: what the adversary is granted beyond the model and the update.
        auxiliary: public material for the adversary.
        parameters: (V, *shape) weights by name, where the clients' models differ.
        buffers: (V, *shape) buffers by name, where they differ.
        runtime: precision and chunk.
    """
    check(batch)
    streams = streams.bind(batch.victims)
    names = trainable(_sent(client))
    trained = local_update(
        protect_data(batch, client, streams=streams),
        client.local,
        model=client_model(client),
        loss=client_loss(client),
        names=names,
        mode=client.mode,
        step_defense=client.step_defense,
        sensitive=batch.sensitive,
        parameters={**(parameters or {}), **_private(client, streams)},
        buffers=buffers or {},
        streams=streams,
        runtime=runtime or Runtime(precision="float32"),
    )
    update = protect_update(trained.update, client, streams=streams)
    observation = Observation(
        model=_sent(client),
        mode=client.mode,
        names=names,
        update=update,
        loss=client.loss,
        input_shape=_four(trained.protected.inputs.shape[1:]),
        num_classes=trained.num_classes,
        knowledge=knowledge,
        labels=trained.protected.labels if Knowledge.LABELS in knowledge else None,
        local=client.local if Knowledge.LOCAL_TRAINING in knowledge else None,
        buffers_after=trained.buffers if Knowledge.BUFFERS in knowledge else None,
        defenses=client.defenses if Knowledge.DEFENSES in knowledge else None,
        auxiliary=auxiliary if Knowledge.AUXILIARY in knowledge else None,
        parameters=parameters,
        buffers=buffers,
    )
    evidence = Evidence(
        batch=batch,
        protected=trained.protected,
        clean=trained.update,
        update=update,
        buffers_after=trained.buffers,
    )
    return Step(observation=observation, evidence=evidence)


def observe(
    batch: Batch,
    model: nn.Module,
    loss: LossFn,
    *,
    defenses: Sequence[Defense] = (),
    knowledge: Knowledge = Knowledge.NOTHING,
    local: LocalTraining | None = None,
    mode: Mode = "eval",
    seed: int = 0,
) -> Observation:
    """Return what an adversary sees of V clients that share one protected update each.

    Example:
        >>> batch = Batch(torch.rand(3, 1, 1, 4, 4), torch.zeros(3, 1, dtype=torch.long))
        >>> model = nn.Sequential(nn.Flatten(), nn.Linear(16, 2))
        >>> observe(batch, model, nn.functional.cross_entropy).victims
        3
    """
    client = Client(model=model, loss=loss, defenses=tuple(defenses), local=local or LocalTraining(), mode=mode)
    return step(batch, client, streams=Streams(seed=seed, purpose="client"), knowledge=knowledge).observation


def check(batch: Batch) -> None:
    """Refuse a batch of the wrong shape, format or range, in one sentence."""
    inputs, labels = batch.inputs, batch.labels
    if inputs.ndim != 5 or 0 in inputs.shape:
        raise DataError(f"inputs must be (victims, batch, channels, height, width), got shape {tuple(inputs.shape)}")
    if not inputs.dtype.is_floating_point:
        raise DataError(f"inputs must be floating-point pixels in [0, 1], got {inputs.dtype}; divide bytes by 255")
    if not bool(torch.isfinite(inputs).all()) or float(inputs.min()) < 0 or float(inputs.max()) > 1:
        low, high = float(inputs.min()), float(inputs.max())
        raise DataError(
            f"pixels must lie in [0, 1], got {low:.4g} to {high:.4g}; give plain pixels and use gradveil.normalized"
        )
    if labels.shape[:2] != inputs.shape[:2] or labels.ndim not in {2, 3}:
        raise DataError(
            f"labels must be (victims, batch) or (victims, batch, classes) like inputs {tuple(inputs.shape[:2])}, "
            f"got shape {tuple(labels.shape)}"
        )
    if labels.ndim == 2 and (labels.dtype != torch.long or int(labels.min()) < 0):
        raise DataError(f"class labels must be int64 and at least 0, got {labels.dtype} from {labels.min()}")


def protect_data(batch: Batch, client: Client, *, streams: Streams) -> Protected:
    """Apply the data defenses."""
    protected = Protected.unchanged(batch)
    for defense in client.data_defenses:
        protected = defense.protect(protected, pool=client.pool, streams=streams)
    return protected


def protect_update(update: Gradients, client: Client, *, streams: Streams) -> Gradients:
    """Apply the update defenses."""
    for defense in client.update_defenses:
        update = defense.apply(update, streams=streams)
    return update


def client_model(client: Client) -> nn.Module:
    """Return the network as the client trains it, with every model defense."""
    model = client.model
    for defense in client.model_defenses:
        model = defense.wrap(model)
    return model


def client_loss(client: Client) -> LossFn:
    """Return the loss as the client trains it, with every model defense."""
    loss = client.loss
    for defense in client.model_defenses:
        loss = defense.wrap_loss(loss)
    return loss


def _sent(client: Client) -> nn.Module:
    """Return the network as the server sends it."""
    model = client.model
    for defense in client.model_defenses:
        model = defense.wrap(model) if defense.server_side else model
    return model


def _private(client: Client, streams: Streams) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    for defense in client.model_defenses:
        tensors |= defense.start(client.model, streams=streams)
    return tensors


def _four(shape: Sequence[int]) -> tuple[int, int, int, int]:
    batch, channels, height, width = shape
    return batch, channels, height, width
