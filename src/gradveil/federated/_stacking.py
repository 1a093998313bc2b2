"""How many clients of a federation train in one stack."""

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from gradveil.data import Split
from gradveil.engine import Runtime
from gradveil.engine._memory import free, peak

_SMALL = 1_000_000
_AT_ONCE = {"cpu": 10, "cuda": 64}
_SHARE = 0.5  # of the free memory is planned with
_PASSES = 3  # what a step takes, in units of what its forward pass leaves for the backward pass
_COPIES = 5  # of the weights: as they were and are, gradient, momentum, update


def usual_runtime(model: nn.Module, clients: Sequence[Split], *, batch_size: int | None) -> Runtime:
    """Let as many clients of a small network train at once as fit by what one image takes.

    For a large one nothing is said, so that memory is measured; doing so in every round takes longer.

    Args:
        model: in the place and the number format in which it trains.
        clients: their samples.
        batch_size: of a local step; None for all samples of a client.
    """
    like = next(model.parameters(), torch.zeros(()))
    most = _AT_ONCE.get(like.device.type)
    if most is None or not 0 < sum(tensor.numel() for tensor in model.parameters()) < _SMALL:
        return Runtime(precision="float32")
    held = max(map(len, clients))
    weights = sum(tensor.numel() * tensor.element_size() for tensor in model.parameters())
    images = _of_an_image(model, clients[0], like) * min(batch_size or held, held)
    taken = _PASSES * images + _COPIES * weights
    return Runtime(precision="float32", chunk=min(most, max(1, _planned(like.device) // taken)))


def _of_an_image(model: nn.Module, split: Split, like: Tensor) -> int:
    """Return the bytes that one image leaves behind for a backward pass; 0 for an image that the model refuses."""
    judge, image = copy.deepcopy(model).eval(), split.select([0]).inputs(dtype=like.dtype).to(like.device)

    def forward() -> None:
        with torch.enable_grad():
            judge(image)

    try:
        return peak(forward, like.device)
    except RuntimeError:
        return 0  # its own training says better what is wrong


def _planned(device: torch.device) -> int:
    try:
        return int(_SHARE * free(device))
    except OSError:
        return 2**63
