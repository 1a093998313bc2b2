"""Audits: a grid of cells by the ordinary machinery, and numbers off their records."""

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from gradveil import record
from gradveil.errors import RecordError, SpecError
from gradveil.grid import run_audit
from gradveil.record import Record
from gradveil.reproducing._adopting import adopt
from gradveil.reproducing._kinds import Means, matches
from gradveil.reproducing.measuring import Measurement, of_mean, of_shares
from gradveil.reproducing.plans import Part, Wanted
from gradveil.spec import AuditSpec, spec_from

_STATISTICS = ("mean", "max", "std")


def run(part: Part, folder: Path, means: Means) -> None:
    """Run every cell of a part's grid, but for those that were run elsewhere."""
    spec = to_spec(part, means)
    if means.adopted:
        count = adopt(part, spec, folder, means.adopted)
        means.say(f"{part.name}: {count} of {len(spec.cells())} cells taken over")
    refuse_failures(run_audit(spec, folder, settings=means.settings))


def to_spec(part: Part, means: Means) -> AuditSpec:
    """Make the grid of a part; a network that was trained before takes the place of one to be trained."""
    tables = {name: part.table(name) for name in ("audit", "training", "local") if part.table(name)}
    found = means.checkpoint(part)
    if found is not None:
        tables["audit"]["states"] = [f"checkpoint:{found}"]
    return spec_from(tables)


def refuse_failures(records: Sequence[Record]) -> None:
    """Stop at cells that failed, once all have run."""
    failed = [made for made in records if made.status == "failed"]
    if failed:
        raise RecordError(f"{len(failed)} of {len(records)} cells failed, first {failed[0].title}: {failed[0].error}")


def measure(folder: Path, wanted: Wanted) -> Measurement | None:
    """Read a number off the cells that are meant; several of them are averaged.

    `accuracy` is that of the network; `psnr.protected.mean` is the mean of a metric against what the model saw, and
    `psnr.private.mean.last-1` that of the last sample of every batch alone; `max` and `std` are over all samples.
    `first.private.mean` is the share of samples whose private image correlates with the guess more than every decoy.
    """
    files = sorted(folder.glob("cells/*/record.json"))
    found = [(file, made) for file in files if _meant(made := _read(file, file.stat().st_mtime_ns), wanted)]
    if not found:
        return None
    records = [made for _, made in found]
    if wanted.take == "accuracy":
        per_record = [made.network.accuracy or 0.0 for made in records]
        interval = of_mean(per_record)
    else:
        scores = [_scores(made, wanted.take) for made in records]
        statistic = wanted.take.split(".")[2]
        per_record = [_statistic(values, statistic) for values in scores]
        single = scores[0].mean(1).tolist() if len(scores) == 1 else per_record
        found_first = wanted.take.startswith("first.") and len(scores) == 1
        over = of_shares(scores[0].ravel().tolist()) if found_first else of_mean(single)
        interval = over if statistic == "mean" else None
    return Measurement(
        value=float(np.mean(per_record)),
        interval=interval,
        records=tuple(file for file, _ in found),
        seed=int(records[0].spec["audit"]["seed"]),
        device=records[0].run.device,
        date=max(made.run.date for made in records),
    )


@lru_cache(maxsize=64)
def _read(file: Path, _written: int) -> Record:
    """Read a record once for all numbers that are taken off it, as long as it is not written anew."""
    return record.read(file)


def _meant(made: Record, wanted: Wanted) -> bool:
    cell = {name: str(value) for name, value in made.spec["cell"].items()}
    return made.status == "done" and matches(cell, wanted)


def _scores(made: Record, take: str) -> npt.NDArray[np.float64]:
    """Return (V, B) scores, or those of the last samples of every batch."""
    metric, against, statistic, *last = take.split(".")
    if against not in {"private", "protected"} or statistic not in _STATISTICS:
        raise SpecError(f"'{take}' must be metric.private|protected.{'|'.join(_STATISTICS)}, such as psnr.private.mean")
    values = _first(made) if metric == "first" else np.asarray(getattr(made.scores[metric], against), dtype=np.float64)
    return values[:, -int(last[0].removeprefix("last-")) :] if last else values


def _first(made: Record) -> npt.NDArray[np.float64]:
    """Return (V, B), 1 where the private image is nearer than all decoys."""
    return np.asarray(np.asarray(made.identification["correlation"].ranks) == 0, dtype=np.float64)


def _statistic(values: npt.NDArray[np.float64], name: str) -> float:
    if name == "std":
        return float(values.std(ddof=1)) if values.size > 1 else 0.0
    return float(values.max() if name == "max" else values.mean())
