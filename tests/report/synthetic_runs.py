"""Records and run folders made of invented numbers."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from gradveil.record import Identification, Network, Outcome, Record, Run, Scores, Threat, write

Images = Mapping[str, npt.NDArray[np.uint8]]


def constant(value: float, victims: int, batch: int = 1) -> list[list[float]]:
    return [[value] * batch for _ in range(victims)]


def draws(
    low: float, high: float, *, victims: int, batch: int = 1, times: int = 100, seed: int = 0
) -> list[list[float]]:
    """Draw (times · victims, batch) numbers."""
    values: list[list[float]] = np.random.default_rng(seed).uniform(low, high, (times * victims, batch)).tolist()
    return values


def psnr(private: list[list[float]]) -> Scores:
    """Score against grey at 12 dB, own mean colour at 13 dB and others of the class at 6 to 9 dB."""
    victims, batch = len(private), len(private[0])
    nulls = {
        "grey": constant(12.0, victims, batch),
        "own-mean": constant(13.0, victims, batch),
        "other-of-class": draws(6.0, 9.0, victims=victims, batch=batch),
        "random-gradient": constant(8.0, max(1, victims // 2), batch),
    }
    return Scores(private=private, protected=private, nulls=nulls, unit="dB", title="PSNR")


def ssim(private: list[list[float]]) -> Scores:
    victims, batch = len(private), len(private[0])
    nulls = {
        "grey": constant(0.1, victims, batch),
        "other-of-class": draws(0.0, 0.1, victims=victims, batch=batch),
    }
    return Scores(private=private, protected=private, nulls=nulls, title="SSIM")


def ranked(ranks: list[list[float]]) -> Identification:
    nulls = {"other-of-class": draws(1, 99, victims=len(ranks), batch=len(ranks[0]))}
    return Identification(ranks=ranks, nulls=nulls, decoys=100)


def make_record(
    values: Sequence[float] = (15.0, 12.5, 24.0, 9.5),
    *,
    ranks: Sequence[float] = (0, 0, 0, 7),
    defenses: Sequence[str] = (),
    attack: str = "dlg",
    adaptive: bool = False,
    classes: Sequence[str] = ("cat", "dog"),
) -> Record:
    """Make a finished cell of one sample per victim with these decibels and ranks."""
    victims = len(values)
    return Record(
        spec={"seed": 3, "model": {"name": "lenet"}, "defenses": list(defenses)},
        status="done",
        title=f"{' + '.join(defenses) or 'no defense'}, {attack}",
        attack=attack,
        defenses=list(defenses),
        threat=Threat(knowledge=["labels"], adaptive=adaptive),
        network=Network(spec="lenet", state="untrained", mode="eval", parameters=1234, accuracy=0.5),
        outcome=Outcome(
            objective=[0.1] * victims, diverged=[False] * victims, steps=[300] * victims, labels_granted=True
        ),
        scores={"psnr": psnr([[v] for v in values]), "ssim": ssim([[v / 100] for v in values])},
        identification={"correlation": ranked([[float(r)] for r in ranks])},
        labels=[[v % 2] for v in range(victims)],
        classes=list(classes),
        run=Run(
            date="2026-11-16T04:50:12+00:00",
            seconds={"attack": 1.5},
            chunk=victims,
            device="CPU (test)",
            versions={"gradveil": "0.1.0"},
        ),
    )


def make_images(victims: int = 4, *, channels: int = 3, side: int = 8, seed: int = 0) -> Images:
    """Make noise, which no format compresses."""
    generator = np.random.default_rng(seed)
    shape = (victims, 1, channels, side, side)
    return {name: generator.integers(0, 256, shape, dtype=np.uint8) for name in ("private", "protected", "guess")}


def write_run(run: Path, cells: Mapping[str, tuple[Record, Images | None]]) -> Path:
    for name, (record, images) in cells.items():
        write(record, run / "cells" / name, images=images)
    return run
