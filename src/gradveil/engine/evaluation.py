"""What one evaluation of many victims gives."""

from dataclasses import dataclass

from torch import Tensor

from gradveil.errors import UnsupportedModelError
from gradveil.types import Gradients, State


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Gradients of V victims and what came with them.

    Args:
        gradients: one (V, *shape) tensor per parameter.
        losses: (V,).
        outputs: (V, B, K).
        buffers: (V, *shape) running statistics after the step, in train mode.
    """

    gradients: Gradients
    losses: Tensor
    outputs: Tensor
    buffers: State


def one_loss(loss: Tensor) -> Tensor:
    """Return what the loss of one client gave, or refuse it in one sentence if it is not one number."""
    if isinstance(loss, Tensor) and loss.numel() == 1:
        return loss.reshape(())
    came = f"shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
    raise UnsupportedModelError(
        f"the loss must return a tensor of one number, got {came}; let it take the mean over the samples"
    )
