"""Reading run folders, whole and damaged."""

import ast
import itertools
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from synthetic_runs import make_images, make_record, write_run

import gradveil.report
from gradveil.errors import RecordError
from gradveil.record import write
from gradveil.report import build, load_run


def test_a_run_reads_back_what_was_written(tmp_path: Path) -> None:
    record, images = make_record(), make_images()
    ((name, found, arrays),) = load_run(write_run(tmp_path, {"a": (record, images)}))
    assert (name, found.scores, found.identification, found.threat) == (
        "a",
        record.scores,
        record.identification,
        record.threat,
    )
    assert all(np.array_equal(arrays[key], images[key]) for key in images)


def test_cells_come_in_the_natural_order_of_their_names(tmp_path: Path) -> None:
    write_run(tmp_path, {name: (make_record(), None) for name in ("cell-10", "cell-2", "cell-1", "base")})
    assert [name for name, _, _ in load_run(tmp_path)] == ["base", "cell-1", "cell-2", "cell-10"]


def test_cells_come_in_the_order_of_the_spec_where_it_lists_them(tmp_path: Path) -> None:
    grid = {"models": ["lenet"], "states": ["untrained"], "defenses": ["none", "clipping"], "attacks": ["dlg", "a"]}
    for number, (defense, attack) in enumerate(itertools.product(["clipping", "none"], ["a", "dlg"])):
        cell = {"model": "lenet", "state": "untrained", "defenses": defense, "attack": attack}
        record = replace(make_record(), spec={"audit": grid, "cell": cell}, title=f"{defense} {attack}")
        write(record, tmp_path / "cells" / str(number))
    assert [record.title for _, record, _ in load_run(tmp_path)] == ["none dlg", "none a", "clipping dlg", "clipping a"]


def test_a_folder_with_a_single_record_is_a_run(tmp_path: Path) -> None:
    write(make_record(), tmp_path, images=make_images())
    assert [record.title for _, record, _ in load_run(tmp_path)] == ["no defense, dlg"]
    assert build(tmp_path).exists()


def test_an_unfinished_cell_is_passed_over_and_the_page_says_so(tmp_path: Path) -> None:
    write_run(tmp_path, {"1": (make_record(), None)})
    (tmp_path / "cells" / "2").mkdir()
    assert len(load_run(tmp_path)) == 1
    assert "1 cell of this run\nhad no record" in build(tmp_path).read_text()


@pytest.mark.parametrize("made", [True, False])
def test_a_folder_without_cells_is_refused(tmp_path: Path, made: bool) -> None:
    if made:
        (tmp_path / "cells").mkdir()
    with pytest.raises(RecordError, match="no finished cell"):
        load_run(tmp_path)


def edited(change: Callable[[dict[str, object]], object]) -> Callable[[Path], object]:
    def edit(folder: Path) -> None:
        content = json.loads((folder / "record.json").read_text())
        change(content)
        (folder / "record.json").write_text(json.dumps(content))

    return edit


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: (folder / "record.json").write_text("{"), "not a record"),
        (lambda folder: (folder / "record.json").write_text("[]"), "not a record"),
        (edited(lambda record: record.pop("scores")), "not a record"),
        (edited(lambda record: record.update(format=99)), "format 99"),
        (edited(lambda record: record.update(labels=[[0]])), "not \\(V, B\\)"),
        (edited(lambda record: record["scores"]["psnr"].update(private=[["x"]])), "no numbers"),  # type: ignore[index]
        (edited(lambda record: record["scores"]["psnr"].update(private=[[1], [2, 3]])), "no numbers"),  # type: ignore[index]
        (edited(lambda record: record["scores"]["psnr"]["nulls"].update(grey=[[1, 2]])), "not \\(V, B\\)"),  # type: ignore[index]
        (lambda folder: (folder / "images.npz").unlink(), "missing or damaged"),
        (lambda folder: (folder / "images.npz").write_bytes(b""), "damaged"),
        (lambda folder: (folder / "images.npz").write_bytes(b"PK\x03\x04 half"), "damaged"),
    ],
)
def test_damage_is_named_in_one_sentence(tmp_path: Path, damage: Callable[[Path], object], message: str) -> None:
    run = write_run(tmp_path, {"1": (make_record(), make_images())})
    damage(run / "cells" / "1")
    with pytest.raises(RecordError, match=message):
        build(run)
    assert not (run / "report.html").exists()


def test_a_redacted_page_does_not_need_the_images(tmp_path: Path) -> None:
    run = write_run(tmp_path, {"1": (make_record(), make_images())})
    (run / "cells" / "1" / "images.npz").unlink()
    assert build(run, redact=True) == run / "report.html"


def test_the_same_records_give_the_same_page(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", {"1": (make_record(), make_images())})
    first = build(run).read_bytes()
    shutil.copytree(run, tmp_path / "copy" / "run")
    assert build(tmp_path / "copy" / "run").read_bytes() == first


def test_reports_import_records_metrics_and_nothing_that_runs_a_model() -> None:
    allowed = (
        "gradveil.record",
        "gradveil._tradeoff_record",
        "gradveil.storage",
        "gradveil.errors",
        "gradveil.metrics",
        "gradveil.report",
        "gradveil",
    )
    pages = set(Path(gradveil.report.__path__[0]).glob("*.py"))
    # The page of a policy search reads a record of its own kind, which lives with the policies.
    for file in sorted(file for file in pages if file.name != "search_page.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            modules += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            for module in modules:
                ours = module.split(".")[0] == "gradveil"
                assert not ours or ".".join(module.split(".")[:2]) in allowed, f"{file.name} imports {module}"
                assert module.split(".")[0] not in {"torch", "matplotlib"}, f"{file.name} imports {module}"
