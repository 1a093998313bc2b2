"""The saved result of one audit cell: the interface to tables, figures and reports."""

import dataclasses
import io
import json
import math
import platform
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from gradveil._version import VERSION
from gradveil.errors import RecordError
from gradveil.storage import write_atomically

FORMAT = 1
_IMAGES = "images.npz"
_NUMERIC = ("outcome", "scores", "identification", "ratios")
_WORDS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
Numbers: TypeAlias = list[list[float]]
"""One number per victim and sample, (V, B)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """A metric's scores.

    Args:
        private: (V, B) against the private images.
        protected: (V, B) against what the model saw.
        nulls: (n, B) of each null guess against the private images, by name; `random-gradient` may cover fewer victims.
        higher_is_better: direction.
        unit: such as dB.
        title: for people.
    """

    private: Numbers
    protected: Numbers
    nulls: dict[str, Numbers] = field(default_factory=dict)
    higher_is_better: bool = True
    unit: str = ""
    title: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identification:
    """Where the private image stands among decoys by distance to the reconstruction; rank 0 is the nearest.

    Args:
        ranks: (V, B).
        nulls: (n, B) ranks for each null guess, by name.
        decoys: how many there were.
    """

    ranks: Numbers
    nulls: dict[str, Numbers] = field(default_factory=dict)
    decoys: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Threat:
    """Who attacks.

    Args:
        knowledge: what the adversary was granted, by name.
        server: honest-but-curious or malicious.
        letter: of the threat model, A to H.
        case: diagnostic (made for this audit) or deployment (recorded from a federated run).
        adaptive: whether the attack knows and uses the defense.
        informed: by defense, the attack that was run beside the listed ones because it knows how to use the defense,
            as a spec string, empty for none; no entry where nobody asked.
        reasons: by defense, why it is that one, or why there is none.
    """

    knowledge: list[str]
    server: str = "honest-but-curious"
    letter: str = "B"
    case: Literal["diagnostic", "deployment"] = "diagnostic"
    adaptive: bool = False
    informed: dict[str, str] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """The network under attack.

    Args:
        spec: such as `resnet20-4`, or the class of a user's own model.
        state: untrained, trained, trained-with-defense, checkpoint or given.
        mode: eval or train.
        parameters: how many.
        accuracy: on clean test data, None if unknown.
        accuracy_of: what that accuracy belongs to, in words.
        training: what the record beside its checkpoint says of how it was trained; empty if there is none.
        sha256: of its checkpoint, which `state` knows by its path; empty without one.
    """

    spec: str
    state: str
    mode: str
    parameters: int
    accuracy: float | None = None
    accuracy_of: str = ""
    training: dict[str, Any] = field(default_factory=dict)
    sha256: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How the attack went, victim by victim, and with which means.

    Args:
        objective: (V,) final objective.
        diverged: (V,).
        steps: (V,) iterations.
        label_accuracy: (V,) share of labels guessed, empty if labels were granted or not guessed.
        labels_granted: whether the adversary was told the labels.
        precision: of the numbers.
        captured: whether the step ran as a CUDA graph.
        details: (V, ...) by name, what else the attack found out, such as a learned shift.
        too_large: shape (...) by name of details that hold too many numbers for a record.
        certificate: (V, ...) by name, what can be proved of the guesses by who has the plain update, as the auditor.
        agreement: (V,) cosine between the update and the one that images would give: those `found`, those `seen` by the
            model, and `grey` ones; empty where nobody compared them.
        search: how the settings of the attack were chosen on simulated victims; empty if they were not.
        remarks: what the model made the attack do, in words, such as to take the victims one after another.
    """

    objective: list[float]
    diverged: list[bool]
    steps: list[int]
    label_accuracy: list[float] = field(default_factory=list)
    labels_granted: bool = False
    precision: str = "tf32"
    captured: bool = False
    details: dict[str, list[Any]] = field(default_factory=dict)
    too_large: dict[str, list[int]] = field(default_factory=dict)
    certificate: dict[str, list[Any]] = field(default_factory=dict)
    agreement: dict[str, list[float]] = field(default_factory=dict)
    search: dict[str, Any] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What may differ between two runs of the same spec.

    Args:
        date: UTC, ISO format.
        seconds: by stage.
        chunk: victims attacked at once.
        device: name.
        versions: of packages.
    """

    date: str
    seconds: dict[str, float]
    chunk: int
    device: str
    versions: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One audit cell.

    Args:
        spec: everything that is needed to run the cell again, as in a spec file.
        status: done or failed.
        error: why it failed.
        title: of the cell, for people.
        attack: spec string.
        defenses: spec strings.
        threat: who attacks.
        network: what is attacked.
        outcome: how it went.
        scores: by metric name.
        identification: by view: pixels, blurred, ...
        labels: (V, B) class of each private image, and names of the classes.
        classes: their names.
        sensitive: (V, B), which private images the client marked; empty where nobody marked any.
        ratios: ||gradient|| / ||perturbation|| of the update, by parameter name, (V,) each; empty without perturbation.
        regions: green, white or red by layer, where the ratio of the median victim lies.
        run: date, timings, device, versions.
        extractor: hash of the weights of LODA's extractor, which `defenses` knows by its path; empty without one.
        images: file with arrays `private`, `protected`, `guess` beside the record; empty if redacted.
        format: of this file.
    """

    spec: dict[str, Any]
    status: Literal["done", "failed"]
    error: str = ""
    title: str
    attack: str
    defenses: list[str]
    threat: Threat
    network: Network
    outcome: Outcome
    scores: dict[str, Scores]
    identification: dict[str, Identification]
    labels: list[list[int]]
    classes: list[str] = field(default_factory=list)
    sensitive: list[list[bool]] = field(default_factory=list)
    ratios: dict[str, list[float]] = field(default_factory=dict)
    regions: dict[str, str] = field(default_factory=dict)
    run: Run
    extractor: str = ""
    images: str = ""
    format: int = FORMAT


def write(record: Record, folder: Path, *, images: Mapping[str, npt.NDArray[np.uint8]] | None = None) -> Record:
    """Write `record.json` beside its images (uint8 arrays (V, B, C, H, W)), and return the record as written.

    The record comes after its images, so that one that is there is whole; without images, older ones are removed.
    """
    if images:
        buffer = io.BytesIO()
        np.savez_compressed(buffer, allow_pickle=False, **dict(images))
        write_atomically(folder / _IMAGES, buffer.getvalue())
    record = dataclasses.replace(record, images=_IMAGES if images else "")
    text = json.dumps(_words_for_numbers(dataclasses.asdict(record)), indent=1, allow_nan=False)
    write_atomically(folder / "record.json", text.encode())
    if not images:
        (folder / _IMAGES).unlink(missing_ok=True)
    return record


def redact(record: Record, folder: Path) -> Record:
    """Remove the images beside a record, and return it without them."""
    return write(record, folder) if record.images or (folder / _IMAGES).exists() else record


def read(folder: Path) -> Record:
    """Read a record from its folder or file."""
    file = folder / "record.json" if folder.is_dir() else folder
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        found = content.get("format")
        if found != FORMAT:
            raise RecordError(f"{file} has format {found}, this version reads {FORMAT}; run the audit again")
        numbers = {name: _numbers_for_words(content[name]) for name in _NUMERIC}
        record: Record = _build(Record, {**content, **numbers})
    except FileNotFoundError as error:
        raise RecordError(f"there is no record at {file}; name a run folder of `gradveil audit`") from error
    except OSError as error:
        raise RecordError(f"{file} cannot be read ({error.strerror}); name a folder that you may read") from error
    except (json.JSONDecodeError, UnicodeDecodeError, TypeError, KeyError, AttributeError) as error:
        raise RecordError(f"{file} is not a record of GradVeil ({error}); run the audit again") from error
    return record


def read_images(folder: Path, record: Record) -> dict[str, npt.NDArray[np.uint8]]:
    """Read the images beside a record; empty if they were redacted."""
    if not record.images:
        return {}
    file = folder / Path(record.images).name
    try:
        with np.load(file, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise RecordError(f"the images of the record are missing or damaged at {file}; run the audit again") from error


def about_this_run(*, seconds: Mapping[str, float], chunk: int, device: torch.device) -> Run:
    """Describe the machine and the moment."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else f"CPU ({platform.machine()})"
    return Run(
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        seconds={stage: round(value, 3) for stage, value in seconds.items()},
        chunk=chunk,
        device=name,
        versions={
            "gradveil": VERSION,
            "python": platform.python_version(),
            **{name: _version(name) for name in ("torch", "numpy")},
        },
    )


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown"


def _words_for_numbers(value: Any) -> Any:
    """Write numbers that are not finite as `nan`, `inf` and `-inf`, because JSON has no numbers for them."""
    if isinstance(value, dict):
        return {key: _words_for_numbers(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_words_for_numbers(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _numbers_for_words(value: Any) -> Any:
    """Read them back, inside lists, where all numbers of a record are."""
    if isinstance(value, dict):
        return {key: item if isinstance(item, str) else _numbers_for_words(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_numbers_for_words(item) for item in value]
    return _WORDS.get(value, value) if isinstance(value, str) else value


def _build(kind: Any, content: Any) -> Any:
    """Rebuild nested dataclasses from plain values."""
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        known = {f.name: f for f in dataclasses.fields(kind)}
        return kind(
            **{name: _build(_NESTED.get((kind, name)), value) for name, value in content.items() if name in known}
        )
    if isinstance(kind, tuple):
        return {name: _build(kind[0], value) for name, value in content.items()}
    return content


_NESTED: dict[tuple[type, str], Any] = {
    (Record, "threat"): Threat,
    (Record, "network"): Network,
    (Record, "outcome"): Outcome,
    (Record, "run"): Run,
    (Record, "scores"): (Scores,),
    (Record, "identification"): (Identification,),
}
