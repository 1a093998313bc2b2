"""Cells of a measurement: each is run once, and lies on disk as soon as it is done."""

import argparse
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from gradveil.record import about_this_run
from gradveil.storage import write_atomically

_OUTSIDE = {"parts", "out", "device", "budget", "seeds"}  # choose cells, or say where they run


@dataclass
class Book:
    """The finished cells of one part, in `PART.json`, so that parts can run side by side in processes of their own.

    Args:
        path: of the file; cells that it holds are not run again.
        spec: the settings; a file of other settings is refused.
        device: of the cells.
        until: time on the monotonic clock from which on no further cell is begun.
    """

    path: Path
    spec: Mapping[str, object]
    device: torch.device
    until: float
    cells: dict[str, dict[str, object]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.read()

    def read(self) -> None:
        """Take over what the file holds, which another process may have added to."""
        if self.path.exists():
            held = json.loads(self.path.read_text(encoding="utf-8"))
            if held["spec"] != json.loads(json.dumps(self.spec)):
                raise SystemExit(f"{self.path} was made with other settings; choose another --out")
            self.cells = {**held["cells"], **self.cells}

    def cell(self, name: str, make: Callable[[], Mapping[str, object]]) -> None:
        """Run a cell unless it is there, and write it."""
        if name in self.cells:
            return
        if time.monotonic() > self.until:
            print(f"{name}: left for another run", flush=True)
            return
        began = time.monotonic()
        found = make()
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        run = about_this_run(seconds={"all": time.monotonic() - began}, chunk=0, device=self.device)
        about = {"date": run.date, "seconds": run.seconds["all"], "device": run.device, "versions": run.versions}
        self.cells[name] = {**found, "run": about}
        print(self.path.stem, name, json.dumps(brief(self.cells[name])), flush=True)
        self.write()

    def write(self, **more: object) -> None:
        """Write what is done, and what follows from it."""
        self.read()
        content = {"spec": self.spec, "cells": self.cells, **more}
        write_atomically(self.path, json.dumps(content, indent=1).encode())


def brief(found: object) -> object:
    """Leave lists and the description of the run out, and round."""
    if isinstance(found, Mapping):
        kept = {name: value for name, value in found.items() if name != "run" and not isinstance(value, list)}
        return {name: brief(value) for name, value in kept.items()}
    return round(found, 4) if isinstance(found, float) else found


def summary(values: Tensor) -> dict[str, object]:
    """Return the mean with its standard error, the median, and all values."""
    plain = values.detach().double().flatten().cpu()
    error = float(plain.std() / len(plain) ** 0.5) if len(plain) > 1 else 0.0
    return {"mean": float(plain.mean()), "error": error, "median": float(plain.quantile(0.5)), "values": plain.tolist()}


def parser_of(parts: tuple[str, ...], *, out: Path) -> argparse.ArgumentParser:
    """Return a parser with what all measurements take."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--parts", nargs="+", choices=parts, default=list(parts))
    parser.add_argument("--out", type=Path, default=out, help="folder; one JSON file per part")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--budget", type=float, default=1e9, help="seconds after which no further cell is begun")
    return parser


def books(chosen: argparse.Namespace) -> list[Book]:
    """Open the files of the chosen parts."""
    spec = {name: value for name, value in vars(chosen).items() if name not in _OUTSIDE}
    until = time.monotonic() + chosen.budget
    device = torch.device(chosen.device)
    return [Book(chosen.out / f"{part}.json", {"part": part, **spec}, device, until) for part in chosen.parts]
