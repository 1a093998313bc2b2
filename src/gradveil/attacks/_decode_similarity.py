"""A network that tells whether two encodings share an image, trained on mixtures of public images."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from gradveil.engine import Runtime
from gradveil.engine.runtime import Checkpoint
from gradveil.streams import Streams

Encode: TypeAlias = Callable[[Tensor], Tensor]
"""Mixtures (n, C, H, W) around the mean to what can be compared: themselves, or their magnitudes."""

_PAIRS_AT_ONCE = {"cuda": 8192, "cpu": 16}
"""A GPU wants many at once; on a CPU what the first layer gives for these still lies in its caches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Similarity:
    """How the network is trained.

    Args:
        k: private images of a mixture.
        steps: of Adam.
        batch: pairs of a step, half of which share an image.
        width: channels.
        lr: of Adam.
    """

    k: int
    steps: int
    batch: int
    width: int
    lr: float


def train_similarity(
    public: Tensor, encode: Encode, settings: Similarity, *, streams: Streams, runtime: Runtime
) -> list[Tensor]:
    """Train on fresh mixtures of public images.

    Args:
        public: (N, C, H, W) around the mean.
        encode: what is left of a mixture.
        settings: of training.
        streams: of one group.
        runtime: progress and checkpoints.

    Returns:
        The weights of the network.
    """
    weights, checkpoint = _start(public.shape[1], settings.width, streams, public), Checkpoint(runtime)
    optimizer = torch.optim.Adam(weights, lr=settings.lr)
    labels = (torch.arange(settings.batch, device=public.device) % 2).to(public)
    begun = _restore(checkpoint.load(), weights, optimizer)
    with torch.enable_grad():
        for number in range(begun, settings.steps):
            first, second = draw_pairs(public, settings, streams=streams.fork(f"pairs-{number}"))
            loss = F.binary_cross_entropy_with_logits(_logits(weights, encode(first), encode(second)), labels)
            for weight, gradient in zip(weights, torch.autograd.grad(loss, weights), strict=True):
                weight.grad = gradient
            optimizer.step()
            runtime.progress(runtime.name, number + 1, settings.steps)
            checkpoint.save(partial(_state, weights, optimizer, number + 1), finished=number + 1 == settings.steps)
    return [weight.detach() for weight in weights]


def _state(weights: list[Tensor], optimizer: torch.optim.Adam, done: int) -> dict[str, Tensor]:
    kept = {f"{name}-{n}": value for n, weight in enumerate(weights) for name, value in optimizer.state[weight].items()}
    return {**kept, **{f"weight-{n}": weight for n, weight in enumerate(weights)}, "done": torch.tensor(done)}


@torch.no_grad()
def _restore(saved: dict[str, Tensor], weights: list[Tensor], optimizer: torch.optim.Adam) -> int:
    """Put a saved state back, if there is one, and return how many steps it has behind it."""
    if not saved:
        return 0
    for number, weight in enumerate(weights):
        weight.copy_(saved[f"weight-{number}"])
        kept = {name: saved[f"{name}-{number}"] for name in ("step", "exp_avg", "exp_avg_sq")}
        optimizer.state[weight] = {**{name: kept[name].to(weight) for name in kept}, "step": kept["step"]}
    return int(saved["done"])


def draw_pairs(public: Tensor, settings: Similarity, *, streams: Streams) -> tuple[Tensor, Tensor]:
    """Draw two stacks of mixtures; those with odd numbers share one image, the others none."""
    k, size = settings.k, settings.batch
    # One row of 2k different images per pair: the i-th image is a random step further than the one before.
    gaps = streams.integers("gaps", max(len(public) // (2 * k), 1), (size, 2 * k))[0] + 1
    order = streams.permutation("order", len(public))[0]
    chosen = order[(gaps.cumsum(1) % len(public))].to(public.device)
    chosen[1::2, k] = chosen[1::2, 0]
    shares = -torch.log1p(-streams.uniform("shares", (size, 2 * k), like=public)[0])
    first, second = shares[:, :k], shares[:, k:]
    return (
        torch.einsum("nk,nk...->n...", first / first.sum(1, keepdim=True), public[chosen[:, :k]]),
        torch.einsum("nk,nk...->n...", second / second.sum(1, keepdim=True), public[chosen[:, k:]]),
    )


@torch.no_grad()
def compare(weights: list[Tensor], encoded: Tensor, pairs: Tensor | None = None) -> Tensor:
    """Compare encodings.

    Args:
        weights: of the network.
        encoded: (N, C, H, W).
        pairs: (N, N), symmetric, which to compare; None for all.

    Returns:
        (N, N) logits, higher for pairs that share an image; zero on the diagonal and for pairs that are not asked for.
    """
    count = len(encoded)
    first, second = torch.triu_indices(count, count, offset=1, device=encoded.device)
    if pairs is not None:
        asked = pairs[first, second]
        first, second = first[asked], second[asked]
    size = _PAIRS_AT_ONCE.get(encoded.device.type, _PAIRS_AT_ONCE["cuda"])
    scores = encoded.new_zeros(count, count)
    for a, b in zip(first.split(size), second.split(size), strict=True):
        scores[a, b] = _logits(weights, encoded[a], encoded[b])
    return scores + scores.T


def _start(channels: int, width: int, streams: Streams, like: Tensor) -> list[Tensor]:
    shapes = [(width, 3 * channels, 3, 3), (width, width, 3, 3), (width, width, 3, 3), (1, width)]
    weights = []
    for number, shape in enumerate(shapes):
        fan = int(torch.Size(shape[1:]).numel())
        weights += [streams.normal(f"weight-{number}", shape, like=like)[0] * (2 / fan) ** 0.5]
        weights += [torch.zeros(shape[0], dtype=like.dtype, device=like.device)]
    return [weight.requires_grad_() for weight in weights]


def _logits(weights: list[Tensor], first: Tensor, second: Tensor) -> Tensor:
    """Compare two stacks, in a way that does not depend on which is which."""
    hidden = torch.cat([first + second, (first - second).abs(), first * second], 1)
    if hidden.device.type == "cpu":
        hidden = hidden.contiguous(memory_format=torch.channels_last)  # in which a CPU convolves these faster
    for number in range(3):
        stride = 2 if number and min(hidden.shape[2:]) > 4 else 1
        hidden = F.relu(F.conv2d(hidden, weights[2 * number], weights[2 * number + 1], stride=stride, padding=1))
    return F.linear(hidden.mean((2, 3)), weights[6], weights[7]).squeeze(1)
