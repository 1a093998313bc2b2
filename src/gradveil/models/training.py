"""Training through the parts of the client's step, with any defenses, from one seed."""

import contextlib
import copy
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gradveil.client import Client, sent_model
from gradveil.data import Split
from gradveil.defenses import Defense
from gradveil.engine import Progress, Runtime, Store, trainable
from gradveil.engine.runtime import silent
from gradveil.errors import DataError, UnsupportedModelError
from gradveil.models._accuracy import evaluate, place_of, sample_of
from gradveil.models._loader import Loader
from gradveil.models._recipe import PRESETS, Training
from gradveil.models._resume import Epoch, Pace, Run, TrainingError, identify
from gradveil.models._schedules import factor
from gradveil.models._steps import ProtectedStep, client_network, smoothed
from gradveil.streams import Streams
from gradveil.types import LossFn

__all__ = ["PRESETS", "Epoch", "Pace", "Trained", "Training", "TrainingError", "evaluate", "train"]

_NAME = "training"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trained:
    """A trained network and how it got there.

    Args:
        model: as the server sends it, with trained weights, in eval mode: the given one, and the parts that server-side
            defenses put into it. A client with the same defenses takes it as it is.
        network: as it was trained, with private parts too; the same as `model` without model defenses.
        accuracy: of `network` on the clean test split, from 0 to 1; None without a test split.
        loss: mean of the last epoch.
        epochs: passes over the training set.
        seconds: of training and testing, interruptions left out.
        history: what every epoch gave.
    """

    model: nn.Module
    network: nn.Module
    accuracy: float | None
    loss: float
    epochs: int
    seconds: float
    history: tuple[Epoch, ...]


def train(
    model: nn.Module,
    split: Split,
    *,
    training: Training,
    defenses: Sequence[Defense] = (),
    loss: LossFn = F.cross_entropy,
    test: Split | None = None,
    pool: Tensor | None = None,
    progress: Progress = silent,
    store: Store | None = None,
    pace: Pace | None = None,
    device: torch.device | str | None = None,
) -> Trained:
    """Train a copy of a model; the given one, and the global random state, stay as they are.

    Every step goes through the client's step with one victim: data defenses on the batch, model defenses around the
    network, a step defense or plain autograd for the gradient, update defenses on what leaves; then the optimizer. On a
    GPU the noise of defenses is drawn there, with other numbers than on the CPU; see `Streams`.

    Args:
        model: eats images in [0, 1]; its number format is that of the pixels.
        split: the training set.
        training: the settings.
        defenses: in the order of the client step; their noise is fresh in every step.
        loss: of outputs and labels, averaged over samples.
        test: clean images to measure on after every epoch.
        pool: (N, C, H, W) further images that a data defense may draw from.
        progress: called after every step.
        store: keeps the state after every epoch; an interrupted training continues to the same weights.
        pace: how often the network is measured and kept, where every epoch is too often.
        device: where to train; where the model lies if None.

    Example:
        >>> images = torch.randint(256, (40, 1, 2, 2), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
        >>> bright = (images.float().mean((1, 2, 3)) > 127).long()
        >>> model = nn.Sequential(nn.Flatten(), nn.Linear(4, 2))
        >>> settings = Training(epochs=30, batch_size=10, lr=1.0)
        >>> train(model, Split(images, bright), training=settings, test=Split(images, bright)).accuracy
        1.0
    """
    streams = Streams(seed=training.seed, purpose=_NAME, on_device=True).bind(1)
    base = copy.deepcopy(model).to(place_of(model, device))
    loader = Loader.of(split, batch_size=training.batch_size, augment=training.augment, like=sample_of(base))
    _check(base, loader)
    smooth = smoothed(loss, training.label_smoothing)
    own_pool = None if pool is None else pool.to(loader.images.device)
    client = Client(model=base, loss=smooth, defenses=tuple(defenses), mode="train", pool=own_pool)

    run = _begin(client, training, split=split, streams=streams)
    saved = store.load(_NAME) if store else None
    if saved:
        run.restore(saved)
    with Runtime(precision=training.precision).numerics(), torch.enable_grad():
        step = ProtectedStep(client, run.network, training=training)
        _epochs(run, step, loader, training, _Watch(test, store, pace or Pace()), streams=streams, progress=progress)
    return _finish(run, sent_model(client))


def _check(model: nn.Module, loader: Loader) -> None:
    """Refuse a model without parameters, or with too few outputs for the labels, in one sentence."""
    if not trainable(model):
        raise UnsupportedModelError("training needs a parameter that requires a gradient, but the model has none")
    with torch.no_grad():
        classes = model.eval()(loader.images[:1].to(loader.dtype)).shape[-1]
    low, high = int(loader.labels.min()), int(loader.labels.max())
    if low < 0 or high >= classes:
        raise DataError(f"labels must lie in 0 .. {classes - 1}, the outputs of the model, got {low} to {high}")


def _begin(client: Client, training: Training, *, split: Split, streams: Streams) -> Run:
    """Make the client's network and its optimizer."""
    network = client_network(client, streams=streams).to(sample_of(client.model).device).train()
    if training.channels_last:
        _lay_out(network, torch.channels_last)
    parameters = [network.get_parameter(name) for name in trainable(network)]
    return Run(
        network=network,
        optimizer=_optimizer(parameters, training),
        identity=identify(training, defenses=client.defenses, network=network, split=split),
    )


def _optimizer(parameters: Sequence[Tensor], training: Training) -> torch.optim.Optimizer:
    if training.optimizer == "adam":
        return torch.optim.Adam(parameters, lr=training.lr, weight_decay=training.weight_decay)
    return torch.optim.SGD(
        parameters,
        lr=training.lr,
        momentum=training.momentum,
        nesterov=training.nesterov,
        weight_decay=training.weight_decay,
    )


def _epochs(
    run: Run,
    step: ProtectedStep,
    loader: Loader,
    training: Training,
    watch: "_Watch",
    *,
    streams: Streams,
    progress: Progress,
) -> None:
    """Train for the epochs that are left, measure and keep the state."""
    for number in range(len(run.history), training.epochs):
        began = time.monotonic()
        mean = _epoch(run, step, loader, training, number=number, streams=streams, progress=progress)
        run.history.append(Epoch(mean, watch.measured(run, last=number + 1 == training.epochs)))
        run.seconds += time.monotonic() - began
        watch.keep(run)


@dataclass(slots=True)
class _Watch:
    """Measures and keeps a training, at its pace."""

    test: Split | None
    store: Store | None
    pace: Pace
    kept: float = field(default_factory=time.monotonic)

    def measured(self, run: Run, *, last: bool) -> float | None:
        due = last or (len(run.history) + 1) % self.pace.test_every == 0
        return evaluate(run.network, self.test) if self.test is not None and due else None

    def keep(self, run: Run) -> None:
        if self.store and time.monotonic() - self.kept >= self.pace.save_every:
            self.store.save(_NAME, run.tensors())
            self.kept = time.monotonic()


def _epoch(
    run: Run,
    step: ProtectedStep,
    loader: Loader,
    training: Training,
    *,
    number: int,
    streams: Streams,
    progress: Progress,
) -> float:
    """Train for one epoch, and return the mean loss."""
    total = training.epochs * loader.steps
    losses = []
    with _seeded(int(streams.integers(f"layers/{number}", 2**62, ())), loader.images.device):
        for done, batch in enumerate(loader.epoch(number, streams=streams), start=number * loader.steps):
            for group in run.optimizer.param_groups:
                group["lr"] = training.lr * factor(training.schedule, done, total=total)
            value, run.kept = step(batch, kept=run.kept, streams=streams.fork(f"step-{done}"))
            losses.append(value)
            run.optimizer.step()
            progress(_NAME, done + 1, total)

    mean = float(torch.stack(losses).mean())
    if not math.isfinite(mean):
        raise TrainingError(
            f"the loss became {mean} in epoch {number + 1} of {training.epochs}; "
            f"train with a learning rate below {training.lr:g}"
        )
    return mean


@contextlib.contextmanager
def _seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Let random layers draw from a seed of their own, and leave the global random state as it was."""
    on_cuda = device.type == "cuda"
    with torch.random.fork_rng([device] if on_cuda else []):
        torch.default_generator.manual_seed(seed)
        if on_cuda:
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        yield


def _finish(run: Run, sent: nn.Module) -> Trained:
    """Fill the network that the server sends, whose parts all have their names in the trained one."""
    run.optimizer.zero_grad()
    trained = run.network.state_dict()
    sent.load_state_dict({name: trained[name] for name in sent.state_dict()})
    for module in (run.network, sent):
        _lay_out(module.eval(), torch.contiguous_format)
    last = run.history[-1]
    return Trained(
        model=sent,
        network=run.network,
        accuracy=last.accuracy,
        loss=last.loss,
        epochs=len(run.history),
        seconds=run.seconds,
        history=tuple(run.history),
    )


def _lay_out(model: nn.Module, layout: torch.memory_format) -> None:
    """Change the order of images and kernels in memory, in place."""
    for tensor in model.parameters():
        if tensor.ndim == 4:
            tensor.data = tensor.data.contiguous(memory_format=layout)
