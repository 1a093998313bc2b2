import contextlib
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from gradveil.engine import Precision, Runtime
from gradveil.engine.capture import capture
from gradveil.errors import UnsupportedModelError


def switches() -> tuple[object, ...]:
    return (
        torch.backends.cuda.matmul.fp32_precision,
        torch.backends.cudnn.conv.fp32_precision,  # type: ignore[attr-defined]
        torch.backends.cudnn.benchmark,
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.backends.cuda.flash_sdp_enabled(),
    )


@pytest.fixture
def _restored_switches() -> Iterator[None]:
    before = switches()
    yield
    torch.backends.cuda.matmul.fp32_precision = str(before[0])
    torch.backends.cudnn.conv.fp32_precision = before[1]  # type: ignore[attr-defined]
    torch.use_deterministic_algorithms(bool(before[3]), warn_only=bool(before[4]))


@pytest.mark.parametrize("deterministic", [True, False])
@pytest.mark.parametrize(("precision", "units"), [("float32", "ieee"), ("tf32", "tf32"), ("bf16", "tf32")])
def test_sets_the_numerics_and_restores_them(precision: Precision, units: str, deterministic: bool) -> None:
    before = switches()
    with Runtime(precision=precision, deterministic=deterministic).numerics():
        assert switches() == (units, units, not deterministic, deterministic, False, False)
    assert switches() == before
    with pytest.raises(KeyError), Runtime(precision=precision, deterministic=deterministic).numerics():
        raise KeyError
    assert switches() == before


def test_parts_of_a_deterministic_computation_are_deterministic() -> None:
    with Runtime(deterministic=True).numerics(), Runtime(precision="float32").numerics():
        assert torch.are_deterministic_algorithms_enabled()
        assert not torch.backends.cudnn.benchmark
    assert not torch.are_deterministic_algorithms_enabled()


@pytest.mark.usefixtures("_restored_switches")
def test_restores_what_a_program_had_chosen_with_the_newer_switches() -> None:
    torch.backends.cuda.matmul.fp32_precision = "ieee"
    torch.backends.cudnn.conv.fp32_precision = "tf32"  # type: ignore[attr-defined]
    torch.use_deterministic_algorithms(True, warn_only=True)
    before = switches()
    with Runtime().numerics():
        pass
    assert switches() == before
    assert before[:2] == ("ieee", "tf32")
    assert before[3:5] == (True, True)


def test_lends_threads_and_takes_them_back() -> None:
    before = torch.get_num_threads()
    with Runtime(threads=before + 1).numerics():
        assert torch.get_num_threads() == before + 1
    assert torch.get_num_threads() == before


def test_refuses_a_chunk_of_nobody() -> None:
    with pytest.raises(ValueError, match="chunk must be at least 1, got 0"):
        Runtime(chunk=0)


def test_names_parts_below_the_whole() -> None:
    assert Runtime(name="cell").named("0-4").name == "cell/0-4"


class Graph:
    """A stand-in for a CUDA graph, which a CPU cannot record: it calls again what was called inside."""

    recorded: Callable[[], Tensor]

    def replay(self) -> None:
        self.recorded()


@pytest.fixture
def _pretended_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    class Stream:
        def wait_stream(self, other: object) -> None:
            pass

    stream = Stream()
    replacements: dict[str, Any] = {
        "Stream": lambda: stream,
        "current_stream": lambda: stream,
        "stream": lambda _: contextlib.nullcontext(),
        "graph": lambda _: contextlib.nullcontext(),
        "synchronize": lambda: None,
        "CUDAGraph": Graph,
    }
    for name, replacement in replacements.items():
        monkeypatch.setattr(torch.cuda, name, replacement)


@pytest.mark.usefixtures("_pretended_cuda")
def test_capture_leaves_the_state_as_it_was() -> None:
    state = {"value": torch.tensor([1.0, 2.0]), "count": torch.tensor(5)}
    result = torch.zeros(2)

    def step() -> Tensor:
        state["count"].add_(1)
        return result.copy_(state["value"].mul_(2))

    Graph.recorded = staticmethod(step)
    replay = capture(step, state)
    assert state["value"].tolist() == [1.0, 2.0]
    assert state["count"].item() == 5
    assert replay is not None
    assert replay() is result
    assert result.tolist() == [2.0, 4.0]
    assert state["count"].item() == 6


@pytest.mark.usefixtures("_pretended_cuda")
@pytest.mark.parametrize("error", [RuntimeError("stream is capturing"), UnsupportedModelError("module fc")])
def test_a_step_that_cannot_be_captured_runs_eagerly(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    state = {"value": torch.tensor([1.0])}

    def step() -> Tensor:
        state["value"].mul_(3)
        raise error

    with caplog.at_level(logging.INFO, logger="gradveil"):
        assert capture(step, state) is None
    assert state["value"].item() == 1.0
    assert str(error) in caplog.text
