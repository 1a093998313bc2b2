"""The samples that a client marked as sensitive, without those that nobody promised to protect."""

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from gradveil.record import Identification, Numbers, Record, Scores


def marked_alone(record: Record) -> Record | None:
    """Take the marked samples out of a record, each as a victim of its own; None where all or none are marked.

    Example:
        >>> from gradveil.record import Network, Outcome, Run, Threat
        >>> about = {"threat": Threat(knowledge=[]), "network": Network(spec="", state="", mode="eval", parameters=1)}
        >>> run = Run(date="", seconds={}, chunk=1, device="", versions={})
        >>> outcome = Outcome(objective=[0.0], diverged=[False], steps=[1])
        >>> scores = {"psnr": Scores(private=[[30.0, 9.0]], protected=[[30.0, 9.0]])}
        >>> made = {"spec": {}, "status": "done", "title": "", "attack": "", "defenses": [], "identification": {}}
        >>> record = Record(**made, **about, outcome=outcome, scores=scores, labels=[[3, 4]], run=run)
        >>> marked_alone(replace(record, sensitive=[[False, True]])).scores["psnr"].private
        [[9.0]]
    """
    marks = _marks(record)
    if not marks.any() or marks.all():
        return None
    return replace(
        record,
        outcome=replace(record.outcome, label_accuracy=[], agreement={}),  # of whole updates
        scores={name: _of_scores(scores, marks) for name, scores in record.scores.items()},
        identification={view: _of_ranks(found, marks) for view, found in record.identification.items()},
        labels=[[int(label)] for label in np.asarray(record.labels)[marks]],
        spec={**record.spec, "client": {}},
        sensitive=[],
    )


def _marks(record: Record) -> npt.NDArray[np.bool_]:
    """Return (V, B) marks; records before they held them say in their spec how many end every batch."""
    client = record.spec.get("client")
    count = int(client.get("sensitive", 0)) if isinstance(client, dict) else 0
    if record.sensitive or not count or not record.labels:
        return np.asarray(record.sensitive, dtype=bool)
    places = np.arange(len(record.labels[0]))
    return np.tile(places >= len(places) - count, (len(record.labels), 1))


def _of_scores(scores: Scores, marks: npt.NDArray[np.bool_]) -> Scores:
    nulls = {name: _kept(values, marks) for name, values in scores.nulls.items()}
    return replace(scores, private=_kept(scores.private, marks), protected=_kept(scores.protected, marks), nulls=nulls)


def _of_ranks(found: Identification, marks: npt.NDArray[np.bool_]) -> Identification:
    nulls = {name: _kept(ranks, marks) for name, ranks in found.nulls.items()}
    return replace(found, ranks=_kept(found.ranks, marks), nulls=nulls)


def _kept(values: Numbers, marks: npt.NDArray[np.bool_]) -> Numbers:
    """Keep marked samples of (V, B), or of draws one after the other; none where samples are not the private ones."""
    found = np.asarray(values, dtype=np.float64)
    if found.shape[1:] != marks.shape[1:]:
        return []
    kept: Numbers = found[np.resize(marks, found.shape)][:, None].tolist()
    return kept
