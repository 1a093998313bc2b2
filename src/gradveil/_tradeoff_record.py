"""The saved result of a trade-off study: the interface to its page and to whoever compares mechanisms."""

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from gradveil.errors import RecordError
from gradveil.record import Run
from gradveil.storage import write_atomically

FILE = "tradeoff.json"
FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Strength:
    """One value of the swept setting.

    Args:
        value: as written.
        defense: spec string of the defenses.
        accuracies: (S,) of the network of each seed, None where it could not be trained.
        accuracy: mean over seeds, None if one is missing.
        accuracy_band: 95 % of the bootstrap over seeds.
        ratio: ‖B‖ / ‖E‖ of the median victim and layer; None if nothing was perturbed, or nothing was attacked.
        ratios: of the victims, the 5th and the 95th percentile.
        position: log10(ratio + 1), the place on the axis.
        region: green, white or red; empty if nothing was attacked.
        errors: why accuracies or attacks are missing.
    """

    value: str
    defense: str
    accuracies: list[float | None]
    accuracy: float | None
    accuracy_band: list[float] = field(default_factory=list)
    ratio: float | None = None
    ratios: list[float | None] = field(default_factory=list)
    position: float | None = None
    region: str = ""
    errors: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """One attack, measured in one way, over all strengths of a mechanism.

    Args:
        attack: spec string, or the name of an informed adversary, whose settings may follow the defense.
        informed: whether it knows the defense and uses it.
        measure: such as reconstruction, tracing or membership; see `tradeoff.MEASURES`.
        null: distance of who knows nothing; None where that is not known.
        plain: mean distance without any defense; None if that attack was not run.
        distances: (S, M, U) by seed, strength and victim (participant, for tracing of all queries).
        means: (M,) over seeds and victims.
        bands: (M, 2), 95 % of the bootstrap over seeds and victims.
        performances: (M,) accuracy times distance, the points of the PPC.
        cap: their mean, None if a strength is missing.
        cap_interval: 95 % of the bootstrap over seeds and victims.
    """

    attack: str
    informed: bool
    measure: str
    null: float | None
    plain: float | None
    distances: list[list[list[float]]]
    means: list[float]
    bands: list[list[float]]
    performances: list[float]
    cap: float | None
    cap_interval: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class MechanismResult:
    """A mechanism with its curves.

    Args:
        name: for people.
        defense: spec string without the swept setting.
        field: that was swept.
        strengths: in the order of the spec.
        curves: by attack and measure; a curve that lacks a strength is left out.
    """

    name: str
    defense: str
    field: str
    strengths: list[Strength]
    curves: list[Curve]

    def null_cap(self, measure: str) -> float | None:
        """Return the CAP of who knows nothing, the mean accuracy times their distance; None where either is unknown."""
        nulls = [curve.null for curve in self.curves if curve.measure == measure and curve.null is not None]
        known = [strength.accuracy for strength in self.strengths if strength.accuracy is not None]
        if not nulls or len(known) < len(self.strengths):
            return None
        return nulls[0] * sum(known) / len(known)


@dataclass(frozen=True, slots=True, kw_only=True)
class TradeoffRecord:
    """A trade-off study.

    Args:
        spec: everything that is needed to run it again, as in a spec file.
        status: done, or running while seeds are left.
        seeds: whose results are in.
        plain_accuracy: mean over seeds of the network trained without defenses, None if it could not be trained.
        mechanisms: in the order of the spec.
        bounds: ratios between which the white region lies.
        run: date, timings, device, versions.
        format: of this file.
    """

    spec: dict[str, Any]
    status: Literal["done", "running"]
    seeds: list[int]
    plain_accuracy: float | None
    mechanisms: list[MechanismResult]
    bounds: list[float]
    run: Run
    format: int = FORMAT


def write_tradeoff(record: TradeoffRecord, folder: Path) -> Path:
    """Write `tradeoff.json`, whole or not at all."""
    text = json.dumps(dataclasses.asdict(record), indent=1, allow_nan=False)
    write_atomically(folder / FILE, text.encode())
    return folder / FILE


def read_tradeoff(folder: Path) -> TradeoffRecord:
    """Read a study from its folder or file."""
    file = folder / FILE if folder.is_dir() else folder
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        if content.get("format") != FORMAT:
            raise RecordError(f"{file} has format {content.get('format')}, this version reads {FORMAT}; run it again")
        mechanisms = [_mechanism(one) for one in content["mechanisms"]]
        return TradeoffRecord(**{**content, "mechanisms": mechanisms, "run": Run(**content["run"])})
    except OSError as error:
        raise RecordError(f"there is no {FILE} to read at {file}; name a run folder of `gradveil tradeoff`") from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise RecordError(f"{file} is no record of a trade-off ({error}); run it again") from error


def _mechanism(content: dict[str, Any]) -> MechanismResult:
    strengths, curves = content.pop("strengths"), content.pop("curves")
    return MechanismResult(
        **content, strengths=[Strength(**one) for one in strengths], curves=[Curve(**one) for one in curves]
    )
