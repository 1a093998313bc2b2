"""Labels from the gradient of the last layer."""

from torch import Tensor

from gradveil.errors import KnowledgeError
from gradveil.types import Observation


def last_weight(observation: Observation) -> Tensor:
    """Return the (V, K, features) update of the last matrix with one row per class."""
    for tensor in reversed(observation.update):
        if tensor.ndim == 3 and tensor.shape[1] == observation.num_classes:
            return tensor
    raise KnowledgeError(
        f"labels cannot be read from an update without a last layer of {observation.num_classes} rows; grant labels"
    )


def idlg(observation: Observation) -> Tensor:
    """Return (V, 1), the class whose row of the last weight gradient has the smallest sum.

    With cross-entropy and features that are not negative only the true class has a negative row (Zhao et al. 2020,
    Sec. 3.2); it holds for a batch of one.
    """
    return last_weight(observation).sum(2).argmin(1, keepdim=True)
