"""Replaying a step as a CUDA graph."""

import logging
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from gradveil.errors import GradVeilError

_log = logging.getLogger(__name__)
_WARM_UP = 3  # calls before capture, in which libraries choose their kernels


def capture(step: Callable[[], Tensor], state: Mapping[str, Tensor]) -> Callable[[], Tensor] | None:
    """Record a step once and return a function that replays it; None where the step cannot be captured.

    Args:
        step: changes the tensors of `state` in place, and allocates nothing that must outlive it but its result.
        state: everything the step changes; it is as before when this function returns.
    """
    before = {name: tensor.clone() for name, tensor in state.items()}
    try:
        replay = _record(step)
    except (RuntimeError, GradVeilError) as error:
        # If the step itself is at fault, it fails again and says so when it runs eagerly.
        _log.info("the step is not captured, it runs eagerly: %s", error)
        replay = None
    torch.cuda.synchronize()
    for name, tensor in state.items():
        tensor.copy_(before[name])
    return replay


def _record(step: Callable[[], Tensor]) -> Callable[[], Tensor]:
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(_WARM_UP):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = step()

    def replay() -> Tensor:
        graph.replay()
        return result

    return replay
