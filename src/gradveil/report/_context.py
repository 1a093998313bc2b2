"""What a page says about a record beside its scores: the threat model, the settings, the numbers to take away."""

import base64
import dataclasses
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gradveil.record import Record
from gradveil.report._falling_short import medians, stopped_short
from gradveil.report._words import KNOWLEDGE, cells, significant


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """One line of the threat model.

    Args:
        term: what it is about.
        values: (text, cells in words); the cells are empty where all agree.
    """

    term: str
    values: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Settings under one heading.

    Args:
        heading: such as run.
        settings: (name, value).
    """

    heading: str
    settings: tuple[tuple[str, str], ...]


def threat_facts(records: Sequence[Record]) -> list[Fact]:
    """Describe the adversary, with cells named where they differ; failed cells count only if none is done.

    Example:
        >>> [fact.values for fact in threat_facts([])]
        [(), (), (), (), (), (), ()]
    """
    say: dict[str, Callable[[Record], str]] = {
        "Adversary": _adversary,
        "Also knows": _knowledge,
        "Against the defense": _adaptation,
        "Case": _case,
        "Model": _model,
        "Mode": lambda r: f"{r.network.mode} mode",
        "Update": _update,
    }
    return [Fact(term=term, values=_grouped(records, words)) for term, words in say.items()]


def settings(record: Record) -> list[Group]:
    """List everything that is needed to run a cell again, and with which means it was run."""
    outcome, run = record.outcome, record.run
    groups = {
        "Spec": dict(_flat(record.spec)),
        "Attack": {"attack": record.attack, "defenses": " + ".join(record.defenses) or "none"} | _progress(record),
        "Numbers": {
            "precision": outcome.precision,
            "CUDA graph": _yes(outcome.captured),
            "chunk": f"{run.chunk} victims",
        }
        | ({"remarks": "; ".join(outcome.remarks)} if outcome.remarks else {}),
        "Run": {"date": run.date, "device": run.device} | {f"{s}, seconds": f"{t:g}" for s, t in run.seconds.items()},
        "Versions": dict(run.versions),
    }
    groups["Found out"] = _found_out(record)
    if outcome.search:
        groups["Tuning"] = _tuning(outcome.search)
    if record.network.training:
        groups["Training of the checkpoint"] = dict(_flat(_short(record.network.training)))
    if record.network.accuracy_of:
        groups["Attack"]["model accuracy of"] = record.network.accuracy_of
    if record.ratios:
        groups["Numbers"]["‖gradient‖ / ‖perturbation‖"] = _ratios(record)
    return [Group(heading=h, settings=tuple((k, str(v)) for k, v in named.items())) for h, named in groups.items()]


def numbers(records: Sequence[Record], *, redact: bool) -> str:
    """Write records as strict JSON: nulls as means, no infinities, and no labels if redacted."""
    return json.dumps({"cells": [_bare(record, redact) for record in records]}, indent=1, allow_nan=False)


def download(text: str, kind: str) -> str:
    """Make a link that holds a text.

    Example:
        >>> download("a,b", "text/csv")
        'data:text/csv;charset=utf-8;base64,YSxi'
    """
    return f"data:{kind};charset=utf-8;base64,{base64.b64encode(text.encode()).decode()}"


def _grouped(records: Sequence[Record], words: Callable[[Record], str]) -> tuple[tuple[str, str], ...]:
    none_done = all(record.status == "failed" for record in records)
    found: dict[str, list[int]] = {}
    for position, record in enumerate(records, start=1):
        if record.status == "done" or none_done:
            found.setdefault(words(record), []).append(position)
    return tuple((text, cells(where, len(records)) if len(found) > 1 else "") for text, where in found.items())


def _adversary(record: Record) -> str:
    acts = {
        "honest-but-curious": "honest-but-curious server: follows the protocol, and looks at what it receives",
        "malicious": "malicious server: may change the model it sends in order to learn more",
    }
    threat = record.threat
    return f"{acts.get(threat.server, threat.server)} (threat model {threat.letter})"


def _knowledge(record: Record) -> str:
    known = [KNOWLEDGE.get(name, name) for name in record.threat.knowledge]
    return "; ".join(known) or "nothing beyond the model and the shared update"


def _adaptation(record: Record) -> str:
    if not record.defenses:
        return "no defense in use"
    if record.threat.adaptive:
        return "adaptive: knows the defense and uses it"
    if "defenses" in record.threat.knowledge:
        return "knows the defense, but is not the attack that the defense names as the one to break it"
    return "standard: does not know of the defense"


def _case(record: Record) -> str:
    cases = {
        "diagnostic": "diagnostic: updates made for this audit, often under conditions that favour the adversary",
        "deployment": "deployment: updates recorded from a federated run",
    }
    return cases.get(record.threat.case, record.threat.case)


def _model(record: Record) -> str:
    network = record.network
    size = f", {network.parameters:,} parameters" if network.parameters else ""
    return f"{network.spec}, {network.state}{size}"


def _update(record: Record) -> str:
    if not record.labels:
        return "none was made"
    victims, size = len(record.labels), len(record.labels[0])
    images = "1 private image" if size == 1 else f"{size} private images"
    return f"batch size {size}: {images} behind each of {victims} updates" if victims > 1 else f"1 update of {images}"


def _progress(record: Record) -> dict[str, str]:
    outcome = record.outcome
    steps = sorted(set(outcome.steps))
    shown = f"{steps[0]} to {steps[-1]}" if len(steps) > 1 else "".join(map(str, steps))
    finite = [value for value in outcome.objective if math.isfinite(value)]
    median = f"{np.median(finite):.4g}" if finite else "–"
    words = {"steps": shown, "diverged": f"{sum(outcome.diverged)} victims", "final objective, median": median}
    return words | _explained(record)


def _explained(record: Record) -> dict[str, str]:
    """Say how well what was found explains the updates, and how well what the model saw does."""
    short, of = stopped_short(record.outcome), medians(record.outcome)
    if not of:
        return {}
    shown = f"median cosine {of['found']:.3f}, what the model saw {of['seen']:.3f}, grey {of['grey']:.3f}"
    stopped = {} if short is None else {"search stopped short": f"on {short} of {len(record.labels)} updates"}
    return {"explains the update": shown, **stopped}


def _found_out(record: Record) -> dict[str, str]:
    """Write what the attack learned beside the images, and what the auditor can prove, over all victims."""
    outcome = record.outcome
    found = {name: _spread(values) for name, values in outcome.details.items()}
    found |= {name: f"of shape {tuple(shape)}, not in the record" for name, shape in outcome.too_large.items()}
    found |= {f"{name} (certificate)": _spread(values) for name, values in outcome.certificate.items()}
    reasons = record.threat.reasons
    return found | {
        f"who knows {name}": f"{record.threat.informed.get(name) or 'nobody'}: {reasons[name]}" for name in reasons
    }


def _tuning(search: Mapping[str, Any]) -> dict[str, str]:
    """Write how settings were chosen: which won, on what, and every one that was tried."""
    said = {name: str(value) for name, value in search.items() if name != "trials"}
    tried = {}
    for trial in search.get("trials", []):
        psnr, found = float(trial["psnr"]), float(trial["identified"])
        tried[f"tried: {trial['setting']}"] = f"{psnr:.2f} dB, {100 * found:.0f} % found first"
    return said | tried


def _spread(values: Sequence[Any]) -> str:
    """Write numbers of all victims as their median and range."""
    flat = np.asarray(values, dtype=np.float64).reshape(-1)
    if not flat.size:
        return "–"
    low, middle, high = (significant(float(number)) for number in (flat.min(), np.median(flat), flat.max()))
    return f"median {middle}, {low} to {high}" if flat.size > 1 else middle


def _short(training: Mapping[str, Any]) -> dict[str, Any]:
    """Leave the epochs of a training to its own record."""
    return {name: value for name, value in training.items() if name != "history"}


def _ratios(record: Record) -> str:
    medians = sorted(float(np.median(values)) for values in record.ratios.values() if values)
    if not medians:
        return "–"
    return f"{medians[0]:.3g} to {medians[-1]:.3g} over {len(medians)} parameters, median {np.median(medians):.3g}"


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _flat(content: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Write nested settings as dotted names."""
    lines: list[tuple[str, str]] = []
    for key, value in content.items():
        if isinstance(value, Mapping):
            lines += _flat(value, f"{prefix}{key}.")
        else:
            lines.append((f"{prefix}{key}", json.dumps(value, ensure_ascii=False, default=str)))
    return lines


def _bare(record: Record, redact: bool) -> Any:
    content = dataclasses.asdict(record)
    for part in (*content["scores"].values(), *content["identification"].values()):
        part["nulls"] = {name: float(np.mean(values)) for name, values in part["nulls"].items() if values}
    if redact:
        content |= {"labels": [], "images": ""}
        content["outcome"] |= {"details": {}}
    return _finite(content)


def _finite(value: Any) -> Any:
    """Round to six digits, and write what is not finite as nothing, because JSON has no word for it."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    return value
