"""A recorded update as an observation: what an adversary who has the file can attack."""

import copy
from collections.abc import Mapping
from dataclasses import replace

import torch.nn.functional as F
from torch import Tensor, nn

from gradveil.attacks import attacks
from gradveil.defenses import Defense
from gradveil.defenses import defenses as known_defenses
from gradveil.engine import normalized, trainable
from gradveil.errors import GradVeilError, RecordError
from gradveil.federated.recorder import About, Recorded
from gradveil.models import build
from gradveil.spec import build as build_method
from gradveil.types import Knowledge, LossFn, Observation

_NEEDED = ("input_shape", "num_classes", "batch_size", "mode")


def to_observation(
    recorded: Recorded,
    *,
    model: nn.Module | None = None,
    loss: LossFn | None = None,
    knowledge: Knowledge = Knowledge.NOTHING,
    labels: Tensor | None = None,
) -> Observation:
    """Return what an adversary who has the recording sees, as one victim.

    Args:
        recorded: the update.
        model: of the architecture; built from the recording's spec if None.
        loss: of outputs and labels; cross-entropy if the recording says so.
        knowledge: granted; no more than the recording can give, see `grantable`, and labels where they are given.
        labels: (B,) those trained on.
    """
    about = recorded.about
    missing = [name for name in _NEEDED if getattr(about, name) is None]
    if missing:
        raise RecordError(f"the recording does not say {', '.join(missing)}; give them when recording")
    possible = grantable(recorded) | (Knowledge.NOTHING if labels is None else Knowledge.LABELS)
    if knowledge & ~possible:
        raise RecordError(f"the recording cannot grant {', '.join((knowledge & ~possible).names())}; grant less")
    channels, height, width = about.input_shape or ()
    return Observation(
        model=recorded_model(recorded, model),
        mode=about.mode or "eval",
        names=tuple(recorded.update),
        update=tuple(tensor[None] for tensor in recorded.update.values()),
        loss=loss or stated_loss(about),
        input_shape=(about.batch_size or 0, channels, height, width),
        num_classes=about.num_classes or 0,
        knowledge=knowledge,
        labels=labels[None] if labels is not None and Knowledge.LABELS in knowledge else None,
        local=about.local() if Knowledge.LOCAL_TRAINING in knowledge else None,
        buffers_after=_stacked(recorded.buffers_after) if Knowledge.BUFFERS in knowledge else None,
        defenses=stated_defenses(about) if Knowledge.DEFENSES in knowledge else None,
    )


def recorded_model(recorded: Recorded, model: nn.Module | None = None) -> nn.Module:
    """Return the model that the client was sent: the given one, or that of the recording's spec, with its weights."""
    empty = copy.deepcopy(model) if model is not None else _built(recorded.about)
    filled = empty.to(next(iter(recorded.before.values())).dtype).eval()
    wanted = {**dict(filled.named_parameters()), **dict(filled.named_buffers())}
    there = {**recorded.before, **recorded.buffers}
    problems = [f"'{name}' is missing" for name in wanted if name not in there]
    problems += [f"'{name}' is unknown to the model" for name in there if name not in wanted]
    problems += [
        f"'{name}' has shape {tuple(there[name].shape)} instead of {tuple(tensor.shape)}"
        for name, tensor in wanted.items()
        if name in there and there[name].shape != tensor.shape
    ]
    if problems:
        raise RecordError(f"the recording does not fit the model: {problems[0]}; give the model it was recorded from")
    for name, tensor in wanted.items():
        tensor.data.copy_(there[name])
    for name in trainable(filled):
        filled.get_parameter(name).requires_grad_(name in recorded.update)
    return filled


def as_gradient(recorded: Recorded) -> tuple[Recorded, str]:
    """Return a recording whose update is read as a gradient of the mean loss, and say in words how.

    One step of plain SGD is its gradient times the rate, exactly; several steps are read as one gradient, their mean.
    What is not known is left as it is: attacks that compare directions do not mind a factor.
    """
    about = recorded.about
    if about.shares == "gradient":
        return recorded, "a gradient, as it was sent"
    plain = about.optimizer == "sgd" and about.weight_decay == 0 and about.nesterov is False
    if not plain or about.lr is None or about.steps is None or about.reduction is None:
        return recorded, "a gradient up to an unknown factor"
    size = (about.local_batch_size or about.batch_size or 1) if about.reduction == "sum" else 1
    factor = 1 / (about.lr * about.steps * size)
    update = {name: tensor * factor for name, tensor in recorded.update.items()}
    words = "the gradient of its one step" if about.steps == 1 else f"one gradient, the mean of {about.steps} steps"
    return replace(recorded, update=update), words


def grantable(recorded: Recorded) -> Knowledge:
    """Return what the recording can grant an adversary beyond model and update.

    Example:
        >>> from gradveil.types import LocalTraining
        >>> grantable(Recorded(before={}, buffers={}, update={}, about=About.of_local(LocalTraining())))
        <Knowledge.LOCAL_TRAINING: 4>
    """
    known = Knowledge.BUFFERS if recorded.buffers_after else Knowledge.NOTHING
    if stated_defenses(recorded.about):
        known |= Knowledge.DEFENSES
    try:
        recorded.about.local()
    except GradVeilError:
        return known
    return known | Knowledge.LOCAL_TRAINING


def ruled_out(recorded: Recorded, *, labels: bool = False) -> Mapping[str, str]:
    """Say which attacks cannot be run on a recording, and why, by name.

    Args:
        recorded: the update.
        labels: whether the auditor grants the labels.
    """
    missing = [name for name in _NEEDED if getattr(recorded.about, name) is None]
    if missing:
        return dict.fromkeys(attacks.names(), f"the recording does not say {', '.join(missing)}")
    possible = grantable(recorded) | (Knowledge.LABELS if labels else Knowledge.NOTHING)
    found = {}
    for name in attacks.names():
        lacking = attacks.get(name).requires & ~possible
        if lacking:
            found[name] = f"it needs {', '.join(lacking.names())}, which the recording cannot grant"
    return found


def _built(about: About) -> nn.Module:
    if about.model is None or about.input_shape is None or about.num_classes is None:
        raise RecordError("the recording does not say which model, images and classes it has; give the model itself")
    if about.model.startswith("import:"):  # a file that came from elsewhere must not choose what is imported
        raise RecordError(f"the recording's model is {about.model}, which is not imported for a file; give it yourself")
    channels, height, width = about.input_shape
    plain = build(about.model, input_shape=(channels, height, width), num_classes=about.num_classes)
    return normalized(plain, about.mean, about.std) if about.mean and about.std else plain


def stated_defenses(about: About) -> tuple[Defense, ...]:
    """Return the defenses that a recording names; none if it names none that GradVeil knows."""
    try:
        return tuple(build_method(known_defenses, text.strip()) for text in (about.defenses or "").split(" + ") if text)
    except GradVeilError:
        return ()


def stated_loss(about: About) -> LossFn:
    """Return the loss that a recording names."""
    if about.loss != "cross-entropy":
        raise RecordError(f"the recording's loss is {about.loss or 'unknown'}; give the loss function itself")
    return F.cross_entropy


def _stacked(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor[None] for name, tensor in state.items()}
