"""Trainings: the accuracy of networks trained on protected images, and feature extractors."""

import json
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gradveil import data, training_record
from gradveil.data import Dataset
from gradveil.defenses import Loda
from gradveil.engine import Runtime, normalized
from gradveil.errors import RecordError, SpecError
from gradveil.models import build
from gradveil.models.training import Pace, Training, TrainingError, train
from gradveil.obscuring import Study, mark_of, save_extractor, train_extractor
from gradveil.record import about_this_run
from gradveil.reproducing._kinds import Means, matches, slug
from gradveil.reproducing.measuring import Measurement
from gradveil.reproducing.plans import Part, Wanted
from gradveil.spec import build_defenses, spec_from
from gradveil.storage import TensorFolder, refuse_another, write_atomically
from gradveil.training_record import TrainingRecord

_DEFAULTS: dict[str, Any] = {
    "dataset": "digits", "model": "lenet", "model_seed": 0, "pool": "", "precision": "float32", "defenses": ["none"],
}  # fmt: skip
_NETWORK, _OBSCURED = "network.safetensors", "obscured/kept"
_PACE = Pace(test_every=10, save_every=30.0)


def run(part: Part, folder: Path, means: Means) -> None:
    """Train a network under every defense of the part's table `network`; LODA obscures the whole set first.

    A training that diverges is reported once the others are done.
    """
    table = {**_DEFAULTS, **part.table("network")}
    unknown = [name for name in table if name not in _DEFAULTS]
    if unknown:
        raise SpecError(f"[network] takes {', '.join(_DEFAULTS)}, got {unknown[0]}")
    dataset = data.load(table["dataset"], means.settings.data_dir)
    diverged: list[TrainingError] = []
    recipe = asdict(spec_from({"training": part.table("training")}).training)
    for defenses in table["defenses"]:
        file = training_record.beside(folder / slug(defenses) / _NETWORK)
        if file.exists():
            about = {"recipe": recipe, "model": table["model"], "dataset": table["dataset"]}
            refuse_another(file, {**about, "extractor": mark_of(build_defenses(defenses))})
        else:
            try:
                _train(part, table, defenses, dataset, folder / slug(defenses), means)
            except TrainingError as error:
                diverged.append(error)
    if diverged:
        raise diverged[0]


def run_extractor(part: Part, folder: Path, means: Means) -> None:
    """Train the extractor of the part's table `extractor`, or take one that was trained before."""
    table, file = (
        {"dataset": "digits", "model": "resnet18", **part.table("extractor")},
        folder / "extractor.safetensors",
    )
    if file.exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    known = means.checkpoint(part)
    if known is not None:
        if training_record.beside(known).exists():
            shutil.copyfile(training_record.beside(known), training_record.beside(file))
        write_atomically(file, known.read_bytes())  # last: what has an extractor is finished
        return
    trained = train_extractor(
        data.load(table["dataset"], means.settings.data_dir),
        architecture=table["model"],
        training=spec_from({"training": part.table("training")}).training,
        progress=means.settings.progress,
        store=TensorFolder(folder / "unfinished"),
        pace=_PACE,
        device=means.settings.place(),
    )
    made = about_this_run(seconds={"training": trained.seconds}, chunk=0, device=means.settings.place())
    about = {**trained.about, "run": asdict(made)}
    write_atomically(training_record.beside(file), json.dumps(about, indent=1).encode())
    save_extractor(trained, file)
    TensorFolder(folder / "unfinished").clear()


def measure(folder: Path, wanted: Wanted) -> Measurement | None:
    """Read the accuracy off the record of the training that is meant."""
    if wanted.take != "accuracy":
        raise SpecError(f"a training gives an accuracy, not '{wanted.take}'")
    for file in sorted(folder.glob("*/network.json")):
        made = _read(file)
        if matches({"defenses": made.defenses}, wanted) and made.accuracy is not None:
            return Measurement(
                value=made.accuracy, interval=None, records=(file,), seed=made.seed, device=made.device, date=made.date
            )
    return None


def _read(file: Path) -> TrainingRecord:
    """Read the record of a training; its checkpoint need not lie beside it."""
    try:
        return TrainingRecord(**json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise RecordError(f"{file} is not the record of a training ({error}); remove it and run again") from error


def _train(part: Part, table: dict[str, Any], words: str, dataset: Dataset, folder: Path, means: Means) -> None:
    """Train one network and keep it with its record."""
    training = spec_from({"training": part.table("training")}).training
    defenses, place = build_defenses(words), means.settings.place()
    obscuring = [defense for defense in defenses if isinstance(defense, Loda)]
    seen, left = dataset.train, [defense for defense in defenses if not isinstance(defense, Loda)]
    if obscuring:
        seen = _study(table, obscuring[0], dataset, training, folder, means).obscured()
    plain = build(
        table["model"], input_shape=dataset.input_shape, num_classes=dataset.num_classes, seed=table["model_seed"]
    )
    store = TensorFolder(folder / "unfinished")
    done = train(
        normalized(plain, dataset.mean, dataset.std),
        seen,
        training=training,
        defenses=left,
        test=dataset.test,
        progress=means.settings.progress,
        store=store,
        pace=_PACE,
        device=place,
    )
    training_record.keep(
        done,
        folder / _NETWORK,
        model=table["model"],
        dataset=table["dataset"],
        loaded=dataset,
        defenses=words,
        training=training,
        extractor=mark_of(defenses),
    )
    store.clear()


def _study(
    table: dict[str, Any], defense: Loda, dataset: Dataset, training: Training, folder: Path, means: Means
) -> Study:
    """Say how the private set is obscured; stacks that `gradveil obscure images RUN/obscured` made are taken over."""
    settings = means.settings
    pool = data.load(table["pool"], settings.data_dir).train.inputs() if table["pool"] else None
    store = TensorFolder(folder.parents[1] / _OBSCURED)
    runtime = Runtime(precision=table["precision"], store=store, progress=settings.progress, name="obscuring")
    return Study(
        private=dataset, defense=defense, pool=pool, training=training, runtime=runtime, device=settings.place()
    )
