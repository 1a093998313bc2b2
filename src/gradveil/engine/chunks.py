"""Cutting a stack of victims into chunks that fit the memory of the device."""

import contextlib
import gc
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import torch

from gradveil.engine.runtime import Runtime

T = TypeVar("T")
_RESERVE = 0.85  # of the free memory is planned with
_PROBE_STEPS = 2


def in_chunks(
    run: Callable[[slice, Runtime], T], victims: int, *, device: torch.device, runtime: Runtime
) -> tuple[list[T], int]:
    """Run a computation over all victims, as many at once as fit.

    Args:
        run: computes a slice of the victims.
        victims: V.
        device: whose memory counts.
        runtime: a given `chunk` is taken, otherwise two small stacks are measured first.

    Returns:
        The parts in order, and the number of victims attacked at once.
    """
    size = min(victims, runtime.chunk or _measure(run, victims, device, runtime))
    while True:
        try:
            return _run_all(run, victims, size, runtime), size
        except (torch.cuda.OutOfMemoryError, MemoryError):
            if size == 1:
                raise
        # Outside the handler, so that the tensors of the failed try are free before the next one.
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()
        size = (size + 1) // 2


def _run_all(run: Callable[[slice, Runtime], T], victims: int, size: int, runtime: Runtime) -> list[T]:
    starts = range(0, victims, size)
    return [run(slice(start, start + size), runtime.named(f"{start}-{start + size}")) for start in starts]


def _measure(run: Callable[[slice, Runtime], T], victims: int, device: torch.device, runtime: Runtime) -> int:
    """Return how many victims fit, from the peak memory of one and of two."""
    if victims <= 2:
        return victims
    with contextlib.suppress(OSError):
        peaks = [_peak(run, count, device, runtime) for count in (1, 2)]
        per_victim = max(peaks[1] - peaks[0], 1)
        return max(1, int((_free(device) * _RESERVE - peaks[0]) // per_victim) + 1)
    return victims


def _peak(run: Callable[[slice, Runtime], T], count: int, device: torch.device, runtime: Runtime) -> int:
    """Return the bytes that a short run of some victims takes at most."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        run(slice(0, count), runtime.probing(_PROBE_STEPS))
        return torch.cuda.max_memory_allocated(device) - before
    Path("/proc/self/clear_refs").write_text("5")
    before = _status("VmRSS")
    run(slice(0, count), runtime.probing(_PROBE_STEPS))
    return max(_status("VmHWM") - before, 0)


def _free(device: torch.device) -> int:
    if device.type == "cuda":
        torch.cuda.empty_cache()
        return torch.cuda.mem_get_info(device)[0]
    return _field(Path("/proc/meminfo"), "MemAvailable")


def _status(name: str) -> int:
    return _field(Path("/proc/self/status"), name)


def _field(path: Path, name: str) -> int:
    line = next(line for line in path.read_text().splitlines() if line.startswith(name + ":"))
    return int(line.split()[1]) * 1024
