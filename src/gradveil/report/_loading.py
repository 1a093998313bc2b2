"""Read the cells of a run folder."""

import re
import zipfile
import zlib
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from gradveil.errors import RecordError
from gradveil.record import Numbers, Record, read, read_images

Images: TypeAlias = dict[str, npt.NDArray[np.uint8]]
"""Arrays `private`, `protected` and `guess`, each (V, B, C, H, W) bytes; empty if they were redacted."""


def load_run(run: Path) -> list[tuple[str, Record, Images]]:
    """Read every cell of a run that has a record, with its images.

    Args:
        run: folder with `cells/NAME/record.json`, or with a single `record.json`.

    Returns:
        (name, record, images) in the order in which the spec lists the cells, and else in the natural order of names,
        in which `cell-2` comes before `cell-10`.
    """
    return [(folder.name, record, _read_images(folder, record)) for folder, record in load_records(run)]


def load_records(run: Path) -> list[tuple[Path, Record]]:
    """Read every record of a run with its folder, and leave the images alone; same order as `load_run`."""
    found = [folder for folder in cell_folders(run) if (folder / "record.json").is_file()]
    if not found:
        raise RecordError(f"there is no finished cell in {run}; name a run folder of `gradveil audit`")
    loaded = [(folder, _checked(read(folder), folder)) for folder in found]
    return sorted(loaded, key=lambda cell: _place(cell[1]))


def cell_folders(run: Path) -> list[Path]:
    """List the folders of the cells, finished or not; a run without `cells` is its own single cell."""
    cells = run / "cells"
    return sorted((f for f in cells.iterdir() if f.is_dir()), key=_natural) if cells.is_dir() else [run]


def _natural(folder: Path) -> list[tuple[int, str]]:
    """Order numbers inside names by value."""
    return [(int(part), "") if part.isdecimal() else (0, part) for part in re.split(r"(\d+)", folder.name)]


def _place(record: Record) -> tuple[int, ...]:
    """Find a cell in the grid of its own spec, informed adversaries last; nothing if the spec names no grid."""
    grid, cell = record.spec.get("audit", {}), record.spec.get("cell", {})
    axes = {"models": "model", "states": "state", "defenses": "defenses"}
    try:
        place = tuple(grid[many].index(cell[one]) for many, one in axes.items())
        listed = len(grid["attacks"]) if cell.get("adaptive") else grid["attacks"].index(cell["attack"])
    except (KeyError, ValueError):
        return ()
    return (*place, listed)


def _read_images(folder: Path, record: Record) -> Images:
    try:
        return read_images(folder, record)
    except (EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise RecordError(f"the images in {folder} are damaged ({error}); run the audit again") from error


def _checked(record: Record, folder: Path) -> Record:
    """Refuse a record whose scores are not one number per victim and sample, or whose nulls are no such rows."""
    tables: dict[str, Numbers | list[list[int]]] = {"labels": record.labels} if record.scores else {}
    tables |= {f"scores of {name}": scores.private for name, scores in record.scores.items()}
    tables |= {f"ranks by {view}": found.ranks for view, found in record.identification.items()}
    nulls = [scores.nulls for scores in record.scores.values()]
    nulls += [found.nulls for found in record.identification.values()]
    try:
        shapes = {name: np.asarray(values, dtype=np.float64).shape for name, values in tables.items()}
        widths = {np.asarray(row, dtype=np.float64).shape for null in nulls for draws in null.values() for row in draws}
    except (TypeError, ValueError) as error:
        raise RecordError(f"the record in {folder} holds scores that are no numbers; run the audit again") from error

    for name, shape in shapes.items():
        if len(shape) != 2 or 0 in shape or shape != next(iter(shapes.values())) or widths - {shape[1:]}:
            raise RecordError(f"the record in {folder} has {name} of shape {shape}, not (V, B); run the audit again")
    return record
