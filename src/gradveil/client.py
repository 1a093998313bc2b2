"""The client's step: the only place where a private batch becomes an observation."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache

import torch
from torch import Tensor, nn

from gradveil._local import Trained, local_update
from gradveil._outputs import outputs_of, see_that_labels_fit
from gradveil.defenses import (
    DataDefense,
    Defense,
    InstaHide,
    ModelDefense,
    Shared,
    StackedNetwork,
    StepDefense,
    UpdateDefense,
    check_combination,
)
from gradveil.engine import Runtime, find_normalization, trainable
from gradveil.errors import DataError, UnsupportedModelError
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

_FEW = 64  # samples are enough to ask a network for its outputs; a client may hold more than fit at once
_log = logging.getLogger(__name__)
_MODEL = "model/"  # what model defenses keep; update defenses keep theirs below their number


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Both sides of the wall.

    Args:
        observation: what the adversary sees.
        evidence: what only the auditor has.
        kept: what the clients keep for their next round, (V, *shape) by name; it never leaves them.
    """

    observation: Observation
    evidence: Evidence
    kept: State = field(default_factory=dict)


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
        check_combination(self.defenses, shares=self.local.shares)
        pool = self.pool
        if pool is not None and not (pool.ndim == 4 and pool.is_floating_point()):
            came = f"{pool.dtype} of shape {tuple(pool.shape)}"
            raise DataError(f"pool must be floating-point images (N, C, H, W), got {came}; divide bytes by 255")
        mean = find_normalization(self.model).mean
        if mean and any(isinstance(defense, InstaHide) and not defense.mean for defense in self.defenses):
            _warn_once(f"instahide flips signs around 0, but the network standardizes pixels; give it {_written(mean)}")

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


@cache
def _warn_once(message: str) -> None:
    _log.warning(message)


def _written(mean: Sequence[float]) -> str:
    return f"mean={'+'.join(f'{value:.4g}' for value in mean)}"


def step(
    batch: Batch,
    client: Client,
    *,
    streams: Streams,
    knowledge: Knowledge = Knowledge.NOTHING,
    auxiliary: Auxiliary | None = None,
    parameters: State | None = None,
    buffers: State | None = None,
    kept: State | None = None,
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
        kept: what the clients kept from their last round; None for their first, which begins with `begin`.
        runtime: precision and chunk.
    """
    check(batch)
    streams = streams.bind(batch.victims)
    kept = begin(client, streams=streams) if kept is None else kept
    private = _below(kept, _MODEL)
    data = protect_data(batch, client, streams=streams)
    network = stacked_network(
        client,
        data,
        parameters={**(parameters or {}), **private},
        buffers=buffers or {},
        streams=streams,
        runtime=runtime or Runtime(precision="float32"),
    )
    marked = data.marked(batch.sensitive)
    trained = local_update(data, client.local, network=network, step_defense=client.step_defense, sensitive=marked)
    shared = share_update(trained.update, client, kept=kept, streams=streams)
    evidence = Evidence(
        batch=batch,
        protected=trained.protected,
        clean=trained.update,
        update=shared.update,
        buffers_after=trained.buffers,
    )
    observation = replace(
        _observation(client, network, trained, shared.update, knowledge),
        auxiliary=auxiliary if Knowledge.AUXILIARY in knowledge else None,
        parameters=parameters,
        buffers=buffers,
    )
    own = _above({**private, **trained.private}, _MODEL)
    return Step(observation=observation, evidence=evidence, kept={**own, **shared.kept})


def _observation(
    client: Client, network: StackedNetwork, trained: Trained, update: Gradients, knowledge: Knowledge
) -> Observation:
    """Let the adversary see what leaves the clients, and what it is granted of them."""
    return Observation(
        model=sent_model(client),
        mode=client.mode,
        names=network.shared,
        update=update,
        loss=client.loss,
        input_shape=_four(trained.protected.inputs.shape[1:]),
        num_classes=network.num_classes,
        knowledge=knowledge,
        labels=trained.protected.labels if Knowledge.LABELS in knowledge else None,
        local=client.local if Knowledge.LOCAL_TRAINING in knowledge else None,
        buffers_after=trained.buffers if Knowledge.BUFFERS in knowledge else None,
        defenses=client.defenses if Knowledge.DEFENSES in knowledge else None,
    )


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
    for name, given in (("inputs", inputs), ("labels", labels)):
        if not isinstance(given, Tensor):
            raise DataError(f"{name} must be a tensor, got {type(given).__name__}; torch.as_tensor makes one")
    if inputs.ndim != 5 or 0 in inputs.shape:
        raise DataError(f"inputs must be (victims, batch, channels, height, width), got shape {tuple(inputs.shape)}")
    if not inputs.dtype.is_floating_point:
        raise DataError(f"inputs must be floating-point pixels in [0, 1], got {inputs.dtype}; divide bytes by 255")
    low, high = (float(end) for end in torch.aminmax(inputs))
    if not (low >= 0 and high <= 1):  # what is not a number is neither
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
    if labels.ndim == 3 and not (labels.is_floating_point() and bool(((labels >= 0) & (labels < torch.inf)).all())):
        raise DataError(f"soft labels must be floating-point, finite and at least 0, got {labels.dtype}")
    if batch.sensitive is not None and batch.sensitive.shape != inputs.shape[:2]:
        raise DataError(f"sensitive must be {tuple(inputs.shape[:2])} like labels, got {tuple(batch.sensitive.shape)}")


def protect_data(batch: Batch, client: Client, *, streams: Streams) -> Protected:
    """Apply the data defenses."""
    if any(defense.soft_labels for defense in client.data_defenses):
        batch = _with_soft_labels(batch, client)
    protected = Protected.unchanged(batch)
    for defense in client.data_defenses:
        protected = defense.protect(protected, pool=client.pool, streams=streams)
    return protected


def protect_update(update: Gradients, client: Client, *, streams: Streams) -> Gradients:
    """Apply the update defenses, in a client's first round."""
    return share_update(update, client, kept={}, streams=streams).update


def share_update(update: Gradients, client: Client, *, kept: State, streams: Streams) -> Shared:
    """Apply the update defenses in any round, and return what they keep for the next one."""
    left: dict[str, Tensor] = {}
    for number, defense in enumerate(client.update_defenses):
        place = f"update-{number}/"
        shared = defense.share(update, kept=_below(kept, place), streams=streams)
        update = shared.update
        left |= _above(shared.kept, place)
    return Shared(update, left)


def begin(client: Client, *, streams: Streams) -> State:
    """Make what V clients keep for themselves over all rounds, such as a private head: (V, *shape) by name."""
    tensors: dict[str, Tensor] = {}
    for defense in client.model_defenses:
        tensors |= defense.start(client.model, streams=streams)
    return _above(tensors, _MODEL)


def stacked_network(
    client: Client,
    data: Protected,
    *,
    parameters: State,
    buffers: State,
    streams: Streams,
    runtime: Runtime,
    model: nn.Module | None = None,
) -> StackedNetwork:
    """Return the network of V clients as they train it on some data; `model` is it, if it was made before."""
    sent, model = sent_model(client), model or client_model(client)
    shared = trainable(sent)
    if not shared:
        raise UnsupportedModelError("a client shares what it trains, but no parameter of the model requires a gradient")
    loss = client_loss(client)
    return StackedNetwork(
        model=model,
        loss=_times_batch(loss) if client.local.reduction == "sum" else loss,
        names=(*shared, *(name for name in trainable(model) if name not in shared)),
        shared=shared,
        num_classes=_num_classes(sent, data),
        mode=client.mode,
        parameters=parameters,
        buffers=buffers,
        streams=streams,
        draw=lambda size, streams: draw_noise(client, size, streams=streams),
        reduction=client.local.reduction,
        pool=client.pool,
        runtime=runtime,
    )


def draw_noise(client: Client, size: int, *, streams: Streams) -> State:
    """Draw the noise of the network's random layers for one step on `size` samples, (V, *shape) by name of a buffer."""
    noise: dict[str, Tensor] = {}
    for defense in client.model_defenses:
        noise |= defense.draw(client.model, size, streams=streams)
    return noise


def sent_model(client: Client) -> nn.Module:
    """Return the network as the server sends it, with the defenses that the server knows of."""
    model = client.model
    for defense in client.model_defenses:
        model = defense.wrap(model) if defense.server_side else model
    return model


def client_model(client: Client) -> nn.Module:
    """Return the network as the client trains it, with every model defense."""
    model = client.model
    for defense in client.model_defenses:
        model = defense.trained(defense.wrap(model))
    return model


def client_loss(client: Client) -> LossFn:
    """Return the loss as the client trains it, with every model defense."""
    loss = client.loss
    for defense in client.model_defenses:
        loss = defense.wrap_loss(loss)
    return loss


def _with_soft_labels(batch: Batch, client: Client) -> Batch:
    """Turn class labels into soft ones of as many entries as the model has outputs."""
    if batch.labels.ndim == 3:
        return batch
    classes = int(outputs_of(sent_model(client), batch.inputs[0, :1]).shape[-1])
    see_that_labels_fit(batch.labels, classes)
    soft = torch.nn.functional.one_hot(batch.labels, classes).to(batch.inputs.dtype)
    return replace(batch, labels=soft)


def _num_classes(model: nn.Module, data: Protected) -> int:
    """Ask the model for the number of its outputs, and see that the labels fit."""
    classes = int(outputs_of(model, data.inputs[0, :_FEW]).shape[-1])
    if data.labels.ndim == 2:
        see_that_labels_fit(data.labels, classes)
    if data.labels.ndim == 3 and data.labels.shape[2] != classes:
        raise DataError(f"soft labels must hold the model's {classes} outputs, got {data.labels.shape[2]}")
    return classes


def _times_batch(loss: LossFn) -> LossFn:
    return lambda outputs, labels: loss(outputs, labels) * len(outputs)


def _above(tensors: State, place: str) -> dict[str, Tensor]:
    return {f"{place}{name}": tensor for name, tensor in tensors.items()}


def _below(tensors: State, place: str) -> dict[str, Tensor]:
    return {name.removeprefix(place): tensor for name, tensor in tensors.items() if name.startswith(place)}


def _four(shape: Sequence[int]) -> tuple[int, int, int, int]:
    batch, channels, height, width = shape
    return batch, channels, height, width
