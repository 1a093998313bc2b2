"""Training a generator on public images."""

import hashlib
import math
import time
from dataclasses import dataclass

import torch
from torch import Tensor

from gradveil.data import Dataset, Split
from gradveil.engine import Precision, Progress, Runtime, Store
from gradveil.engine.runtime import silent
from gradveil.models._base import Shape
from gradveil.models._loader import Augment, Loader
from gradveil.models._resume import Epoch, Run, TrainingError
from gradveil.models._schedules import factor
from gradveil.models.generators._network import Autoencoder, Generator
from gradveil.streams import Streams
from gradveil.types import Batch

_NAME = "generator"


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratorTraining:
    """How a generator is trained.

    Args:
        epochs: passes over the public images.
        batch_size: images of one step.
        lr: highest learning rate of Adam; it rises and falls along one cycle.
        latent_size: length of a latent.
        width: channels of the last hidden map, rounded up to a multiple of 8; None for two per row of pixels.
        conditional: tell the generator the class.
        augment: `none`, or `crop-flip`.
        precision: `float32`, `tf32` or `bf16`.
        seed: of weights, order and noise.
    """

    epochs: int = 100
    batch_size: int = 128
    lr: float = 2e-3
    latent_size: int = 128
    width: int | None = None
    conditional: bool = False
    augment: Augment = "none"
    precision: Precision = "tf32"
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "latent_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.width is not None and self.width < 1:
            raise ValueError(f"width must be at least 1, got {self.width}")
        if not 0 < self.lr < math.inf:
            raise ValueError(f"lr must be above 0, got {self.lr}")

    def channels(self, shape: Shape) -> int:
        """Return the width for images of a shape, a multiple of 8."""
        return 8 * -(-(self.width or 2 * shape[1]) // 8)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedGenerator:
    """What training a generator gives.

    Args:
        generator: on the CPU, in eval mode.
        error: mean squared error of public test images, encoded and decoded: how near the generator comes to images
            it has not seen, which no search of its latents should be expected to beat by far.
        losses: of the epochs, evidence bounds up to a constant.
        seconds: of training.
    """

    generator: Generator
    error: float
    losses: tuple[float, ...]
    seconds: float

    @property
    def psnr(self) -> float:
        """The error in decibels."""
        return -10 * math.log10(max(self.error, 1e-12))


def train_generator(
    public: Dataset,
    *,
    training: GeneratorTraining | None = None,
    progress: Progress = silent,
    store: Store | None = None,
    device: torch.device | str = "cpu",
) -> TrainedGenerator:
    """Train a generator on the training split of a public data set, and measure it on the test split.

    Args:
        public: nobody's secret; an adversary whose victims' images are in it would be an oracle.
        training: the settings.
        progress: called after every step.
        store: keeps the state after every epoch; an interrupted training continues to the same weights.
        device: where to train.
    """
    training = training or GeneratorTraining()
    streams = Streams(seed=training.seed, purpose=_NAME).bind(1)
    run = _begin(public, training, torch.device(device))
    saved = store.load(_NAME) if store else None
    if saved:
        run.restore(saved)
    like = torch.zeros((), device=device)
    loader = Loader.of(public.train, batch_size=training.batch_size, augment=training.augment, like=like)
    with Runtime(precision=training.precision).numerics(), torch.enable_grad():
        for number in range(len(run.history), training.epochs):
            began = time.monotonic()
            run.history.append(Epoch(_epoch(run, loader, training, number, streams, progress), None))
            run.seconds += time.monotonic() - began
            if store:
                store.save(_NAME, run.tensors())
    model = _model(run).eval()
    error = _error(model, public.test)
    losses = tuple(epoch.loss for epoch in run.history)
    return TrainedGenerator(generator=model.generator.cpu(), error=error, losses=losses, seconds=run.seconds)


def _begin(public: Dataset, training: GeneratorTraining, device: torch.device) -> Run:
    model = Autoencoder.build(
        public.input_shape,
        latent_size=training.latent_size,
        width=training.channels(public.input_shape),
        num_classes=public.num_classes if training.conditional else 0,
        seed=training.seed,
    ).to(device)
    about = repr((training, public.name, public.input_shape, len(public.train)))
    digest = hashlib.blake2b(about.encode(), digest_size=8).digest()
    identity = torch.tensor(int.from_bytes(digest, "little", signed=True))
    optimizer = torch.optim.Adam(model.parameters(), lr=training.lr)
    return Run(network=model, optimizer=optimizer, identity=identity)


def _epoch(
    run: Run, loader: Loader, training: GeneratorTraining, number: int, streams: Streams, progress: Progress
) -> float:
    """Train for one epoch, and return the mean loss."""
    model, total = _model(run), training.epochs * loader.steps
    device = loader.images.device
    shape = (loader.steps, loader.batch_size, training.latent_size)
    noise = streams.normal(f"noise/{number}", shape)[0].to(device)
    losses: list[Tensor] = []
    for count, batch in enumerate(loader.epoch(number, streams=streams)):
        done = number * loader.steps + count
        for group in run.optimizer.param_groups:
            group["lr"] = training.lr * factor("one-cycle", done, total=total)
        with torch.autocast(device.type, torch.bfloat16, enabled=training.precision == "bf16"):
            loss = model(batch.inputs[0], noise[count], _labels(batch, model.generator)).total
        run.optimizer.zero_grad()
        loss.backward()
        run.optimizer.step()
        losses.append(loss.detach())
        progress(_NAME, done + 1, total)
    mean = float(torch.stack(losses).mean())
    if not math.isfinite(mean):
        raise TrainingError(f"the loss became {mean} in epoch {number + 1}; train with lr below {training.lr:g}")
    return mean


def _labels(batch: Batch, generator: Generator) -> Tensor | None:
    return batch.labels[0] if generator.num_classes else None


@torch.no_grad()
def _error(model: Autoencoder, split: Split, batch_size: int = 1000) -> float:
    """Return the mean squared error of images that are encoded and decoded."""
    place = next(model.parameters()).device
    total = torch.zeros((), dtype=torch.float64, device=place)
    for images, labels in zip(split.images.split(batch_size), split.labels.split(batch_size), strict=True):
        inputs = images.to(place).float().div(255)
        told = labels.to(place) if model.generator.num_classes else None
        total += (model.reconstruct(inputs, told) - inputs).double().square().sum()
    return float(total) / split.images.numel()


def _model(run: Run) -> Autoencoder:
    assert isinstance(run.network, Autoencoder)
    return run.network
