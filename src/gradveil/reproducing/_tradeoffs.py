"""Trade-offs: calibrated averaged performances off a study of privacy against accuracy."""

from pathlib import Path
from typing import Any

from gradveil.errors import SpecError
from gradveil.reproducing import _federations
from gradveil.reproducing._kinds import Means, matches
from gradveil.reproducing.measuring import Measurement
from gradveil.reproducing.plans import Part, Wanted
from gradveil.tradeoff import FILE, read_tradeoff, run_tradeoff, tradeoff_from

_OWN = ("seeds", "participants", "queries")


def run(part: Part, folder: Path, means: Means) -> None:
    """Run the study of the part's tables `tradeoff` and `audit`; its mechanisms are tables of their own.

    A mechanism is a table `mechanism-NAME`. Its accuracies are those of the federations in the part that `tradeoff`
    names as `accuracies_from`, under the defenses that the mechanism lists as `federations`, one per value; or else
    those of networks trained under each strength.
    """
    study = part.table("tradeoff")
    source = str(study.pop("accuracies_from", ""))
    unknown = [name for name in study if name not in _OWN]
    if unknown:
        raise SpecError(f"[tradeoff] takes accuracies_from, {', '.join(_OWN)}, got {unknown[0]}")
    mechanisms = [
        _mechanism(dict(table), folder.parent / source if source else None)
        for name, table in part.tables.items()
        if name.startswith("mechanism-")
    ]
    tables = {name: part.table(name) for name in ("audit", "training", "local") if part.table(name)}
    run_tradeoff(tradeoff_from({"mechanism": mechanisms, "tradeoff": study, **tables}), folder, settings=means.settings)


def measure(folder: Path, wanted: Wanted) -> Measurement | None:
    """Read the `cap` of the `mechanism` and `measure` that are meant, under the attack that does not know the defense.

    Its interval comes from the bootstrap over seeds and victims that the study made.
    """
    if wanted.take != "cap":
        raise SpecError(f"a trade-off gives a cap, not '{wanted.take}'")
    if not (folder / FILE).exists():
        return None
    record = read_tradeoff(folder)
    if record.status != "done":
        return None
    for mechanism in record.mechanisms:
        for curve in mechanism.curves:
            fields = {"mechanism": mechanism.name, "measure": curve.measure}
            if curve.informed or curve.cap is None or not matches(fields, wanted):
                continue
            low_high = (curve.cap_interval[0], curve.cap_interval[1]) if curve.cap_interval else None
            return Measurement(
                value=curve.cap,
                interval=low_high,
                records=(folder / FILE,),
                seed=record.seeds[0],
                device=record.run.device,
                date=record.run.date,
            )
    return None


def _mechanism(table: dict[str, Any], federations: Path | None) -> dict[str, Any]:
    """Fill in the accuracies that federations reached."""
    trained = [str(defenses) for defenses in table.pop("federations", [])]
    if federations is None:
        return table
    reached: dict[str, float] = {}
    for file in sorted(federations.glob(f"*/{_federations.FILE}")):
        made = _federations.read(file)
        reached[made.defenses] = sum(made.accuracies) / len(made.accuracies)
    missing = [defenses for defenses in trained if defenses not in reached]
    if missing:
        raise SpecError(f"there is no federation under {missing[0]} in {federations}; add it to the part, or run it")
    return {**table, "accuracies": [reached[defenses] for defenses in trained]}
