"""From distances and accuracies to curves, bands and CAPs."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from gradveil._regions import TENS, region
from gradveil._tradeoff_distances import MEASURES, Distances
from gradveil._tradeoff_record import Curve, MechanismResult, Strength
from gradveil._tradeoff_spec import Mechanism
from gradveil.metrics import cap, ppc_position, resample_curve

BOUNDS = (1.0, TENS)
"""Ratios ‖B‖ / ‖E‖ between which the white region lies; green is below, red beyond."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attacked:
    """What one attack made of one strength.

    Args:
        attack: as a curve names it.
        informed: whether it knows the defense and uses it.
        distances: by measure.
        nulls: distance by measure of who knows nothing.
        ratios: ‖B‖ / ‖E‖ of each victim.
        error: why there is none of this.
    """

    attack: str
    informed: bool
    distances: Distances
    nulls: Mapping[str, float]
    ratios: Sequence[float] = ()
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What one seed gave at one strength.

    Args:
        accuracy: of the protected network, None if it could not be trained.
        attacked: by each attack, in the order of the audit.
        error: why there is no accuracy.
    """

    accuracy: float | None
    attacked: Sequence[Attacked]
    error: str = ""


def mechanism_result(mechanism: Mechanism, seeds: Sequence[Mapping[str, Measured]]) -> MechanismResult:
    """Draw the curves of a mechanism.

    Args:
        mechanism: that was swept.
        seeds: what each gave, by spec string of the defenses; that of `none` is the plain one.
    """
    texts = mechanism.strengths()
    grid = [[seed[text] for text in texts] for seed in seeds]
    attacks = list(dict.fromkeys((one.attack, one.informed) for row in grid for cell in row for one in cell.attacked))
    plain = [seed["none"] for seed in seeds]
    curves = [_curve(grid, plain, attack, informed, name) for attack, informed in attacks for name in MEASURES]
    return MechanismResult(
        name=mechanism.title,
        defense=mechanism.defense,
        field=mechanism.field,
        strengths=[
            _strength(value, text, [row[place] for row in grid])
            for place, (value, text) in enumerate(zip(mechanism.values, texts, strict=True))
        ],
        curves=[curve for curve in curves if curve is not None],
    )


def _strength(value: str, text: str, cells: Sequence[Measured]) -> Strength:
    """Sum up one strength over seeds."""
    accuracies = [cell.accuracy for cell in cells]
    known = [accuracy for accuracy in accuracies if accuracy is not None]
    whole = len(known) == len(cells)
    ratios = [ratio for cell in cells for one in cell.attacked[:1] for ratio in one.ratios]
    ratio = float(np.median(ratios)) if ratios else math.nan
    low, high = np.quantile(ratios, [0.05, 0.95], method="nearest") if ratios else (math.nan, math.nan)
    errors = [error for cell in cells for error in (cell.error, *(one.error for one in cell.attacked)) if error]
    return Strength(
        value=value,
        defense=text,
        accuracies=accuracies,
        accuracy=float(np.mean(known)) if whole else None,
        accuracy_band=_band(_accuracy_draws(known)) if whole else [],
        ratio=_finite(ratio),
        ratios=[_finite(float(low)), _finite(float(high))],
        position=_finite(ppc_position(ratio)) if ratios else None,
        region=region(ratio) if ratios else "",
        errors=list(dict.fromkeys(errors)),
    )


def _curve(
    grid: Sequence[Sequence[Measured]], plain: Sequence[Measured], attack: str, informed: bool, measure: str
) -> Curve | None:
    """Draw one curve; None if the attack gave nothing to measure at some strength."""
    rows = [[_found(cell, attack, informed) for cell in row] for row in grid]
    whole = [[one.distances[measure] for one in row if one and measure in one.distances] for row in rows]
    if any(len(found) != len(row) for found, row in zip(whole, grid, strict=True)):
        return None
    distances = np.asarray(whole, dtype=np.float64)
    known = [[cell.accuracy for cell in row] for row in grid]
    trained = all(accuracy is not None for row in known for accuracy in row)
    accuracies = np.asarray(known if trained else np.ones(distances.shape[:2]), dtype=np.float64)
    drawn, means = resample_curve(accuracies, distances), distances.mean((0, 2))
    return Curve(
        attack=attack,
        informed=informed,
        measure=measure,
        null=_null([row[0] for row in rows], measure),
        plain=_plain(plain, attack, measure),
        distances=distances.tolist(),
        means=means.tolist(),
        bands=[_band(column) for column in drawn.distances.T],
        performances=(accuracies.mean(0) * means).tolist() if trained else [],
        cap=cap(accuracies.mean(0), means) if trained else None,
        cap_interval=_band(drawn.caps()) if trained else [],
    )


def _found(cell: Measured, attack: str, informed: bool) -> Attacked | None:
    return next((one for one in cell.attacked if (one.attack, one.informed) == (attack, informed)), None)


def _null(firsts: Sequence[Attacked | None], measure: str) -> float | None:
    """Return the mean over seeds, each with victims of its own, of who knows nothing; None if a seed does not tell."""
    values = [one.nulls[measure] for one in firsts if one and measure in one.nulls]
    return float(np.mean(values)) if len(values) == len(firsts) else None


def _plain(cells: Sequence[Measured], attack: str, measure: str) -> float | None:
    """Return the mean distance without defenses, where this very attack was run without them."""
    found = [_found(cell, attack, informed=False) for cell in cells]
    values = [value for one in found if one for value in one.distances.get(measure, [])]
    return float(np.mean(values)) if values else None


def _accuracy_draws(known: Sequence[float]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Return bootstrap means over seeds, by the same draws as those of the curves."""
    draws: np.ndarray[tuple[int], np.dtype[np.float64]]
    draws = resample_curve(np.asarray(known)[:, None], np.zeros((len(known), 1, 1))).accuracies[:, 0]
    return draws


def _band(values: np.ndarray[tuple[int], np.dtype[np.float64]]) -> list[float]:
    low, high = np.quantile(values, [0.025, 0.975])
    return [float(low), float(high)]


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
