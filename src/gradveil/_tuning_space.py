"""The settings among which tuning looks."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from types import MappingProxyType
from typing import Final, TypeAlias, TypeVar

from gradveil.attacks import Attack, GradientMatching, attacks
from gradveil.errors import GradVeilError, SpecError, unknown_name
from gradveil.streams import Streams

A = TypeVar("A", bound=Attack)
Space: TypeAlias = Sequence[Mapping[str, Sequence[object]]]
"""Grids of settings: each maps fields of the attack to their values, and stands for every combination of them."""

_SHARES = (0.25,)  # of the attack's steps; `default_space` puts their number in the place of the share
_JOINED = ("pixel-mean", "registered-mean")
_SMOOTHNESS = (1e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1)
_MATCHING: Space = (
    {"tv": _SMOOTHNESS},
    {"objective": ("row-cosine",), "tv": (1e-2, 3e-2, 1e-1)},
    {"tv": (1e-2, 3e-2), "start": ("zeros",)},
    {"tv": (1e-2,), "lr": (0.03,)},
    {"tv": (1e-2,), "weights": ("linear",)},
    {"objective": ("row-cosine",), "tv": (3e-2, 1e-1), "restarts": (4,), "choice": ("objective", *_JOINED)},
    {"objective": ("row-cosine",), "tv": (3e-2, 1e-1), "restarts": (4,), "choice": _JOINED, "polish": _SHARES},
)
_LBFGS: Space = (
    {"lr": (1.0, 0.5, 0.1), "start": ("normal", "uniform", "pattern", "zeros")},
    {"lr": (1.0, 0.5), "start": ("normal", "uniform"), "restarts": (4,)},
)
_SPACES: Final[Mapping[str, Space]] = MappingProxyType(
    {
        "inverting-gradients": _MATCHING,
        "gradient-matching": (
            *_MATCHING,
            {"tv": (1e-2,), "objective": ("layer-cosine",)},
            {"tv": (1e-2,), "decay": (False,), "lr": (0.03,)},
        ),
        "dlg": _LBFGS,
        "idlg": _LBFGS,
        "policy-aware": (
            {"tv": _SMOOTHNESS, "lr": (0.1, 0.03)},
            {"tv": (1e-3, 1e-2), "start": ("zeros", "smooth"), "fill": ("mean", "black")},
        ),
    }
)


def default_space(attack: Attack) -> Space:
    """Return the settings worth trying for an attack; none for one that has nothing to tune.

    Example:
        >>> from gradveil.attacks import DLG
        >>> sorted(default_space(DLG())[0])
        ['lr', 'start']
    """
    space, steps = _SPACES.get(attacks.name_of(attack), ()), steps_of(attack)
    polish = tuple(max(1, int(share * steps)) for share in _SHARES)
    return tuple({**grid, "polish": polish} if "polish" in grid else grid for grid in space)


def steps_of(attack: Attack) -> int:
    """Return how many steps an attack takes; 0 for one that takes none.

    Example:
        >>> from gradveil.attacks import GradientMatching
        >>> steps_of(GradientMatching())
        4800
    """
    return attack.plan().steps if isinstance(attack, GradientMatching) else int(getattr(attack, "steps", 0))


def settings_of(attack: A, space: Space, *, limit: int, streams: Streams) -> list[A]:
    """List the attack as it is, then up to `limit` others of a space, drawn at random if there are more.

    Example:
        >>> from gradveil.attacks import DLG
        >>> grid = {"lr": (1.0, 0.5), "start": ("normal", "zeros")}
        >>> len(settings_of(DLG(), [grid], limit=10, streams=Streams()))
        4
    """
    others = [_changed(attack, grid, values) for grid in space for values in itertools.product(*grid.values())]
    distinct = [other for other in dict.fromkeys(others) if other != attack]
    order = streams.fork("settings").bind(1).permutation("settings", len(distinct))[0].tolist() if distinct else []
    return [attack, *(distinct[place] for place in sorted(order[:limit]))]


def _changed(attack: A, grid: Mapping[str, Sequence[object]], values: tuple[object, ...]) -> A:
    known = [field.name for field in fields(attack)]  # type: ignore[arg-type]
    for name in grid:
        if name not in known:
            raise unknown_name(f"setting of {attacks.name_of(attack)}", name, known)
    try:
        return replace(attack, **dict(zip(grid, values, strict=True)))  # type: ignore[type-var]
    except GradVeilError:
        raise
    except (ValueError, TypeError) as error:
        raise SpecError(f"the space of {attacks.name_of(attack)}: {error}") from error
