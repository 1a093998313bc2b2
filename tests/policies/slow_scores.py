"""Both scores written out image by image, in float64, as facts and formulas say; nothing is shared with the library
but the draws and the operations."""

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gradveil.engine import find_normalization
from gradveil.streams import Streams
from gradveil.transforms import (
    Variants,
    Views,
    crop_flip,
    draw_variants,
    draw_views,
    parse_policy,
    to_bytes,
    transform_bytes,
)


def seen_image(policy: str, image: Tensor, streams: Streams) -> Tensor:
    """Crop, mirror and transform one image (1, C, H, W)."""
    views, drawn = draw_views(size=1, streams=streams), draw_variants(parse_policy(policy), size=1, streams=streams)
    cropped = crop_flip(to_bytes(image), Views(views.corners[0], views.mirrored[0]))
    return transform_bytes(cropped, Variants(drawn.codes[0], drawn.signs[0])).double() / 255


def gradient(model: nn.Module, image: Tensor, label: Tensor) -> list[Tensor]:
    loss = F.cross_entropy(model(image), label)
    return [g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))]


def slow_privacy(
    policy: str, model: nn.Module, inputs: Tensor, labels: Tensor, streams: Streams, *, variant: str, intervals: int
) -> list[float]:
    bound, values = streams.bind(len(inputs)), []
    for n in range(len(inputs)):
        own = bound.select([n])
        seen, label = seen_image(policy, inputs[n : n + 1], own), labels[n : n + 1]
        start = own.uniform("start", inputs.shape[1:]).double()
        target = gradient(model, seen, label)
        curve = []
        for j in range(intervals + 1):
            here = gradient(model, j / intervals * seen + (1 - j / intervals) * start, label)
            if variant == "paper":
                curve.append(float(F.cosine_similarity(torch.cat(here), torch.cat(target), dim=0)))
            else:
                each = [float(F.cosine_similarity(a, b, dim=0)) for a, b in zip(here, target, strict=True)]
                curve.append(sum(each) / len(each))
        if variant == "paper":
            values.append(sum(curve[:-1]) / intervals)
        else:
            values.append((sum(curve) - (curve[0] + curve[-1]) / 2) / intervals)
    return values


def slow_accuracy(
    policy: str, model: nn.Module, inputs: Tensor, labels: Tensor, streams: Streams, *, variant: str, rounds: int
) -> list[float]:
    bound, values, size = streams.bind(len(inputs)), [], len(inputs) // rounds
    standardize = find_normalization(model)
    for r in range(rounds):
        rows: list[npt.NDArray[np.float64]] = []
        classes: list[int] = []
        for n in range(r * size, (r + 1) * size):
            if variant == "reference" and int(labels[n]) in classes:
                continue
            classes.append(int(labels[n]))
            entering = standardize.standardize(
                seen_image(policy, inputs[n : n + 1], bound.select([n]))
            ).requires_grad_()
            # The pixels that standardization turns into what enters: the network's own first step undone.
            output = model(standardize.pixels(entering))
            rows.append(torch.autograd.grad(output.sum(), entering)[0].flatten().numpy())
        eigenvalues = np.linalg.eigvals(np.corrcoef(np.stack(rows))).real
        terms = np.log(eigenvalues + 1e-5) + 1 / (eigenvalues + 1e-5)
        values.append(float(-terms.sum() if variant == "reference" else -terms.mean()))
    return values
