"""Several starts per victim, run as further victims of the stack."""

from dataclasses import fields, replace

import torch
from torch import Tensor

from gradveil.types import Reconstruction


def keep_best(guess: Reconstruction, restarts: int) -> Reconstruction:
    """Keep each victim's restart of the smallest objective; (V * restarts, ...) to (V, ...)."""
    if restarts == 1:
        return guess
    finite = torch.nan_to_num(guess.objective, nan=torch.inf).view(-1, restarts)
    rows = finite.argmin(1) + torch.arange(len(finite), device=finite.device) * restarts
    kept = {f.name: getattr(guess, f.name) for f in fields(guess)}
    return replace(guess, **{name: value[rows] for name, value in kept.items() if isinstance(value, Tensor)})  # type: ignore[arg-type]
