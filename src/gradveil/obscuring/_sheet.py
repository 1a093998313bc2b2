"""A sheet to look at: private images beside obscured ones."""

import torch
import torch.nn.functional as F
from torch import Tensor


def sheet(private: Tensor, obscured: Tensor, *, columns: int = 8, gap: int = 2) -> Tensor:
    """Lay out pairs, private left and obscured right, on white.

    Args:
        private: (N, C, H, W) in [0, 1].
        obscured: (N, C, H, W) in [0, 1].
        columns: pairs in a row.
        gap: white pixels below and right of every pair.

    Returns:
        (C, height, width) in [0, 1].

    Example:
        >>> sheet(torch.zeros(3, 1, 4, 4), torch.ones(3, 1, 4, 4), columns=2, gap=1).shape
        torch.Size([1, 10, 18])
    """
    if private.shape != obscured.shape:
        shapes = f"{tuple(private.shape)} and {tuple(obscured.shape)}"
        raise ValueError(f"every private image needs its obscured one, got {shapes}")
    pairs = F.pad(torch.cat([private, obscured], 3), (0, gap, 0, gap), value=1.0)
    columns = min(columns, len(pairs))
    missing = -len(pairs) % columns
    pairs = torch.cat([pairs, pairs.new_ones(missing, *pairs.shape[1:])])
    rows: Tensor = pairs.unflatten(0, (-1, columns))
    return rows.permute(2, 0, 3, 1, 4).flatten(3).flatten(1, 2)
