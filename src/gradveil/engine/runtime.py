"""How a computation runs: precision, progress, checkpoints. Never what it computes."""

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol, Self, TypeAlias

import torch
from torch import Tensor

Precision: TypeAlias = Literal["float32", "tf32", "bf16"]
Progress: TypeAlias = Callable[[str, int, int], None]
"""Called with a task's name, what is done and the total."""


class Store(Protocol):
    """Keeps the state of an unfinished computation; a later run with the same name continues from it."""

    def load(self, name: str) -> dict[str, Tensor] | None:
        """Return what was saved last under a name."""

    def save(self, name: str, state: dict[str, Tensor]) -> None:
        """Keep a state; never leaves a half-written one behind."""


def silent(task: str, done: int, total: int) -> None:
    """Report no progress."""


def is_out_of_memory(error: BaseException) -> bool:
    """Tell whether a device, or the CPU, had no memory left."""
    known = isinstance(error, (torch.cuda.OutOfMemoryError, MemoryError))
    return known or (isinstance(error, RuntimeError) and "can't allocate memory" in str(error))


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime:
    """How a computation runs.

    Args:
        precision: `float32`, `tf32` (float32 with tf32 matrix units on CUDA; the same as float32 elsewhere), `bf16`.
        capture: replay the step as a CUDA graph where it can be captured.
        deterministic: use deterministic kernels only, so that a GPU repeats its bits; parts of a deterministic
            computation are deterministic too, whatever their own runtime says.
        chunk: victims at once; None measures what fits.
        progress: callback.
        store: where to keep checkpoints, None for nowhere.
        save_every: seconds between checkpoints.
        trace: keep the objective of every step.
        name: of this computation in progress and checkpoints.
        threads: of the CPU; None leaves torch's choice, 1 is the fastest for small networks on a busy machine.
        probe: stop after so many steps without finishing, to measure memory.
    """

    precision: Precision = "tf32"
    capture: bool = True
    deterministic: bool = False
    chunk: int | None = None
    progress: Progress = silent
    store: Store | None = None
    save_every: float = 20.0
    trace: bool = False
    name: str = "attack"
    threads: int | None = None
    probe: int | None = None

    def __post_init__(self) -> None:
        if self.chunk is not None and self.chunk < 1:
            raise ValueError(f"chunk must be at least 1, got {self.chunk}")

    def named(self, name: str) -> Self:
        """Name a part of the computation."""
        return replace(self, name=f"{self.name}/{name}")

    def probing(self, steps: int) -> Self:
        """Run a few steps for their memory alone."""
        return replace(self, probe=steps, store=None, progress=silent, capture=False)

    @contextlib.contextmanager
    def numerics(self) -> Iterator[None]:
        """Set precision, deterministic kernels, differentiable attention and threads, and restore them."""
        # The older switches `allow_tf32` raise in a program that uses these.
        before = (
            torch.backends.cuda.matmul.fp32_precision,
            torch.backends.cudnn.conv.fp32_precision,  # type: ignore[attr-defined]
            torch.backends.cudnn.benchmark,
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
        )
        deterministic = self.deterministic or before[3]  # what is computed inside a deterministic run stays so
        if deterministic:
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # without it cuBLAS may not repeat its bits
        units = "ieee" if self.precision == "float32" else "tf32"
        _set_numerics(units, units, not deterministic, deterministic, before[4] and not self.deterministic)
        threads = torch.get_num_threads()
        torch.set_num_threads(self.threads or threads)
        try:
            with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
                yield
        finally:
            torch.set_num_threads(threads)
            _set_numerics(*before)


@dataclass(slots=True)
class Checkpoint:
    """The state of one computation in its runtime's store, if there is one, under the runtime's name."""

    runtime: Runtime
    _last: float = field(default_factory=time.monotonic)

    def load(self) -> dict[str, Tensor]:
        """Return what an interrupted run has left; empty for nothing."""
        return (self.runtime.store.load(self.runtime.name) if self.runtime.store else None) or {}

    def save(self, state: Callable[[], dict[str, Tensor]], *, finished: bool = False) -> None:
        """Keep the state, unless that was done less than `save_every` seconds ago and there is more to come."""
        if self.runtime.store and (finished or time.monotonic() - self._last > self.runtime.save_every):
            self.runtime.store.save(self.runtime.name, state())
            self._last = time.monotonic()


@contextlib.contextmanager
def exact_products() -> Iterator[None]:
    """Multiply matrices in full float32, also where a network may use tf32: curvature does not bear its rounding."""
    before = torch.backends.cuda.matmul.fp32_precision
    torch.backends.cuda.matmul.fp32_precision = "ieee"
    try:
        yield
    finally:
        torch.backends.cuda.matmul.fp32_precision = before


def _set_numerics(matmul: str, convolution: str, benchmark: bool, deterministic: bool, warn_only: bool) -> None:
    torch.backends.cuda.matmul.fp32_precision = matmul
    torch.backends.cudnn.conv.fp32_precision = convolution  # type: ignore[attr-defined]
    torch.backends.cudnn.benchmark = benchmark
    torch.use_deterministic_algorithms(deterministic, warn_only=warn_only)
