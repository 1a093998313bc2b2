"""From an audit to its record."""

import json
from dataclasses import asdict, replace
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from gradveil._networks import Prepared
from gradveil._regions import regions
from gradveil.attacks import ActiveAttack, attacks
from gradveil.auditing import Audit
from gradveil.data import Dataset
from gradveil.defenses import Defense
from gradveil.obscuring import mark_of
from gradveil.record import Network, Outcome, Record, Threat, about_this_run
from gradveil.spec import AuditSpec, Cell
from gradveil.types import Knowledge, Reconstruction, State

MOST = 32
"""Numbers that a record keeps of one detail of one victim; a picture, which redaction must not miss, holds more."""


def to_record(result: Audit, spec: AuditSpec, cell: Cell, prepared: Prepared, dataset: Dataset) -> Record:
    """Write an audit down."""
    guess, marks = result.guess, result.step.evidence.batch.sensitive
    return Record(
        spec=_spec(spec, cell),
        status="done",
        title=cell.title,
        attack=cell.attack,
        defenses=_defenses(cell),
        threat=_threat(result, spec, cell),
        network=_network(result, spec, cell, prepared),
        outcome=_outcome(result),
        scores=dict(result.scores),
        identification=dict(result.identification),
        labels=result.labels.tolist(),
        classes=list(dataset.classes),
        sensitive=[] if marks is None else marks.tolist(),
        ratios={name: ratio.double().tolist() for name, ratio in result.ratios.items()},
        regions=dict(regions(result.ratios)),
        run=about_this_run(seconds=result.seconds, chunk=guess.chunk, device=result.step.observation.device),
        extractor=mark_of(cell.build_defenses()),
    )


def failed(spec: AuditSpec, cell: Cell, error: str, device: torch.device) -> Record:
    """Write down that a cell failed, and why."""
    return Record(
        spec=_spec(spec, cell),
        status="failed",
        error=error,
        title=cell.title,
        attack=cell.attack,
        defenses=_defenses(cell),
        threat=Threat(
            knowledge=list(spec.knowledge_of(cell).names()),
            adaptive=cell.adaptive,
            informed={found.defense: found.attack for found in spec.informed(cell.defenses)},
            reasons={found.defense: found.reason for found in spec.informed(cell.defenses)},
        ),
        network=Network(spec=cell.model, state=cell.state, mode=spec.mode, parameters=0),
        outcome=Outcome(objective=[], diverged=[], steps=[]),
        scores={},
        identification={},
        labels=[],
        run=about_this_run(seconds={}, chunk=0, device=device),
    )


def pictures(result: Audit) -> dict[str, npt.NDArray[np.uint8]]:
    """Return what the report shows, as bytes: private, protected (what the model saw) and guess."""
    shown = {"private": result.truth, "protected": result.step.evidence.protected.inputs, "guess": result.guess.inputs}
    return {name: images.clamp(0, 1).mul(255).round().byte().cpu().numpy() for name, images in shown.items()}


def _spec(spec: AuditSpec, cell: Cell) -> dict[str, Any]:
    return {**spec.to_dict(), "cell": asdict(cell)}


def _defenses(cell: Cell) -> list[str]:
    return [] if cell.defenses == "none" else cell.defenses.split(" + ")


def _threat(result: Audit, spec: AuditSpec, cell: Cell) -> Threat:
    observation = result.step.observation
    name, known = attacks.name_of(result.attack), observation.defenses or ()
    aware = [isinstance(d, Defense) and d.adversary.attack.partition(":")[0] == name for d in known]
    return Threat(
        knowledge=list(observation.knowledge.names()),
        server="malicious" if isinstance(result.attack, ActiveAttack) else "honest-but-curious",
        letter=result.attack.threat,
        adaptive=cell.adaptive or (bool(aware) and all(aware)),
        informed={found.defense: found.attack for found in spec.informed(cell.defenses)},
        reasons={found.defense: found.reason for found in spec.informed(cell.defenses)},
    )


def _network(result: Audit, spec: AuditSpec, cell: Cell, prepared: Prepared) -> Network:
    """Describe the network; the accuracy is that of the honest one, whatever a malicious server made of it."""
    network = prepared.describe(cell, spec)
    if not isinstance(result.attack, ActiveAttack):
        return network
    words = f"{network.accuracy_of}, before the malicious server changed it"
    return replace(network, accuracy_of=words)


def _outcome(result: Audit) -> Outcome:
    guess = result.guess
    small, large = _details(guess)
    return Outcome(
        objective=guess.objective.double().tolist(),
        diverged=guess.diverged.tolist(),
        steps=guess.steps.tolist(),
        label_accuracy=[] if result.label_accuracy is None else result.label_accuracy.double().tolist(),
        labels_granted=Knowledge.LABELS in result.step.observation.knowledge,
        precision=result.runtime.precision,
        captured=guess.captured,
        details=_plain(small),
        too_large=large,
        certificate=_plain(result.certificate),
        agreement={name: [round(v, 6) for v in values.tolist()] for name, values in result.agreement.items()},
        search=json.loads(json.dumps(dict(result.search))),
    )


def _details(guess: Reconstruction) -> tuple[State, dict[str, list[int]]]:
    """Tell what fits into a record from what does not, of which the shape is kept."""
    sizes = {name: prod(values.shape[1:]) for name, values in guess.details.items()}
    small = {name: values for name, values in guess.details.items() if sizes[name] <= MOST}
    return small, {name: list(values.shape[1:]) for name, values in guess.details.items() if sizes[name] > MOST}


def _plain(state: State) -> dict[str, list[Any]]:
    return {name: values.detach().double().cpu().tolist() for name, values in state.items()}
