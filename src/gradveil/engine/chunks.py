"""Cutting a stack of victims into chunks that fit the memory of the device."""

import gc
import logging
from collections.abc import Callable
from typing import TypeVar

import torch

from gradveil.engine._memory import free, peak
from gradveil.engine.runtime import Runtime, is_out_of_memory

T = TypeVar("T")
_log = logging.getLogger(__name__)
_RESERVE = 0.85  # of the free memory is planned with
_RESERVE_OF_CPU = 0.5  # whose kernels take memory that is not counted, and which has no second try
_PROBE_VICTIMS = 4
_PROBE_STEPS = 2


def in_chunks(
    run: Callable[[slice, Runtime], T], victims: int, *, device: torch.device, runtime: Runtime
) -> tuple[list[T], int]:
    """Run a computation over all victims, as many at once as fit.

    Args:
        run: computes a slice of the victims.
        victims: V.
        device: whose memory counts.
        runtime: a given `chunk` is taken, otherwise a small stack is measured first.

    Returns:
        The parts in order, and the number of victims attacked at once.
    """
    size = min(victims, runtime.chunk or _measure(run, victims, device, runtime))
    while True:
        try:
            return _run_all(run, victims, size, runtime), size
        except (RuntimeError, MemoryError) as error:
            if size == 1 or not is_out_of_memory(error):
                raise
        # Outside the handler, so that the tensors of the failed try are free before the next one.
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()
        _log.warning("%d victims at once do not fit the memory of %s; beginning again with half", size, device)
        size = (size + 1) // 2


def _run_all(run: Callable[[slice, Runtime], T], victims: int, size: int, runtime: Runtime) -> list[T]:
    starts = range(0, victims, size)
    return [run(slice(start, start + size), runtime.named(f"{start}-{start + size}")) for start in starts]


def _measure(run: Callable[[slice, Runtime], T], victims: int, device: torch.device, runtime: Runtime) -> int:
    """Return how many victims fit, from the peak memory of a few; on a CPU only if one shows that these fit."""
    if victims <= _PROBE_VICTIMS:
        return victims
    fit = victims
    for count in (1, _PROBE_VICTIMS) if device.type == "cpu" else (_PROBE_VICTIMS,):
        fit = _fitting(run, count, device, runtime) or victims
        if fit < _PROBE_VICTIMS:
            break
    return fit


def _fitting(run: Callable[[slice, Runtime], T], count: int, device: torch.device, runtime: Runtime) -> int | None:
    """Return how many victims fit by the peak memory of some; None where it is not known how much there is."""
    try:
        taken = peak(lambda: run(slice(0, count), runtime.probing(_PROBE_STEPS)), device)
        planned = free(device) * (_RESERVE if device.type == "cuda" else _RESERVE_OF_CPU)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        return max(1, count // 2)
    except OSError:
        return None
    return max(1, int(planned * count / max(taken, 1)))
