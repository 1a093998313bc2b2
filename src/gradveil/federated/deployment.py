"""The audit of recorded updates: a deployment case, whose truth nobody here has."""

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gradveil import record
from gradveil.attacks import Attack, attacks
from gradveil.engine import Runtime, remarks_on
from gradveil.errors import GradVeilError, RecordError, SpecError
from gradveil.federated.aggregating import aggregate
from gradveil.federated.checking import Check, preflight
from gradveil.federated.granting import load_granted
from gradveil.federated.observing import as_gradient, ruled_out, to_observation
from gradveil.federated.recorder import About, Recorded, load_update
from gradveil.federated.replaying import replay_granted
from gradveil.record import Network, Outcome, Record, Threat, about_this_run
from gradveil.spec import build
from gradveil.storage import content_hash, write_atomically
from gradveil.streams import Streams
from gradveil.types import Knowledge, LossFn, Reconstruction


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedAudit:
    """What the audit of one recorded update gave.

    Args:
        name: of the file, or of the files that were added up.
        record: without scores, since nobody knows the truth here.
        checks: of the pre-flight.
        ruled_out: attacks that cannot be run on this recording, and why, by name.
        guess: what the attack made of it; None if it could not run, or had run into this folder before.
    """

    name: str
    record: Record
    checks: tuple[Check, ...]
    ruled_out: dict[str, str]
    guess: Reconstruction | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    """What is the same for all files of an audit."""

    attack: Attack
    model: nn.Module | None
    loss: LossFn | None
    about: About
    seed: int
    runtime: Runtime
    device: torch.device


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ran:
    """An attack that ran on one recording.

    Args:
        guess: what it made of it.
        granted: what the adversary knew.
        read: how the update was read, in words.
        remarks: what the model made it do, in words.
    """

    guess: Reconstruction
    granted: Knowledge
    read: str
    remarks: tuple[str, ...]


def audit_recorded(
    files: Sequence[Path | str],
    *,
    attack: Attack | str,
    out: Path | str,
    model: nn.Module | None = None,
    loss: LossFn | None = None,
    about: About | None = None,
    together: bool = False,
    granted: Path | str | None = None,
    seed: int = 0,
    runtime: Runtime | None = None,
    device: torch.device | str | None = None,
    redact: bool = False,
) -> list[RecordedAudit]:
    """Attack recorded updates, and write a run folder with records, pictures of the guesses and a report.

    The adversary has what the file holds: model, update, and the local training and running statistics where the
    recording knows them; never labels or data. What a file does not say rules attacks out, and the record says so. A
    file that cannot be attacked is a failed cell; the others go on. The same folder resumes, and holds nothing else by
    these names; with a model or loss of your own, which may have changed, all files are attacked again.

    Args:
        files: of `gradveil federate --record`, the `record` mod or the recording strategy.
        attack: the adversary.
        out: folder for `cells/NAME/record.json`, pre-flights and `report.html`.
        model: of the architecture, where the recording names none that GradVeil knows.
        loss: of outputs and labels, where the recording names none that GradVeil knows.
        about: what is known beside the files; what a file says itself wins.
        together: attack the mean of all files of each round, which is all that secure aggregation shows.
        granted: folder of what clients granted (the `witness` mod), under the names of the files: each is replayed
            before the attack, and the pre-flight says how far the update came out again.
        seed: of the attack.
        runtime: precision, chunk, progress.
        device: where to run.
        redact: keep no pictures.
    """
    from gradveil import report

    job = _Job(
        attack=build(attacks, attack) if isinstance(attack, str) else attack,
        model=model,
        loss=loss,
        about=about or About(),
        seed=seed,
        runtime=runtime or Runtime(),
        device=torch.device(device or "cpu"),
    )
    folder, cases = Path(out), _cases([Path(file) for file in files], about=job.about, together=together)
    before = _there(folder, cases, job)
    made = []
    for name, recorded in cases:
        result = _taken_over(name, recorded, before[name]) if name in before else _attacked(name, recorded, job)
        if granted is not None and not together:
            checks = (*result.checks, _replayed(recorded, Path(granted) / f"{name}.safetensors", job))
            result = replace(result, checks=checks)
        _write(result, folder / "cells" / name, redact=redact)
        made.append(result)
    report.build(folder, redact=redact)
    return made


def _cases(files: Sequence[Path], *, about: About, together: bool) -> list[tuple[str, Recorded]]:
    """Read the files, with what is known beside them; added up by round if only their sum is seen."""
    if not files:
        raise SpecError("an audit of recorded updates needs at least 1 file, got none")
    loaded = [load_update(file) for file in files]
    loaded = [replace(one, about=one.about.filled(about)) for one in loaded]
    if not together:
        names = [file.stem for file in files]
        twice = len(set(names)) < len(names)
        return [
            (f"{n}-{name}" if twice else name, one) for n, (name, one) in enumerate(zip(names, loaded, strict=True))
        ]
    rounds = sorted({one.about.round or 0 for one in loaded})
    groups = {number: [one for one in loaded if (one.about.round or 0) == number] for number in rounds}
    return [(f"round-{n}-of-{len(group)}-clients", aggregate(group)) for n, group in groups.items()]


def _there(folder: Path, cases: Sequence[tuple[str, Recorded]], job: _Job) -> dict[str, Record]:
    """Return the records that a folder holds of these very cases; it must hold nothing else in their place."""
    if (folder / "spec.toml").exists():
        raise SpecError(f"{folder} holds an audit of simulated clients; name a new folder with --out")
    found = {}
    for name, recorded in cases:
        cell = folder / "cells" / name
        try:
            there = record.read(cell)
        except RecordError:
            continue
        if there.status != "done":
            continue
        wanted = json.loads(json.dumps({**_settled(recorded, job), "attack": attacks.describe(job.attack)}))
        held = {**there.spec.get("recorded", {}), "attack": there.attack}
        other = [word for word, value in wanted.items() if held.get(word, value) != value]
        if other:
            raise SpecError(
                f"{cell} holds an audit with another {other[0]}; name a new folder with --out, or remove it"
            )
        found[name] = there
    return found if job.model is None and job.loss is None else {}


def _settled(recorded: Recorded, job: _Job) -> dict[str, Any]:
    """Return what decides what an attack finds in a recording."""
    parts = [
        (name, tensor) for part in (recorded.before, recorded.buffers, recorded.update) for name, tensor in part.items()
    ]
    digest = content_hash(*(piece for pair in parts for piece in pair))
    return {"about": asdict(recorded.about), "seed": job.seed, "precision": job.runtime.precision, "update": digest}


def _taken_over(name: str, recorded: Recorded, before: Record) -> RecordedAudit:
    checks, excluded = preflight(recorded, None), dict(ruled_out(recorded))
    return RecordedAudit(name=name, record=before, checks=checks, ruled_out=excluded, guess=None)


def _attacked(name: str, recorded: Recorded, job: _Job) -> RecordedAudit:
    checks, excluded = preflight(recorded, job.model), dict(ruled_out(recorded))
    began = time.monotonic()
    ran, error = None, ""
    try:
        reason = excluded.get(attacks.name_of(job.attack))
        if reason:
            raise RecordError(reason)
        ran = _run(recorded, job)
    except (GradVeilError, ValueError) as found:  # a file is a unit of its own: the others go on
        error = str(found)
    seconds = {"attack": time.monotonic() - began}
    made = _record(name, recorded, job, ran, error=error, seconds=seconds)
    guess = None if ran is None else ran.guess
    return RecordedAudit(name=name, record=made, checks=checks, ruled_out=excluded, guess=guess)


def _replayed(recorded: Recorded, file: Path, job: _Job) -> Check:
    """Train again on what the client granted, and compare."""
    if not file.exists():
        return Check("replay", "unknown", f"{file.name} was not granted, so that nothing can be replayed")
    try:
        found = replay_granted(recorded, load_granted(file), model=job.model, loss=job.loss)
    except (GradVeilError, ValueError) as error:
        return Check("replay", "unknown", str(error))
    words = f"residual {found.residual:.2g}" if found.passed else found.advice
    return Check("replay", "passed" if found.passed else "failed", words)


def _run(recorded: Recorded, job: _Job) -> _Ran:
    """Attack one recording; an attack that does not simulate local training reads the update as a gradient."""
    raw = Knowledge.LOCAL_TRAINING in job.attack.requires
    seen, read = (recorded, "as it was sent") if raw else as_gradient(recorded)
    granted = job.attack.requires | (Knowledge.BUFFERS if recorded.buffers_after else Knowledge.NOTHING)
    observation = to_observation(seen, model=job.model, loss=job.loss, knowledge=granted)
    moved = replace(
        observation,
        model=observation.model.to(job.device),
        update=tuple(tensor.to(job.device) for tensor in observation.update),
        buffers_after={n: t.to(job.device) for n, t in (observation.buffers_after or {}).items()} or None,
    )
    guess = job.attack(moved, streams=Streams(seed=job.seed, purpose="attack"), runtime=job.runtime)
    searched = bool((guess.steps > 1).any())  # and so it differentiated the model
    remarks = tuple(remarks_on(moved)) if searched else ()
    return _Ran(guess=guess, granted=granted, read=read, remarks=remarks)


def _record(
    name: str,
    recorded: Recorded,
    job: _Job,
    ran: _Ran | None,
    *,
    error: str,
    seconds: dict[str, float],
) -> Record:
    about, text = recorded.about, attacks.describe(job.attack)
    return Record(
        spec={
            "recorded": {
                "file": name,
                **_settled(recorded, job),
                "update-read": ran.read if ran else "",
            },
            "cell": {"attack": text, "defenses": about.defenses or "unknown"},
        },
        status="done" if ran else "failed",
        error=error,
        title=f"{name} · {text}",
        attack=text,
        defenses=about.defenses.split(" + ") if about.defenses else [],
        threat=Threat(knowledge=list(ran.granted.names()) if ran else [], letter=job.attack.threat, case="deployment"),
        network=Network(
            spec=about.model or _kind(job.model),
            state="recorded",
            mode=about.mode or "unknown",
            parameters=sum(tensor.numel() for tensor in recorded.before.values()),
        ),
        outcome=_outcome(ran, job.runtime),
        scores={},
        identification={},
        labels=[],
        run=about_this_run(seconds=seconds, chunk=ran.guess.chunk if ran else 0, device=job.device),
    )


def _outcome(ran: _Ran | None, runtime: Runtime) -> Outcome:
    if ran is None:
        return Outcome(objective=[], diverged=[], steps=[])
    guess = ran.guess
    return Outcome(
        objective=guess.objective.double().tolist(),
        diverged=guess.diverged.tolist(),
        steps=guess.steps.tolist(),
        precision=runtime.precision,
        captured=guess.captured,
        remarks=list(ran.remarks),
    )


def _write(result: RecordedAudit, folder: Path, *, redact: bool) -> None:
    taken_over = result.guess is None and result.record.status == "done"
    if taken_over and redact:
        record.redact(result.record, folder)
    elif not taken_over:
        shown = None if result.guess is None or redact else {"guess": _bytes(result.guess.inputs)}
        record.write(result.record, folder, images=shown)
    words: dict[str, Any] = {"checks": [asdict(check) for check in result.checks], "ruled out": result.ruled_out}
    write_atomically(folder / "preflight.json", json.dumps(words, indent=1).encode())


def _bytes(images: Tensor) -> np.ndarray[Any, np.dtype[np.uint8]]:
    made: np.ndarray[Any, np.dtype[np.uint8]] = images.clamp(0, 1).mul(255).round().byte().cpu().numpy()
    return made


def _kind(model: nn.Module | None) -> str:
    return "unknown" if model is None else type(model).__name__
