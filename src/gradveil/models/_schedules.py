"""How the learning rate moves during training, as a factor of its highest value; a row of the table is a name."""

import math
from collections.abc import Callable, Mapping
from typing import Final, Literal, TypeAlias

Schedule: TypeAlias = Literal["one-cycle", "steps", "cosine", "constant"]

DROPS: Final = (3 / 8, 5 / 8, 7 / 8)
"""Parts of the training after which `steps` divides by ten."""

_RISE = 0.3  # part of the training in which one-cycle rises
_FIRST = 1 / 25
_LAST = _FIRST / 1e4


def factor(schedule: Schedule, step: int, *, total: int) -> float:
    """Return what to multiply the learning rate by, at step 0 .. total - 1.

    Args:
        schedule: `one-cycle` rises from 1/25 to 1 over three tenths of the steps and falls to 4e-6, both along a
            cosine; `steps` divides by ten after 3/8, 5/8 and 7/8 of the steps; `cosine` falls from 1 to 0.
        step: of the optimizer.
        total: steps of the whole training.

    Example:
        >>> [round(factor("steps", step, total=8), 3) for step in range(8)]
        [1.0, 1.0, 1.0, 0.1, 0.1, 0.01, 0.01, 0.001]
    """
    return _RULES[schedule](step, total)


def _one_cycle(step: int, total: int) -> float:
    peak = _RISE * total - 1
    if step <= peak:
        return _along_cosine(_FIRST, 1.0, step / peak)
    return _along_cosine(1.0, _LAST, (step - peak) / (total - 1 - peak))


def _steps(step: int, total: int) -> float:
    return float(0.1 ** sum(step >= int(part * total) for part in DROPS))


def _cosine(step: int, total: int) -> float:
    return _along_cosine(1.0, 0.0, step / total)


def _constant(_step: int, _total: int) -> float:
    return 1.0


def _along_cosine(start: float, end: float, part: float) -> float:
    return end + (start - end) * (1 + math.cos(math.pi * part)) / 2


_RULES: Final[Mapping[Schedule, Callable[[int, int], float]]] = {
    "one-cycle": _one_cycle,
    "steps": _steps,
    "cosine": _cosine,
    "constant": _constant,
}
