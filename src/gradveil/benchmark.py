"""How fast an attack's step is, beside one victim at a time."""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gradveil._peer import breaching_milliseconds
from gradveil.attacks import InvertingGradients
from gradveil.client import Client, step
from gradveil.engine import Precision, Runtime
from gradveil.models import architectures
from gradveil.record import about_this_run
from gradveil.spec import build
from gradveil.streams import Streams
from gradveil.types import Batch, Knowledge, Observation


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """The cost of one iteration.

    Args:
        what: `plain loop`, `gradveil` or `breaching`.
        victims: attacked at once.
        milliseconds: per victim and iteration.
        ratio: how many times faster than the plain loop of the same run.
        peak_mib: memory taken on a GPU, None elsewhere.
        captured: whether the step ran as a CUDA graph.
    """

    what: str
    victims: int
    milliseconds: float
    ratio: float
    peak_mib: float | None = None
    captured: bool = False


def bench_attack(
    model: str,
    *,
    victims: Sequence[int],
    iterations: int = 50,
    input_shape: tuple[int, int, int] = (3, 32, 32),
    num_classes: int = 100,
    precision: Precision = "tf32",
    device: torch.device | None = None,
) -> list[Timing]:
    """Time gradient matching (cosine, total variation, signed Adam) on random images.

    Args:
        model: spec string.
        victims: stack sizes to time.
        iterations: per measurement; a tenth more are run before, to warm up.
        input_shape: (C, H, W).
        num_classes: K.
        precision: of both programs.
        device: None takes a GPU if there is one.
    """
    place = device or torch.device("cuda" if torch.cuda.is_available() else "cpu")
    network = build(architectures, model).build(input_shape=input_shape, num_classes=num_classes).to(place).eval()
    seen = _observe(network, max(victims), input_shape, num_classes, place)
    with Runtime(precision=precision).numerics():
        plain = _plain_loop(seen, max(3, iterations // 5))
    rows = [Timing(what="plain loop, one at a time", victims=1, milliseconds=plain, ratio=1.0)]
    rows += [_ours(seen.select(slice(0, count)), iterations, precision, plain) for count in victims]
    peer = breaching_milliseconds(seen.select(slice(0, 1)), iterations=max(10, iterations // 2))
    if peer is not None:
        rows.append(Timing(what="breaching", victims=1, milliseconds=peer, ratio=plain / peer))
    return rows


def to_json(rows: Sequence[Timing], *, settings: dict[str, Any], device: torch.device) -> dict[str, Any]:
    """Write timings down with where and when they were taken."""
    about = asdict(about_this_run(seconds={}, chunk=0, device=device))
    return {"settings": settings, "about": about, "timings": [asdict(row) for row in rows]}


def _observe(
    model: nn.Module, victims: int, shape: tuple[int, int, int], classes: int, device: torch.device
) -> Observation:
    streams = Streams(seed=0, purpose="bench").bind(victims)
    inputs = streams.uniform("inputs", (1, *shape)).to(device)
    labels = streams.integers("labels", classes, (1,), device=device)
    client = Client(model=model, loss=F.cross_entropy)
    return step(Batch(inputs, labels), client, streams=streams, knowledge=Knowledge.LABELS).observation


def _ours(observation: Observation, iterations: int, precision: Precision, plain: float) -> Timing:
    cuda = observation.device.type == "cuda"

    def run(steps: int) -> bool:
        runtime = Runtime(precision=precision, chunk=observation.victims)
        return InvertingGradients(steps=steps)(observation, streams=Streams(seed=0), runtime=runtime).captured

    run(5)
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    short, long = max(5, iterations // 10), max(5, iterations // 10) + iterations
    before = _timed(lambda: run(short), cuda=cuda)
    captured: list[bool] = []
    after = _timed(lambda: captured.append(run(long)), cuda=cuda)
    each = 1000 * max(after - before, 1e-9) / iterations / observation.victims
    peak = torch.cuda.max_memory_allocated() / 2**20 if cuda else None
    return Timing(
        what="gradveil", victims=observation.victims, milliseconds=each, ratio=plain / each, peak_mib=peak,
        captured=captured[0],
    )  # fmt: skip


def _plain_loop(observation: Observation, iterations: int) -> float:
    """Return the milliseconds of an iteration for one image in a plain loop, as published programs have it."""
    parameters = list(observation.model.parameters())
    target, labels = [tensor[0] for tensor in observation.update], observation.labels
    assert labels is not None
    streams = Streams(seed=0, purpose="bench").bind(1)
    image = streams.normal("start", observation.input_shape, like=observation.update[0])[0].requires_grad_()
    optimizer = torch.optim.Adam([image], lr=0.1)

    def iterate(times: int) -> None:
        for _ in range(times):
            iterate_once()

    def iterate_once() -> None:
        optimizer.zero_grad()
        loss = F.cross_entropy(observation.model(image), labels[0])
        trial = torch.autograd.grad(loss, parameters, create_graph=True)
        distance = _cosine(trial, target) + 1e-4 * (image.diff(dim=2).abs().mean() + image.diff(dim=3).abs().mean())
        distance.backward()
        assert image.grad is not None
        image.grad.sign_()
        optimizer.step()

    iterate(3)
    cuda = observation.device.type == "cuda"
    seconds = _timed(lambda: iterate(iterations), cuda=cuda)
    return 1000 * seconds / iterations


def _cosine(trial: Sequence[Tensor], target: Sequence[Tensor]) -> Tensor:
    dot = torch.stack([(a * b).sum() for a, b in zip(trial, target, strict=True)]).sum()
    norms = [torch.stack([t.square().sum() for t in update]).sum().sqrt() for update in (trial, target)]
    return 1 - dot / (norms[0] * norms[1])


def _timed(run: Callable[[], object], *, cuda: bool) -> float:
    if cuda:
        torch.cuda.synchronize()
    began = time.perf_counter()
    run()
    if cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - began
