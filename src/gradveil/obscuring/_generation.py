"""Obscuring a whole private set: in stacks, resumable, and never twice."""

import logging
from dataclasses import replace

import torch
from torch import Tensor, nn

from gradveil.data import Split
from gradveil.defenses import Loda
from gradveil.defenses._obscuring import draw_start, image_streams, obscure
from gradveil.engine import Runtime
from gradveil.errors import DataError
from gradveil.storage import content_hash
from gradveil.streams import Streams

_STACK, _STACK_ON_GPU = 512, 1000
_OBSCURED = "obscured"
_TOO_ALIKE = 20.0  # decibels; unrelated images have about 9
_log = logging.getLogger(__name__)


def obscure_images(
    images: Tensor, defense: Loda, *, pool: Tensor | None, seed: int = 0, runtime: Runtime | None = None
) -> Tensor:
    """Obscure (N, C, H, W) private images; each depends on itself, the seed and the pool alone, whatever its stack.

    Args:
        images: in [0, 1].
        defense: extractor, layers, weight and steps.
        pool: (M, C, H, W) public images to start from; None starts from noise.
        seed: which public image each starts from.
        runtime: `bf16` runs the extractor in mixed precision, `chunk` is the size of a stack (if None, 512, and 1,000
            on a GPU), `store` keeps finished stacks under a hash of everything they depend on, so that an interrupted
            run goes on and a repeated one only reads.

    Returns:
        (N, C, H, W) in [0, 1].
    """
    _see_that_pixels(images, "private")
    if pool is not None and len(pool):
        _see_that_pixels(pool, "public")
    runtime = runtime or Runtime(precision="float32")
    features = defense.features(images)
    mark = fingerprint(defense, features, pool=pool, seed=seed, precision=runtime.precision)
    stacks = images.split(runtime.chunk or (_STACK_ON_GPU if images.is_cuda else _STACK))
    _lay_out(features, _layout(images))
    finished: list[Tensor] = []
    with runtime.numerics():
        for number, stack in enumerate(stacks):
            name = f"{runtime.name}/{content_hash(mark, stack)}"
            kept = runtime.store.load(name) if runtime.store else None
            done = kept[_OBSCURED].to(stack) if kept else _stack(stack, defense, features, pool, seed, runtime)
            if runtime.store and not kept:
                runtime.store.save(name, {_OBSCURED: done})
            finished.append(done)
            runtime.progress(runtime.name, number + 1, len(stacks))
    found = torch.cat(finished)
    _warn_if_alike(found, images)
    return found


def obscure_split(
    split: Split,
    defense: Loda,
    *,
    pool: Tensor | None,
    seed: int = 0,
    runtime: Runtime | None = None,
    device: torch.device | str = "cpu",
) -> Split:
    """Obscure a private set and round it to bytes, ready for training; labels stay.

    Args:
        split: the private set.
        defense: extractor, layers, weight and steps.
        pool: (M, C, H, W) public images to start from.
        seed: which public image each starts from.
        runtime: see `obscure_images`.
        device: where to compute.
    """
    found = obscure_images(split.inputs().to(device), defense, pool=pool, seed=seed, runtime=runtime)
    return replace(split, images=found.mul(255).round().to(torch.uint8).cpu())


def fingerprint(defense: Loda, features: nn.Module, *, pool: Tensor | None, seed: int, precision: str) -> str:
    """Return a hash of everything but the private images that an obscured image depends on."""
    descent, layers = defense.descent, getattr(features, "layers", ())
    # The modules too: weights do not tell one activation from another.
    settings = f"{descent.c}|{descent.steps}|{descent.lr}|{layers}|{seed}|{precision}|{features}"
    tensors = [tensor for _, tensor in sorted(features.state_dict().items())]
    return content_hash(settings, *tensors, "" if pool is None else pool)


def _see_that_pixels(images: Tensor, whose: str) -> None:
    """Refuse what are no images in [0, 1]."""
    if images.ndim != 4 or 0 in images.shape or not images.is_floating_point():
        came = f"{images.dtype} of shape {tuple(images.shape)}"
        raise DataError(f"{whose} images must be floating-point (number, C, H, W), got {came}; divide bytes by 255")
    low, high = (float(end) for end in torch.aminmax(images))
    if not (low >= 0 and high <= 1):  # what is not a number is neither
        raise DataError(
            f"pixels of {whose} images must lie in [0, 1], got {low:.4g} to {high:.4g}; divide bytes by 255"
        )


def _stack(
    stack: Tensor, defense: Loda, features: nn.Module, pool: Tensor | None, seed: int, runtime: Runtime
) -> Tensor:
    start = draw_start(stack, pool, image_streams(stack, Streams(seed=seed)))
    private, start = (images.contiguous(memory_format=_layout(images)) for images in (stack, start))
    with torch.autocast(stack.device.type, torch.bfloat16, enabled=runtime.precision == "bf16"):
        return obscure(private, start, features, defense.descent).contiguous()


def _lay_out(features: nn.Module, layout: torch.memory_format) -> None:
    for kernel in features.parameters():
        if kernel.ndim == 4:
            kernel.data = kernel.data.contiguous(memory_format=layout)


def _layout(images: Tensor) -> torch.memory_format:
    """Lay images and kernels out as the matrix units of a GPU take them."""
    return torch.channels_last if images.is_cuda else torch.contiguous_format


def _warn_if_alike(obscured: Tensor, images: Tensor) -> None:
    """Say so where an extractor drew images back onto the private ones, against too small a weight c."""
    decibels = -10 * (obscured - images).square().flatten(1).mean(1).clamp_min(1e-12).log10()
    alike = int((decibels > _TOO_ALIKE).sum())
    if alike:
        _log.warning("%d of %d images are hardly obscured; raise c or align other layers", alike, len(images))
