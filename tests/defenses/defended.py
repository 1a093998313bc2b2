"""A tiny federation for the tests of defenses."""

from collections.abc import Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gradveil.client import Client, Step, step
from gradveil.defenses import Defense
from gradveil.engine import Runtime
from gradveil.streams import Streams
from gradveil.types import Batch, Gradients, Knowledge, LocalTraining, Mode, State

VICTIMS, SIZE, CLASSES = 3, 4, 4
EVERYTHING = ~Knowledge.NOTHING


def network(*, dtype: torch.dtype = torch.float64, seed: int = 0) -> nn.Sequential:
    """Build a convolutional network with smooth activations and features of both signs."""
    with torch.random.fork_rng([]):
        torch.default_generator.manual_seed(seed)
        layers = [nn.Conv2d(1, 3, 3), nn.Tanh(), nn.Flatten(), nn.Linear(48, 6), nn.Tanh(), nn.Linear(6, CLASSES)]
    return nn.Sequential(*layers).to(dtype)


def private(victims: int = VICTIMS, size: int = SIZE, *, dtype: torch.dtype = torch.float64) -> Batch:
    """Draw images of whole byte levels, and labels that cycle through the classes."""
    streams = Streams(seed=3, purpose="test").bind(victims)
    pixels = streams.integers("images", 256, (size, 1, 6, 6)).to(dtype) / 255
    labels = (torch.arange(size) + torch.arange(victims)[:, None]) % CLASSES
    return Batch(pixels, labels)


def protected(
    defenses: Sequence[Defense],
    *,
    batch: Batch | None = None,
    model: nn.Module | None = None,
    local: LocalTraining | None = None,
    mode: Mode = "eval",
    seed: int = 0,
    kept: State | None = None,
    streams: Streams | None = None,
    pool: Tensor | None = None,
) -> Step:
    """Take one protected step of a tiny client."""
    client = Client(
        model=model or network(),
        loss=F.cross_entropy,
        defenses=tuple(defenses),
        local=local or LocalTraining(),
        mode=mode,
        pool=pool,
    )
    batch = batch or private()
    streams = streams or Streams(seed=seed, purpose="client").bind(batch.victims)
    runtime = Runtime(precision="float32", chunk=batch.victims)
    return step(batch, client, streams=streams, knowledge=EVERYTHING, kept=kept, runtime=runtime)


def update_of(*defenses: Defense, batch: Batch | None = None, local: LocalTraining | None = None) -> Gradients:
    """Return what leaves a tiny client."""
    return protected(defenses, batch=batch, local=local).observation.update


def flat(update: Gradients) -> Tensor:
    """Write every victim's update as one vector, (V, n)."""
    return torch.cat([tensor.flatten(1) for tensor in update], 1)


def loop_gradient(model: nn.Module, inputs: Tensor, labels: Tensor) -> list[Tensor]:
    """Differentiate by plain autograd."""
    return list(torch.autograd.grad(F.cross_entropy(model(inputs), labels), list(model.parameters())))


def one(batch: Batch, victim: int) -> Batch:
    """Keep one victim."""
    return replace(batch, inputs=batch.inputs[victim : victim + 1], labels=batch.labels[victim : victim + 1])
