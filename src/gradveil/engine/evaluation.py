"""What one evaluation of many victims gives."""

from dataclasses import dataclass

from torch import Tensor

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
