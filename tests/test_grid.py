import hashlib
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from safetensors.torch import load_file, save_file

from gradveil import _recording, data, record, training_record
from gradveil._networks import Prepared
from gradveil._public_material import client_pool, public_material, reference, share
from gradveil._recording import to_record
from gradveil.attacks import InvertingGradients
from gradveil.attacks._priors import ImageSpace
from gradveil.auditing import audit
from gradveil.client import observe
from gradveil.defenses import Mixup
from gradveil.engine import Runtime, normalized
from gradveil.errors import DataError, RecordError, SpecError
from gradveil.grid import Settings, draw, finished, run_audit
from gradveil.metrics import PSNR
from gradveil.models import build, checkpoints, generators
from gradveil.models.training import Training, train
from gradveil.planning import plan
from gradveil.record import Record
from gradveil.report import load_run
from gradveil.spec import AuditSpec
from gradveil.storage import TensorFolder
from gradveil.streams import Streams
from gradveil.types import Knowledge

TINY = AuditSpec(
    victims=2,
    models=("mlp:hidden=16",),
    attacks=("inverting-gradients:steps=4",),
    metrics=("psnr",),
    decoys=20,
    null_victims=1,
    adaptive=False,
)
GRID = replace(
    TINY,
    states=("trained",),
    defenses=("none", "gaussian-noise:std=0.1"),
    attacks=("inverting-gradients:steps=55",),
    training=Training(epochs=2, batch_size=256, optimizer="adam", lr=0.05),
)
"""An attack looks up every 50 steps: at 55 it can be interrupted between two checkpoints."""
SETTINGS = Settings(device=torch.device("cpu"), save_every=0.0)


def run(spec: AuditSpec, folder: Path, **settings: Any) -> list[Record]:
    return run_audit(spec, folder, settings=replace(SETTINGS, **settings))


def numbers(records: list[Record]) -> str:
    """Write records down without what may differ between two runs of one spec."""
    kept = [{name: value for name, value in asdict(record).items() if name != "run"} for record in records]
    return json.dumps(kept)


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def beside_networks(folder: Path) -> set[str]:
    return {name for name in files(folder) if not name.startswith("models/")}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of an uninterrupted run of the grid."""
    folder = tmp_path_factory.mktemp("runs") / "whole"
    run(GRID, folder)
    return folder


def kept(folder: Path, spec: AuditSpec = GRID) -> str:
    found = [finished(folder, cell) for cell in spec.cells()]
    return numbers([record for record in found if record is not None])


def test_a_run_folder_holds_the_spec_and_a_record_with_images_per_cell(whole: Path) -> None:
    cells = {f"cells/{cell.name}/{name}" for cell in GRID.cells() for name in ("record.json", "images.npz")}
    found = files(whole)
    assert found >= cells | {"spec.toml"}
    assert all(name.startswith("models/") and name.endswith(".safetensors") for name in found - cells - {"spec.toml"})
    assert (whole / "spec.toml").read_text() == GRID.to_toml()
    records = [finished(whole, cell) for cell in GRID.cells()]
    for made, cell in zip(records, GRID.cells(), strict=True):
        assert made is not None
        assert (made.status, made.attack, made.title) == ("done", cell.attack, cell.title)
        assert len(made.scores["psnr"].private) == len(made.labels) == GRID.victims
        images = record.read_images(whole / "cells" / cell.name, made)
        assert {name: array.shape for name, array in images.items()} == dict.fromkeys(
            ("private", "protected", "guess"), (2, 1, 1, 8, 8)
        )


def test_a_network_is_trained_once_and_its_record_says_what_the_accuracy_is_of(whole: Path) -> None:
    trained, defended = (finished(whole, cell) for cell in GRID.cells())
    assert trained is not None
    assert defended is not None
    assert (trained.network.accuracy or 0) > 0.3
    assert trained.network.accuracy == defended.network.accuracy
    assert trained.network.accuracy_of == "this network, trained with no defense"
    assert len(list((whole / "models").iterdir())) == 1
    assert defended.ratios
    assert not trained.ratios


def test_the_accuracy_of_an_untrained_network_is_measured_once(tmp_path: Path) -> None:
    spec = replace(TINY, defenses=("none", "sign"), states=("untrained",))
    plain, signed = run(replace(spec, models=("mlp:hidden=16",)), tmp_path)[:2]
    (file,) = (tmp_path / "models").iterdir()
    assert float(file.read_text()) == plain.network.accuracy == signed.network.accuracy
    file.write_text("0.75")
    assert run(spec, tmp_path / "b", networks=tmp_path / "models")[0].network.accuracy == 0.75
    other = run(replace(spec, model_seed=1), tmp_path / "c", networks=tmp_path / "models")[0].network.accuracy
    assert other == run(replace(spec, model_seed=1), tmp_path / "d")[0].network.accuracy
    file.write_text("half of a nu")
    assert run(spec, tmp_path / "e", networks=tmp_path / "models")[0].network.accuracy == plain.network.accuracy


def test_training_with_the_defense_makes_a_network_of_its_own(tmp_path: Path) -> None:
    spec = replace(GRID, states=("trained", "trained-with-defense"), attacks=TINY.attacks, null_victims=0)
    plain, noisy, same, own = run(spec, tmp_path)
    assert same.network.accuracy == plain.network.accuracy == noisy.network.accuracy
    assert own.network.accuracy != plain.network.accuracy
    assert own.network.accuracy_of == "this network, trained with gaussian-noise:std=0.1"
    assert len(list((tmp_path / "models").iterdir())) == 2


def test_what_is_finished_is_not_run_again(whole: Path) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("nothing is to be done")

    before = {name: (whole / name).stat().st_mtime_ns for name in files(whole)}
    again = run(GRID, whole, progress=refuse)
    assert numbers(again) == kept(whole)
    assert {name: (whole / name).stat().st_mtime_ns for name in files(whole)} == before


def test_the_same_spec_gives_the_same_bits_in_another_process(tmp_path: Path) -> None:
    file = tmp_path / "audit.toml"
    file.write_text(TINY.to_toml())
    command = [sys.executable, "-m", "gradveil", "audit", "--spec", str(file), "--out", str(tmp_path / "other")]
    environment = {**os.environ, "PYTHONHASHSEED": "7", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    subprocess.run([*command, "--quiet"], env=environment, check=True, stdout=subprocess.DEVNULL, timeout=120)
    here = run(TINY, tmp_path / "here")
    assert numbers(here) == kept(tmp_path / "other", TINY)
    (cell,) = TINY.cells()
    images = [record.read_images(tmp_path / run / "cells" / cell.name, here[0]) for run in ("here", "other")]
    assert all(np.array_equal(images[0][name], images[1][name]) for name in images[0])


def test_another_seed_gives_other_numbers(tmp_path: Path) -> None:
    first, other = (run(replace(TINY, seed=seed), tmp_path / str(seed))[0] for seed in (0, 1))
    assert other.scores["psnr"].private != first.scores["psnr"].private


class Interruption:
    """Ctrl-C at a given call of the progress callback."""

    def __init__(self, moment: int) -> None:
        self.left = moment

    def __call__(self, task: str, done: int, total: int) -> None:
        self.left -= 1
        if self.left < 0:
            raise KeyboardInterrupt


@pytest.mark.parametrize("pause", [0, 3])
def test_a_run_interrupted_again_and_again_gives_the_record_of_the_whole_one(
    pause: int, whole: Path, tmp_path: Path
) -> None:
    interruptions, unfinished = 0, 0
    while interruptions < 200:
        try:
            run(GRID, tmp_path, progress=Interruption(pause + interruptions))
            break
        except KeyboardInterrupt:
            interruptions += 1
            unfinished += any("unfinished" in name for name in files(tmp_path))
            assert not any(Path(name).name.startswith(".") for name in files(tmp_path))
    assert interruptions >= 3
    assert unfinished >= 1
    assert kept(tmp_path) == kept(whole)
    assert files(tmp_path) == files(whole)


def test_an_interrupted_cell_leaves_no_record_of_its_own(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(TINY, tmp_path, progress=Interruption(1))
    assert not any(name.endswith(("record.json", "images.npz")) for name in files(tmp_path))
    assert finished(tmp_path, TINY.cells()[0]) is None


def test_a_failing_cell_is_written_down_and_the_others_go_on(tmp_path: Path) -> None:
    spec = replace(TINY, states=("checkpoint:/nowhere.safetensors", "untrained"))
    failed, done = run(spec, tmp_path)
    assert failed.status == "failed"
    assert failed.error.startswith("there is no checkpoint at /nowhere.safetensors")
    assert (failed.scores, failed.labels, failed.images) == ({}, [], "")
    assert done.status == "done"
    assert record.read(tmp_path / "cells" / spec.cells()[0].name) == failed


def test_a_failed_cell_is_tried_again(whole: Path, tmp_path: Path) -> None:
    place = tmp_path / "model.safetensors"
    spec = replace(TINY, states=(f"checkpoint:{place}",))
    assert run(spec, tmp_path / "run")[0].status == "failed"
    place.write_bytes(b"damaged")
    assert "is not a whole safetensors file" in run(spec, tmp_path / "run")[0].error
    (source,) = (whole / "models").glob("*.safetensors")
    place.write_bytes(source.read_bytes())
    (done,) = run(spec, tmp_path / "run")
    assert done.status == "done"
    assert done.network.accuracy_of == "the checkpoint (no defense)"


def test_a_defect_stops_its_own_cell_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[object] = []

    def broken(result: Any) -> Any:
        calls.append(result)
        if len(calls) == 1:
            raise RuntimeError("the first cell broke")
        return _recording.pictures(result)

    monkeypatch.setattr("gradveil.grid.pictures", broken)
    spec = replace(TINY, defenses=("none", "pruning"))
    failed, done = run(spec, tmp_path)
    assert (failed.status, failed.error) == ("failed", "RuntimeError: the first cell broke")
    assert done.status == "done"


@pytest.mark.parametrize("moment", [1, 4, 7])
def test_a_full_disk_stops_the_run_and_a_later_one_goes_on(
    moment: int, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[int] = []

    def full_for_a_moment(descriptor: int) -> None:
        written.append(descriptor)
        if len(written) == moment:
            raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full_for_a_moment)
        with pytest.raises(RecordError, match=r"the disk is full, so .* was not written; free some space"):
            run(GRID, tmp_path)
    assert not any(Path(name).name.startswith(".") for name in files(tmp_path))
    assert "failed" not in "".join(file.read_text() for file in tmp_path.rglob("record.json"))
    run(GRID, tmp_path)
    assert kept(tmp_path) == kept(whole)
    assert files(tmp_path) == files(whole)


def test_a_folder_belongs_to_one_spec(tmp_path: Path) -> None:
    run(TINY, tmp_path)
    before = files(tmp_path)
    with pytest.raises(SpecError, match="holds the run of another spec; name a new folder"):
        run(replace(TINY, seed=1), tmp_path)
    assert files(tmp_path) == before


@pytest.mark.parametrize(
    ("spec", "settings"),
    [
        (replace(TINY, dataset="cifar100"), {"data_dir": Path("/nowhere")}),
        (replace(TINY, dataset="folder:/nowhere"), {}),
        (replace(TINY, victims=100_000), {}),
        (replace(TINY, start=5000), {}),
    ],
)
def test_a_run_that_cannot_begin_leaves_no_folder(spec: AuditSpec, settings: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(DataError):
        run(spec, tmp_path / "run", **settings)
    assert not (tmp_path / "run").exists()


def test_a_record_that_cannot_be_read_is_made_again(tmp_path: Path) -> None:
    (made,) = run(TINY, tmp_path)
    file = tmp_path / "cells" / TINY.cells()[0].name / "record.json"
    file.write_text("{")
    assert numbers(run(TINY, tmp_path)) == numbers([made])
    assert numbers([record.read(file.parent)]) == numbers([made])


def test_a_redacted_run_keeps_no_picture_and_the_same_numbers(tmp_path: Path) -> None:
    (made,) = run(TINY, tmp_path / "shown")
    (bare,) = run(TINY, tmp_path / "redacted", redact=True)
    assert bare.images == ""
    assert numbers([replace(made, images="")]) == numbers([bare])
    place = f"cells/{TINY.cells()[0].name}"
    assert beside_networks(tmp_path / "redacted") == {"spec.toml", f"{place}/record.json"}


def test_redacting_a_finished_run_removes_its_pictures(tmp_path: Path) -> None:
    run(TINY, tmp_path)
    TensorFolder(tmp_path / "cells" / TINY.cells()[0].name / "unfinished").save("attack", {"guess": torch.ones(1)})
    (made,) = run(TINY, tmp_path, redact=True)
    assert made.images == ""
    assert beside_networks(tmp_path) == {"spec.toml", f"cells/{TINY.cells()[0].name}/record.json"}
    assert record.read(tmp_path / "cells" / TINY.cells()[0].name).images == ""


@pytest.mark.parametrize(
    ("attack", "defense", "knowledge", "adaptive"),
    [
        ("bayes-optimal:steps=1", "pruning", ("labels", "defenses"), True),
        ("bayes-optimal:steps=1", "clipping + pruning", ("defenses",), True),
        ("inverting-gradients:steps=1", "pruning", ("labels",), False),
        ("bayes-optimal:steps=1", "none", ("labels", "defenses"), False),
        ("dlg:steps=1", "pruning", ("labels", "defenses"), False),
    ],
)
def test_an_attack_is_adaptive_if_it_knows_the_defense_and_is_the_one_to_break_it(
    attack: str, defense: str, knowledge: tuple[str, ...], adaptive: bool, tmp_path: Path
) -> None:
    spec = replace(TINY, attacks=(attack,), defenses=(defense,), knowledge=knowledge, null_victims=0)
    (made,) = run(spec, tmp_path)
    assert made.threat.adaptive is adaptive
    assert made.threat.knowledge == list(knowledge)


def test_the_standard_and_the_informed_adversary_have_records_of_their_own(tmp_path: Path) -> None:
    spec = replace(TINY, adaptive=True, defenses=("none", "pruning", "mixup:k=1"), null_victims=0)
    none, standard, informed, mixed = run(spec, tmp_path)
    assert [made.status for made in (none, standard, informed, mixed)] == ["done"] * 4
    assert [made.threat.adaptive for made in (none, standard, informed, mixed)] == [False, False, True, False]
    assert standard.threat.knowledge == ["labels", "auxiliary"]
    assert informed.threat.knowledge == ["labels", "defenses", "auxiliary"]
    assert (standard.attack, informed.attack) == ("inverting-gradients:steps=4", "bayes-optimal:steps=4")
    assert standard.threat.informed == informed.threat.informed == {"pruning": informed.attack}
    assert mixed.threat.informed == {"mixup": ""}
    assert mixed.threat.reasons == {"mixup": Mixup.adversary.reason}
    assert none.threat.informed == {}
    assert standard.labels == informed.labels
    assert [name for name, _, _ in load_run(tmp_path)] == [cell.name for cell in spec.cells()]


def test_regions_are_recorded_for_defenses_of_every_place(tmp_path: Path) -> None:
    spec = replace(
        TINY, defenses=("none", "gaussian-noise:std=10", "gaussian-noise:std=1e-9", "spn", "soteria"), null_victims=0
    )
    none, loud, quiet, head, step = run(spec, tmp_path)
    assert none.regions == {}
    assert loud.regions == {"hidden1": "green", "fc": "green"}
    assert quiet.regions == {"hidden1": "red", "fc": "red"}
    assert head.regions.keys() == step.regions.keys() == {"hidden1", "fc"}
    assert head.ratios["fc.weight"] == [math.inf] * 2  # the private head stands beside the public one
    assert all(ratio < math.inf for ratio in head.ratios["hidden1.weight"])
    assert record.read(tmp_path / "cells" / spec.cells()[3].name) == head


# Malicious servers


@pytest.mark.parametrize("attack", ["imprint", "trap-weights"])
def test_a_malicious_server_is_audited_and_the_accuracy_stays_that_of_the_honest_network(
    attack: str, tmp_path: Path
) -> None:
    spec = replace(TINY, models=("mlp:hidden=200",), attacks=(attack, "dlg:steps=1"), batch_size=4, null_victims=0)
    malicious, honest = run(spec, tmp_path)
    assert malicious.status == honest.status == "done"
    assert (malicious.threat.server, honest.threat.server) == ("malicious", "honest-but-curious")
    assert malicious.network.accuracy == honest.network.accuracy
    assert honest.network.accuracy_of == "the untrained network"
    assert malicious.network.accuracy_of == "the untrained network, before the malicious server changed it"
    assert sum(value > 60 for row in malicious.scores["psnr"].private for value in row) >= 6


def test_the_plan_of_a_malicious_server_counts_what_it_sends() -> None:
    spec = replace(TINY, attacks=("imprint:bins=10", "inverting-gradients:steps=4"))
    sent, honest = plan(spec, device=torch.device("cpu"))
    assert (sent.parameters, honest.parameters) == (1210 + 10 * 64 + 10 + 64 * 10 + 64, 1210)


# Public material


def numbers_in(split: data.Split, images: torch.Tensor) -> list[int]:
    """Find images in a split by their pixels."""
    places = {tuple(image.flatten().tolist()): number for number, image in enumerate(split.images)}
    return [places[tuple(image.flatten().tolist())] for image in (images * 255).round().byte()]


@pytest.mark.parametrize("split", ["test", "train"])
def test_public_images_are_like_the_private_ones_and_neither_victims_nor_decoys(split: Any) -> None:
    digits = data.load("digits")
    spec = replace(TINY, split=split, start=-1, auxiliary_images=50)
    own = digits.test if split == "test" else digits.train
    public = public_material(spec, digits)
    assert public is not None
    assert public.inputs is not None
    assert public.labels is not None
    found = numbers_in(own, public.inputs)
    assert len(set(found)) == 50
    assert own.labels[found].tolist() == public.labels.tolist()
    victims = numbers_in(own, draw(spec, digits).inputs.flatten(0, 1))
    assert not set(found) & set(victims)
    assert share(spec, digits).victims.tolist() == victims
    assert len(reference(spec, digits).inputs) == len(own) - 50
    decoys = numbers_in(own, reference(spec, digits).inputs)
    assert not set(found) & set(decoys)
    again = public_material(spec, digits)
    assert again is not None
    assert torch.equal(again.inputs, public.inputs)  # type: ignore[arg-type]


def test_without_public_images_every_image_may_be_a_decoy() -> None:
    digits, spec = data.load("digits"), replace(TINY, knowledge=("labels",))
    assert public_material(spec, digits) is None
    assert len(reference(spec, digits).inputs) == len(digits.test)


def test_a_small_split_is_halved_between_the_adversary_and_the_decoys() -> None:
    digits, spec = data.load("digits"), replace(TINY, decoys=1000)
    half = (len(digits.test) - 2) // 2
    assert len(share(spec, digits).public) == half
    assert len(reference(spec, digits).inputs) == len(digits.test) - half


def test_nobody_else_of_a_victims_identity_is_public() -> None:
    digits, spec = data.load("digits"), replace(TINY, auxiliary_images=10_000, decoys=1)
    who = torch.arange(len(digits.test)) // 40
    known = replace(digits, test=data.Split(digits.test.images, digits.test.labels, who))
    assert share(spec, digits).public.min() < 40
    assert share(spec, known).public.min() >= 40


def test_public_images_may_be_those_of_the_other_split() -> None:
    digits = data.load("digits")
    for name in ("train", "digits"):
        public = public_material(replace(TINY, auxiliary=name, auxiliary_images=50), digits)
        assert public is not None
        assert public.inputs is not None
        assert len(numbers_in(digits.train, public.inputs)) == 50
        assert len(reference(replace(TINY, auxiliary=name), digits).inputs) == len(digits.test)


def test_clients_draw_from_the_split_that_is_not_attacked(tmp_path: Path) -> None:
    digits = data.load("digits")
    assert len(numbers_in(digits.train, client_pool(TINY, digits))) == len(digits.train)
    own = numbers_in(digits.test, client_pool(replace(TINY, pool="test"), digits))
    assert not set(own) & set(share(TINY, digits).victims.tolist())
    spec = replace(TINY, defenses=("instahide:k=3,from_pool=2",), null_victims=0)
    (made,) = run(spec, tmp_path)
    assert made.status == "done", made.error
    assert len(plan(spec, device=torch.device("cpu"))) == 1


def pictures(folder: Path, side: int) -> str:
    for name in ("cat", "dog"):
        (folder / name).mkdir(parents=True)
        for number in range(6):
            pixels = np.full((side, side), 20 * number, np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{number}.png")
    return f"folder:{folder},grey=yes"


def test_public_images_may_come_from_another_data_set_without_its_labels(tmp_path: Path) -> None:
    digits = data.load("digits")
    public = public_material(replace(TINY, auxiliary=pictures(tmp_path / "same", 8), auxiliary_images=5), digits)
    assert public is not None
    assert public.inputs is not None
    assert (tuple(public.inputs.shape), public.labels) == ((5, 1, 8, 8), None)
    other = replace(TINY, auxiliary=pictures(tmp_path / "other", 9))
    with pytest.raises(DataError, match=r"must have the shape \(1, 8, 8\) of the private ones"):
        run(other, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def kept_network(path: Path) -> torch.nn.Module:
    digits = data.load("digits")
    recipe = Training(epochs=1, batch_size=256)
    plain = build("mlp:hidden=16", input_shape=(1, 8, 8), num_classes=10)
    done = train(normalized(plain, digits.mean, digits.std), digits.train, training=recipe, test=digits.test)
    about = {"model": "mlp:hidden=16", "dataset": "digits", "defenses": "no defense"}
    training_record.keep(done, path, loaded=digits, training=recipe, **about)
    return done.model


def test_an_extractor_gives_what_enters_the_last_layer_of_a_trained_network(tmp_path: Path) -> None:
    path, digits = tmp_path / "net.safetensors", data.load("digits")
    model = kept_network(path)
    public = public_material(replace(TINY, extractor=str(path)), digits)
    assert public is not None
    assert public.extractor is not None
    images = digits.test.inputs([0, 1, 2])
    features = public.extractor(images)
    assert features.shape == (3, 16)
    torch.testing.assert_close(model.fc(features), model(images))  # type: ignore[operator]
    checkpoints.save(model, tmp_path / "bare.safetensors", about={"model": "mlp:hidden=16"})
    with pytest.raises(DataError, match="does not say what network it is"):
        public_material(replace(TINY, extractor=str(tmp_path / "bare.safetensors")), digits)


def test_a_generator_is_handed_to_the_adversary_if_its_images_fit(tmp_path: Path) -> None:
    digits = data.load("digits")
    for side in (8, 9):
        made = generators.Generator((1, side, side), latent_size=4, width=8)
        generators.save(made, tmp_path / f"{side}.safetensors", about={})
    public = public_material(replace(TINY, generator=str(tmp_path / "8.safetensors")), digits)
    assert public is not None
    assert public.generator is not None
    assert public.generator(torch.zeros(2, 4)).shape == (2, 1, 8, 8)
    with pytest.raises(DataError, match=r"makes images \(1, 9, 9\), but the audit has \(1, 8, 8\)"):
        public_material(replace(TINY, generator=str(tmp_path / "9.safetensors")), digits)


def test_a_tuned_attack_is_chosen_on_simulated_victims_and_the_record_keeps_the_search(tmp_path: Path) -> None:
    spec = replace(TINY, tune=True, null_victims=0, attacks=("inverting-gradients:steps=3",))
    spec = replace(spec, tune_steps=2, tune_victims=3, auxiliary_images=30)
    (made,) = run(spec, tmp_path)
    search = made.outcome.search
    assert made.attack == search["attack"] == "inverting-gradients:steps=3"
    assert search["chosen"].replace("steps=3", "steps=2") in [trial["setting"] for trial in search["trials"]]
    assert len(search["trials"]) > 10
    assert (search["public"], search["seed"], search["victims"], search["steps"]) == (30, 0, 3, 2)
    assert search["rule"] == "identification"
    assert record.read(tmp_path / "cells" / spec.cells()[0].name).outcome == made.outcome

    chosen = replace(spec, tune=False, attacks=(search["chosen"],))
    assert run(chosen, tmp_path / "chosen")[0].scores["psnr"].private == made.scores["psnr"].private


# What else an attack found out


def test_certificates_are_recorded(tmp_path: Path) -> None:
    spec = replace(TINY, attacks=("analytic",), defenses=("gaussian-noise:std=1e-4",), null_victims=0)
    (made,) = run(spec, tmp_path)
    assert made.outcome.certificate.keys() == {"condition", "error bound"}
    assert all(0 < value < 1 for value in made.outcome.certificate["condition"])
    assert record.read(tmp_path / "cells" / spec.cells()[0].name).outcome == made.outcome


def test_details_are_recorded_unless_they_are_as_large_as_pictures() -> None:
    batch = data.draw_victims(data.load("digits").test, victims=2, batch_size=1)
    model = build("mlp:hidden=8", input_shape=(1, 8, 8), num_classes=10)
    result = audit(batch, model, F.cross_entropy, attack=InvertingGradients(steps=1))
    details = {"shift": torch.tensor([[0.5, 1.0], [-1.0, torch.nan]]), "picture": torch.zeros(2, 1, 8, 8)}
    found = replace(result, guess=replace(result.guess, details=details))
    prepared = Prepared(model=model, accuracy=0.5, accuracy_of="a test")
    made = to_record(found, TINY, TINY.cells()[0], prepared, data.load("digits"))
    assert made.outcome.details["shift"][0] == [0.5, 1.0]
    assert math.isnan(made.outcome.details["shift"][1][1])
    assert made.outcome.too_large == {"picture": [1, 8, 8]}


# Checkpoints and their records


def test_a_checkpoint_is_cited_by_the_record_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "net.safetensors"
    kept_network(path)
    spec = replace(TINY, states=(f"checkpoint:{path}",), null_victims=0)
    (cited,) = run(spec, tmp_path / "cited")
    assert cited.network.accuracy_of == "the checkpoint (no defense); its training: net.json"
    assert cited.network.training["accuracy"] == cited.network.accuracy
    assert len(cited.network.training["history"]) == cited.network.training["recipe"]["epochs"] == 1

    content = json.loads((tmp_path / "net.json").read_text())
    for number, text in enumerate((json.dumps({**content, "sha256": "of another file"}), "{", "[]", '{"format": 1}')):
        (tmp_path / "net.json").write_text(text)
        (other,) = run(spec, tmp_path / str(number))
        assert (other.network.accuracy_of, other.network.training) == ("the checkpoint (no defense)", {})


def test_a_cell_of_another_checkpoint_is_not_taken_over(tmp_path: Path) -> None:
    path, out = tmp_path / "net.safetensors", tmp_path / "run"
    kept_network(path)
    first = path.read_bytes()
    spec = replace(TINY, states=(f"checkpoint:{path}",), null_victims=0)
    (made,) = run(spec, out)
    assert made.network.sha256 == hashlib.sha256(first).hexdigest()
    model = build("mlp:hidden=4", input_shape=(1, 8, 8), num_classes=10, seed=5)
    checkpoints.save(model, path, about={})
    with pytest.raises(SpecError, match="was run with another checkpoint; name a new folder"):
        run(spec, out)
    path.unlink()
    assert run(spec, out) == [made]
    path.write_bytes(first)
    assert run(spec, out) == [made]


def test_an_interrupted_attack_does_not_go_on_under_another_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "net.safetensors"
    kept_network(path)
    spec = replace(TINY, states=(f"checkpoint:{path}",), null_victims=0, attacks=("inverting-gradients:steps=60",))

    def interrupt(name: str, done: int, total: int) -> None:
        if done > 50:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(spec, tmp_path / "run", progress=interrupt)
    assert list((tmp_path / "run").glob("cells/*/unfinished/*"))
    moved = {name: tensor + 0.1 for name, tensor in load_file(path).items()}
    save_file(moved, path, metadata=checkpoints.read_about(path))
    assert numbers(run(spec, tmp_path / "run")) == numbers(run(spec, tmp_path / "fresh"))


def test_a_network_trained_with_a_server_side_defense_is_loaded_with_its_parts(tmp_path: Path) -> None:
    spec = replace(GRID, states=("trained-with-defense",), defenses=("precode:size=4",), attacks=TINY.attacks)
    (first,) = run(spec, tmp_path)
    assert first.status == "done", first.error
    (tmp_path / "cells" / spec.cells()[0].name / "record.json").unlink()
    assert numbers(run(spec, tmp_path)) == numbers([first])


def test_a_chunk_of_no_victims_is_refused() -> None:
    with pytest.raises(SpecError, match="chunk must be at least 1, got 0"):
        Settings(chunk=0)


def test_private_images_are_drawn_as_the_spec_says() -> None:
    digits = data.load("digits")
    first = draw(replace(TINY, start=3, batch_size=2), digits)
    assert torch.equal(first.inputs.flatten(0, 1), digits.test.inputs(range(3, 7)))
    from_training = draw(replace(TINY, split="train"), digits)
    assert torch.equal(from_training.inputs[:, 0], digits.train.inputs([0, 1]))
    random, again, other = (draw(replace(TINY, start=-1, seed=seed), digits).inputs for seed in (1, 1, 2))
    assert torch.equal(random, again)
    assert not torch.equal(random, other)


def test_in_float32_the_size_of_chunks_changes_draws_by_nothing_and_scores_by_little() -> None:
    victims, chunks = 64, (64, 32)
    batch = data.draw_victims(data.load("digits").test, victims=victims, batch_size=1)
    seen = observe(
        batch, build("lenet", input_shape=(1, 8, 8), num_classes=10), F.cross_entropy, knowledge=Knowledge.LABELS
    )
    streams = Streams(seed=0, purpose="attack").bind(victims)
    starts = ImageSpace.of(seen).start("normal", streams)
    for part in (slice(0, 32), slice(32, 64), slice(63, 64)):
        assert torch.equal(ImageSpace.of(seen.select(part)).start("normal", streams.select(part)), starts[part])

    attack = InvertingGradients(steps=100)
    guesses = [attack(seen, streams=streams, runtime=Runtime(precision="float32", chunk=chunk)) for chunk in chunks]
    scores = [float(PSNR()(guess.inputs, batch.inputs).mean()) for guess in guesses]
    assert scores[0] > 12
    assert abs(scores[0] - scores[1]) < 0.2


def killed_at_random_moments(start: Callable[[], Any], times: int) -> int:
    """Start a process and kill it, again and again; return how often it was killed before it was done."""
    moments = np.random.default_rng(0)
    for kills in range(times):
        process = start()
        process.join(float(moments.uniform(0.05, 0.3)))
        if not process.is_alive():
            return kills
        process.kill()
        process.join()
    return times


def run_alone(spec: AuditSpec, folder: Path) -> None:
    torch.set_num_threads(1)
    run(spec, folder)


@pytest.mark.slow
def test_killing_the_process_ten_times_and_resuming_gives_the_record_of_the_whole_run(tmp_path: Path) -> None:
    import multiprocessing

    attacks = ("inverting-gradients:steps=200", "dlg:steps=2")
    spec = replace(GRID, states=("untrained", "trained"), defenses=("none",), attacks=attacks)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["gradveil.grid", "sklearn.datasets"])

    def start() -> Any:
        process = context.Process(target=run_alone, args=(spec, tmp_path / "killed"))
        process.start()
        return process

    start_up = context.Process(target=torch.set_num_threads, args=(1,))
    start_up.start()
    start_up.join()
    assert killed_at_random_moments(start, 10) == 10
    run(spec, tmp_path / "killed")
    run(spec, tmp_path / "whole")
    assert kept(tmp_path / "killed", spec) == kept(tmp_path / "whole", spec)
    assert len(spec.cells()) == kept(tmp_path / "whole", spec).count('"status": "done"')
