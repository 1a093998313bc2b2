"""Records of audits that were run elsewhere: taken over where they are of the very audit that a part asks for."""

import shutil
from collections.abc import Sequence
from pathlib import Path

from gradveil import record
from gradveil.attacks import attacks
from gradveil.errors import RecordError
from gradveil.grid import finished
from gradveil.metrics import metrics
from gradveil.record import Record
from gradveil.reproducing.plans import Part
from gradveil.spec import AuditSpec, Cell, build, build_defenses

_SAME = ("dataset", "split", "victims", "batch_size", "start", "mode", "seed", "normalize", "decoys", "precision")


def adopt(part: Part, spec: AuditSpec, folder: Path, sources: Sequence[Path]) -> int:
    """Copy the records that fit cells of a part into its folder, where its run finds them done; return how many.

    Args:
        part: whose network may have been trained elsewhere.
        spec: of the part.
        folder: of the part.
        sources: folders that are searched for records.
    """
    files = [file for source in sources for file in sorted(source.rglob("record.json"))]
    known = [(file, made) for file in files if (made := _readable(file)) is not None]
    count = 0
    for cell in spec.cells():
        found = next((file for file, made in known if fits(made, spec, cell, checkpoint=part.checkpoint)), None)
        if found is not None and finished(folder, cell) is None:
            place = folder / "cells" / cell.name
            place.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(found, place / "record.json")
            count += 1
    return count


def fits(made: Record, spec: AuditSpec, cell: Cell, *, checkpoint: str = "") -> bool:
    """Tell whether a record is of a cell: same images, network, defenses, attack, knowledge, decoys, and all metrics.

    Args:
        made: the record.
        spec: of the grid.
        cell: of the grid.
        checkpoint: name of the network, for records of networks that came from a file.
    """
    if made.status != "done" or "audit" not in made.spec:
        return False
    own, wanted = made.spec["audit"], spec.to_dict()
    if any(own.get(name) != wanted["audit"][name] for name in _SAME) or made.spec.get("local") != wanted["local"]:
        return False
    if not {metrics.describe(build(metrics, text)) for text in spec.metrics} <= set(made.scores):
        return False
    if made.threat.knowledge != list(spec.knowledge_of(cell).names()) or "client" in made.spec:
        return False
    theirs = Cell(**made.spec["cell"])
    return _same_methods(theirs, cell) and _same_network(theirs, made, spec, cell, checkpoint)


def _same_methods(theirs: Cell, cell: Cell) -> bool:
    described = [attacks.describe(one.build_attack()) for one in (theirs, cell)]
    protections = [build_defenses(one.defenses) for one in (theirs, cell)]
    return described[0] == described[1] and protections[0] == protections[1]


def _same_network(theirs: Cell, made: Record, spec: AuditSpec, cell: Cell, checkpoint: str) -> bool:
    """Compare a network by its checkpoint's name, or by what it began as and how it was trained."""
    if theirs.model != cell.model:
        return False
    if theirs.state.startswith("checkpoint:"):
        return bool(checkpoint) and Path(theirs.state.partition(":")[2]).stem == checkpoint
    began = made.spec["audit"].get("model_seed") == spec.model_seed and theirs.state == cell.state
    return began and (cell.state == "untrained" or made.spec.get("training") == spec.to_dict()["training"])


def _readable(file: Path) -> Record | None:
    try:
        return record.read(file)
    except RecordError:
        return None
