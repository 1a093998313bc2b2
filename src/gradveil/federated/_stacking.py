"""How many clients of a federation train in one stack."""

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from gradveil.data import Split
from gradveil.defenses import Defense, StepDefense
from gradveil.engine import Runtime
from gradveil.engine._memory import free, peak

_SMALL = 1_000_000
_AT_ONCE = {"cpu": 10, "cuda": 64}
_SHARE = 0.5  # of the free memory is planned with
_PASSES = 3  # what a step takes, in units of what its forward pass leaves for the backward pass
_COPIES = 5  # of the weights: as they were and are, gradient, momentum, update
_COPIES_OF_A_SAMPLE = 6  # of the weights: what a defense of the step may hold for each sample


def usual_runtime(
    model: nn.Module, clients: Sequence[Split], *, batch_size: int | None, defenses: Sequence[Defense] = ()
) -> Runtime:
    """Let as many clients train at once as fit by what one image takes.

    For a large network on a GPU nothing is said, so that memory is measured in every round, and what does not fit is
    tried again in halves; a CPU gives no second try.

    Args:
        model: in the place and the number format in which it trains.
        clients: their samples.
        batch_size: of a local step; None for all samples of a client.
        defenses: of the clients.
    """
    like = next(model.parameters(), torch.zeros(()))
    most, numbers = _AT_ONCE.get(like.device.type), sum(tensor.numel() for tensor in model.parameters())
    if most is None or not numbers or (numbers >= _SMALL and like.device.type != "cpu"):
        return Runtime(precision="float32")
    held = max(map(len, clients))
    samples = min(batch_size or held, held)
    of_samples = _COPIES_OF_A_SAMPLE * samples if any(isinstance(one, StepDefense) for one in defenses) else 0
    weights = sum(tensor.numel() * tensor.element_size() for tensor in model.parameters())
    taken = _PASSES * _of_an_image(model, clients[0], like) * samples + (_COPIES + of_samples) * weights
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
