"""How much memory a computation takes, and how much a device has."""

import ctypes
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4  # of glibc's malloc.h


def peak(run: Callable[[], object], device: torch.device) -> int:
    """Return the bytes that a computation takes at most beyond what was there before."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        run()
        return int(torch.cuda.max_memory_allocated(device) - before)
    counted = _LiveBytes()
    with counted:
        run()
    return counted.peak


def free(device: torch.device) -> int:
    """Return the bytes that a device has left; raise OSError where that cannot be known."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
        return int(torch.cuda.mem_get_info(device)[0])
    trim = _of_glibc("malloc_trim")
    if trim is not None:
        trim(0)  # what the process keeps for later is free, too
    return min(_field(Path("/proc/meminfo"), "MemAvailable:") * 1024, _left_to_container())


def keep_freed_memory() -> bool:
    """Let this process keep the memory that tensors on the CPU leave, for the next ones; return whether it does.

    The C library gives large blocks back at once, and an iteration later the system fills the same pages with zeros
    again. This concerns the whole process: it is for a program to ask for, not for a library.
    """
    mallopt = _of_glibc("mallopt")
    return mallopt is not None and bool(mallopt(_M_MMAP_MAX, 0) and mallopt(_M_TRIM_THRESHOLD, -1))


def _of_glibc(name: str) -> Callable[..., int] | None:
    return getattr(ctypes.CDLL(None), name, None) if sys.platform == "linux" else None


class _LiveBytes(TorchDispatchMode):
    """Counts the bytes of the tensors that are made inside and still alive.

    The memory of the process does not tell: what the allocator keeps for later hides what a computation needs.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._sizes: dict[int, int] = {}
        self._live = 0
        self.peak = 0

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run an operation, and count what it made but not what it was given."""
        for leaf in tree_leaves((args, kwargs)):
            self._note(leaf, new=False)
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            self._note(leaf, new=True)
        return result

    def _note(self, leaf: object, *, new: bool) -> None:
        if not isinstance(leaf, Tensor):
            return
        storage = leaf.untyped_storage()
        key = storage._cdata
        if key not in self._sizes:
            self._sizes[key] = storage.nbytes() if new else 0
            self._live += self._sizes[key]
            self.peak = max(self.peak, self._live)
            weakref.finalize(storage, self._forget, key).atexit = False

    def _forget(self, key: int) -> None:
        self._live -= self._sizes.pop(key)


def _left_to_container() -> int:
    """Return what the limit of a container leaves; more than any machine has where there is none."""
    folder = Path("/sys/fs/cgroup")
    try:
        return int((folder / "memory.max").read_text()) - _field(folder / "memory.stat", "anon")
    except (OSError, ValueError):
        return sys.maxsize


def _field(path: Path, name: str) -> int:
    line = next(line for line in path.read_text().splitlines() if line.startswith(f"{name} "))
    return int(line.split()[1])
