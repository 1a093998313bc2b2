"""Where a command runs."""

import torch

from gradveil.errors import SpecError


def chosen_device(name: str | None) -> torch.device:
    """Return the device of a name, checked; None takes a GPU if there is one."""
    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        device = torch.device("meta")
    if device.type not in {"cpu", "cuda"}:
        raise SpecError(f"device must be cpu, cuda or cuda:N, got '{name}'")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        found = torch.cuda.device_count() or "no"
        raise SpecError(f"device {name} was asked for, but torch finds {found} GPU here; use --device cpu")
    return device
