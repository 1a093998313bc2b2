import subprocess
import sys
import weakref

import pytest
import torch
from torch import Tensor

from gradveil.engine import Runtime, chunks, in_chunks
from gradveil.engine._memory import free, peak

CPU = torch.device("cpu")


class Worker:
    """Returns the victims it was given, and remembers how it was called."""

    def __init__(self, victims: int, *, fits: int = 10**9, error: Exception | None = None) -> None:
        self.all, self.fits = torch.arange(victims), fits
        self.error = error or torch.cuda.OutOfMemoryError("CUDA out of memory")
        self.sizes: list[int] = []
        self.names: list[str] = []
        self.probes: list[int] = []

    def __call__(self, victims: slice, runtime: Runtime) -> Tensor:
        own = self.all[victims]
        if runtime.probe is not None:
            self.probes.append(len(own))
            return own
        self.sizes.append(len(own))
        self.names.append(runtime.name)
        if len(own) > self.fits:
            raise self.error
        return own


@pytest.mark.parametrize(("chunk", "sizes"), [(1, [1] * 7), (3, [3, 3, 1]), (7, [7]), (100, [7])])
def test_takes_the_chunk_that_was_set(chunk: int, sizes: list[int]) -> None:
    worker = Worker(7)
    parts, size = in_chunks(worker, 7, device=CPU, runtime=Runtime(chunk=chunk))
    assert worker.sizes == sizes
    assert not worker.probes
    assert size == min(chunk, 7)
    assert torch.equal(torch.cat(parts), torch.arange(7))
    assert len(set(worker.names)) == len(sizes)
    assert all(name.startswith("attack/") for name in worker.names)


@pytest.mark.parametrize(
    "error",
    [
        torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        MemoryError(),
        RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory: you tried ..."),
    ],
    ids=["CUDA", "Python", "torch on a CPU"],
)
def test_halves_the_chunk_until_it_fits_and_says_so(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    worker = Worker(20, fits=3, error=error)
    parts, size = in_chunks(worker, 20, device=CPU, runtime=Runtime(chunk=7))
    assert size == 2
    assert worker.sizes[:3] == [7, 4, 2]
    assert torch.equal(torch.cat(parts), torch.arange(20))
    assert [entry.getMessage()[:9] for entry in caplog.records] == ["7 victims", "4 victims"]


def test_a_chunk_that_fails_late_is_halved_too() -> None:
    class Late(Worker):
        def __call__(self, victims: slice, runtime: Runtime) -> Tensor:
            self.fits = 10 if victims.start == 0 else 3
            return super().__call__(victims, runtime)

    parts, size = in_chunks(Late(20), 20, device=CPU, runtime=Runtime(chunk=10))
    assert size == 3
    assert torch.equal(torch.cat(parts), torch.arange(20))


def test_gives_up_when_one_victim_does_not_fit() -> None:
    worker = Worker(4, fits=0)
    with pytest.raises(torch.cuda.OutOfMemoryError):
        in_chunks(worker, 4, device=CPU, runtime=Runtime(chunk=4))
    assert worker.sizes == [4, 2, 1]


def test_lets_other_errors_pass_at_once() -> None:
    for error in (RuntimeError("shapes do not match"), ValueError("no")):
        worker = Worker(4, fits=0, error=error)
        with pytest.raises(type(error), match=str(error)):
            in_chunks(worker, 4, device=CPU, runtime=Runtime(chunk=4))
        assert worker.sizes == [4]


def test_frees_the_failed_try_before_the_next() -> None:
    held: list[weakref.ref[Tensor]] = []

    def hungry(victims: slice, runtime: Runtime) -> int:
        assert all(reference() is None for reference in held)
        tensor = torch.zeros(8)
        held.append(weakref.ref(tensor))
        if victims.stop - victims.start > 1:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")
        return 1

    assert in_chunks(hungry, 2, device=CPU, runtime=Runtime(chunk=2))[0] == [1, 1]


def test_measures_how_many_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "free", lambda device: 100 * 2**20)

    def half_a_megabyte_each(victims: slice, runtime: Runtime) -> int:
        count = min(victims.stop, 120) - victims.start
        return torch.zeros(count, 2**17).add(1).shape[0]  # two tensors of 0.5 MB per victim, in float32

    parts, size = in_chunks(half_a_megabyte_each, 120, device=CPU, runtime=Runtime())
    assert 40 <= size <= 50
    assert sum(parts) == 120


@pytest.mark.parametrize(("room", "probes", "size"), [(2, [1], 1), (7, [1], 3), (8, [1, 4], 4), (40, [1, 4], 20)])
def test_a_few_are_tried_only_where_one_shows_that_they_fit(
    room: int, probes: list[int], size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunks, "free", lambda device: room * 2**20)

    class OfAMegabyte(Worker):
        def __call__(self, victims: slice, runtime: Runtime) -> Tensor:
            own = super().__call__(victims, runtime)
            return torch.zeros(len(own), 2**18)

    worker = OfAMegabyte(30)
    assert in_chunks(worker, 30, device=CPU, runtime=Runtime())[1] == size
    assert worker.probes == probes


def test_a_small_stack_is_not_measured() -> None:
    worker = Worker(4)
    assert in_chunks(worker, 4, device=CPU, runtime=Runtime())[1] == 4
    assert not worker.probes


def test_a_probe_saves_and_reports_nothing() -> None:
    seen: list[Runtime] = []
    reports: list[tuple[str, int, int]] = []
    runtime = Runtime(progress=lambda *report: reports.append(report), name="cell")
    in_chunks(lambda _, runtime: seen.append(runtime), 50, device=CPU, runtime=runtime)
    probe = seen[0]
    probe.progress("cell", 1, 2)
    assert probe.probe is not None
    assert probe.store is None
    assert not probe.capture
    assert not reports


def test_a_probe_that_does_not_fit_leads_to_small_chunks() -> None:
    class Large(Worker):
        def __call__(self, victims: slice, runtime: Runtime) -> Tensor:
            if runtime.probe is not None:
                raise self.error
            return super().__call__(victims, runtime)

    worker = Large(10, fits=1)
    _, size = in_chunks(worker, 10, device=CPU, runtime=Runtime())
    assert size == 1
    assert worker.sizes[0] <= 2


def test_counts_what_is_alive_at_the_same_time() -> None:
    kept = torch.zeros(10, 2**18)

    def work() -> None:
        for _ in range(5):
            first = kept[0].exp()  # a view takes nothing, this 1 MB
            second = first.sin()
            del first
            second.cos()
            del second

    assert peak(work, CPU) == 2 * 2**20
    assert peak(lambda: kept[3].view(2, -1), CPU) == 0


def test_counts_what_a_graph_keeps() -> None:
    leaf = torch.zeros(2**18, requires_grad=True)

    def work() -> None:
        value = leaf
        for _ in range(4):
            value = value.exp()
        value.sum().backward()

    assert 4 * 2**20 <= peak(work, CPU) <= 7 * 2**20


def test_knows_how_much_memory_is_left() -> None:
    assert 2**20 < free(CPU) < 2**50


SCRIPT = """
import resource, torch
from pathlib import Path
from gradveil.engine import keep_freed_memory
from gradveil.engine._memory import free

def pages():
    return int(Path("/proc/self/statm").read_text().split()[1])

kept, before = {asked} and keep_freed_memory(), pages()
start = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    torch.ones(2**24)
faults, held = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - start, pages() - before
free(torch.device("cpu"))
print(int(kept), faults, held, pages() - before)
"""


def pages_of_ten_tensors(*, asked: bool) -> list[int]:
    """Return whether memory is kept, pages that were filled anew, pages held, and held after a look at what is free."""
    command = [sys.executable, "-c", SCRIPT.format(asked=asked)]
    said = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout
    return [int(number) for number in said.split()]


@pytest.mark.skipif(sys.platform != "linux", reason="the C library of Linux alone can be asked")
def test_a_program_can_keep_the_memory_that_tensors_leave() -> None:
    one = 2**24 * 4 // 4096
    _, faults, held, _ = pages_of_ten_tensors(asked=False)
    assert faults > 9 * one
    assert held < one / 2
    kept, faults, held, afterwards = pages_of_ten_tensors(asked=True)
    if not kept:
        pytest.skip("the C library is not glibc")
    assert faults < 3 * one
    assert held > one / 2
    assert afterwards < one / 2  # what is kept counts as free
