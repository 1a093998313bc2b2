"""Keeping a run as the result of a paper's table, and going on from a kept one that lacks some numbers."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gradveil.errors import SpecError
from gradveil.reproducing._claiming import claim, refuse_other
from gradveil.reproducing.artefacts import RESULT, Artefact
from gradveil.reproducing.plans import Plan, Size, read_plan
from gradveil.reproducing.running import to_result
from gradveil.storage import write_atomically


def keep(artefact: Artefact, size: Size, out: Path) -> Path:
    """Copy the records of a run, without pictures and networks, beside the artefact, and make them its result.

    Args:
        artefact: from the catalogue.
        size: small or paper; a smoke run says nothing about a paper.
        out: run folder.
    """
    if size == "smoke":
        raise SpecError("a smoke run is no result of a paper's table; keep a small or a paper run")
    refuse_other(out, size)
    place, plan = _place(artefact, size), read_plan(artefact.folder / "spec.toml", size, out=out)
    if not to_result(artefact, plan, out)["values"]:
        raise SpecError(f"{out} holds no number of {artefact.name} in size {size}; run it first")
    _refuse_fewer(artefact, size, to_result(artefact, plan, out))
    for file in _behind(artefact, plan, out):
        target = place / file.relative_to(out)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, target)
        _without_pictures(target)
    result = to_result(artefact, plan, place)
    for value in result["values"]:
        value["records"] = [str((place / name).relative_to(artefact.folder)) for name in value["records"]]
    write_atomically(artefact.folder / RESULT, json.dumps(result, indent=1, allow_nan=False).encode() + b"\n")
    return artefact.folder / RESULT


def take_kept(artefact: Artefact, size: Size, out: Path) -> int:
    """Put the records of the kept result into a run folder, where a run finds them done; return how many were new.

    Args:
        artefact: from the catalogue.
        size: of the kept result.
        out: run folder; what it has itself stays.
    """
    result = artefact.result()
    if result is None or result["size"] != size:
        there = f"no result of {artefact.name}" if result is None else f"a {result['size']} result of {artefact.name}"
        raise SpecError(f"{there} is kept, so there is no {size} one to go on from; leave --from-kept out")
    claim(out, size)
    place, count = _place(artefact, size), 0
    for file in sorted(place.rglob("*.json")):
        target = out / file.relative_to(place)
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, target)
            count += 1
    return count


def _place(artefact: Artefact, size: Size) -> Path:
    return artefact.folder / "records" / size


def _refuse_fewer(artefact: Artefact, size: Size, result: Mapping[str, Any]) -> None:
    """Let no run take the place of a kept one of another size that has numbers which it lacks."""
    kept = artefact.result()
    if kept is None or kept["size"] == size:
        return
    there, here = ({(value["row"], value["column"]) for value in one["values"]} for one in (kept, result))
    if there - here:
        raise SpecError(
            f"of the {len(there)} numbers in the kept {kept['size']} result of {artefact.name}, this {size} run lacks "
            f"{len(there - here)}; run the other parts too, or remove {artefact.folder / RESULT}"
        )


def _behind(artefact: Artefact, plan: Plan, out: Path) -> list[Path]:
    """List the records that numbers were read off, and all of parts that only others rest on, such as federations."""
    read = {out / name for value in to_result(artefact, plan, out)["values"] for name in value["records"]}
    unread = {part.name for part in plan.parts} - {wanted.part for wanted in plan.wanted}
    below = [file for name in unread for file in (out / name).rglob("*.json") if "unfinished" not in file.parts]
    return sorted({*read, *below})


def _without_pictures(file: Path) -> None:
    """Say in the copy of an audit's record that its pictures were left out."""
    content = json.loads(file.read_text(encoding="utf-8"))
    if isinstance(content, dict) and content.get("images"):
        write_atomically(file, json.dumps({**content, "images": ""}, indent=1, allow_nan=False).encode())
