"""How far an adversary stays from what is private, victim by victim: from the record of an audit and its pictures."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from gradveil.metrics import membership_by_classifier, trace
from gradveil.record import Record
from gradveil.storage import write_atomically
from gradveil.streams import Streams

MEASURES: Mapping[str, str] = {
    "reconstruction": "rMSE of the reconstruction",
    "tracing": "share of reconstructed images traced to a wrong participant",
    "membership": "share of labels that the attack got wrong",
    "reconstruction-capped": "rMSE, at most 1: a black picture hides everything",
    "tracing-all": "share of all queries traced to a wrong participant",
    "membership-by-classifier": "share of reconstructions that a plain network puts into a wrong class",
}
"""Distances by name: the three of the paper, and what each is beside its other possible reading."""

Distances: TypeAlias = dict[str, list[float]]
"""One number per victim by measure; for `tracing-all` one per participant."""

_FILE = "distances.json"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Judges:
    """What distances are taken with.

    Args:
        queries: (N, C, H, W) bytes, the images that participants may be asked about.
        participants: how many.
        most: queries at most.
        network: trained without defenses, to classify reconstructions; None for none.
        device: where to compute.
        seed: deals images to participants.
    """

    queries: Tensor
    participants: int
    most: int
    network: nn.Module | None
    device: torch.device
    seed: int


def distances_of(record: Record, images: Mapping[str, npt.NDArray[np.uint8]], *, judges: Judges) -> Distances:
    """Measure one attacked cell in every way that its record allows.

    Membership is missing where labels were granted or not guessed; tracing, and membership by a network, where the
    pictures are.

    Args:
        record: of a finished cell, with scores by `rmse`.
        images: arrays `private` and `guess`, (V, B, C, H, W) bytes, in the same order; may be empty.
        judges: participants and network.
    """
    errors = np.asarray(record.scores["rmse"].private, dtype=np.float64)
    found: Distances = {
        "reconstruction": errors.mean(1).tolist(),
        "reconstruction-capped": errors.clip(max=1).mean(1).tolist(),
    }
    if record.outcome.label_accuracy:
        found["membership"] = [1 - share for share in record.outcome.label_accuracy]
    if images:
        guess, truth = (torch.from_numpy(images[name]).to(judges.device) for name in ("guess", "private"))
        found |= _traced(guess, truth, judges)
        if judges.network is not None:
            labels = torch.tensor(record.labels, device=judges.device)
            wrong = membership_by_classifier(guess / 255, truth / 255, labels, network=judges.network)
            found["membership-by-classifier"] = wrong.double().tolist()
    return {name: [round(value, 6) for value in values] for name, values in found.items()}


def null_distances(record: Record, *, participants: int) -> dict[str, float]:
    """Return the distances of an adversary who knows nothing: the better of two constant pictures, and bare guessing.

    Args:
        record: of a finished cell.
        participants: how many.
    """
    nulls = record.scores["rmse"].nulls
    constant = [np.asarray(nulls[name]) for name in ("grey", "mean-image") if nulls.get(name)]
    guessing = {"tracing": 1 - 1 / participants, "tracing-all": 1 - 1 / participants}
    if record.classes:
        labels = 1 - 1 / len(record.classes)
        guessing |= {"membership": labels, "membership-by-classifier": labels}
    if not constant:
        return guessing
    plain, capped = (
        min(float(np.mean(each)) for each in some) for some in (constant, [c.clip(max=1) for c in constant])
    )
    return {"reconstruction": plain, "reconstruction-capped": capped, **guessing}


def perturbation_of(record: Record) -> list[float]:
    """Return ‖B‖ / ‖E‖ of each victim of a record; infinite where nothing was perturbed."""
    return median_ratios(record.ratios) or [math.inf] * len(record.labels)


def median_ratios(ratios: Mapping[str, list[float]]) -> list[float]:
    """Return the ratio of each victim's median layer, each placed by its bias, or by its weights where it has none.

    Args:
        ratios: ‖gradient‖ / ‖perturbation‖ by parameter, (V,) each.

    Example:
        >>> median_ratios({"a.weight": [9.0], "a.bias": [2.0], "b.weight": [4.0]})
        [3.0]
    """
    layers: dict[str, dict[str, npt.NDArray[np.float64]]] = {}
    for name, values in ratios.items():
        layer, _, parameter = name.rpartition(".")
        layers.setdefault(layer or name, {})[parameter] = np.asarray(values, dtype=np.float64)
    placed = np.median([_deciding(own) for own in layers.values()], axis=0).tolist() if layers else []
    return list(placed)


def kept_distances(folder: Path, record: Record) -> Distances | None:
    """Read what was measured beside a record before; None if nothing was, or it is of an older record."""
    try:
        content = json.loads((folder / _FILE).read_text(encoding="utf-8"))
        found: Distances = content["distances"]
        return found if content["date"] == record.run.date else None
    except (OSError, ValueError, TypeError, KeyError):
        return None


def keep_distances(found: Distances, folder: Path, record: Record) -> Distances:
    """Write what was measured beside its record, and return it."""
    text = json.dumps({"date": record.run.date, "distances": found}, allow_nan=False)
    write_atomically(folder / _FILE, text.encode())
    return found


def _deciding(own: Mapping[str, npt.NDArray[np.float64]]) -> npt.NDArray[np.float64]:
    """Return the ratios of a layer's bias where it was perturbed, else the smallest of its parameters."""
    smallest: npt.NDArray[np.float64] = np.min(list(own.values()), axis=0)
    bias = own.get("bias", smallest)
    return np.where(np.isfinite(bias), bias, smallest)


def _traced(guess: Tensor, truth: Tensor, judges: Judges) -> Distances:
    """Trace the private images, and further ones of the same data set, by the reconstructions of all participants."""
    victims, size = truth.shape[:2]
    owners = (torch.arange(victims) * judges.participants // victims).repeat_interleave(size)
    private = truth.flatten(0, 1)
    others = _others(private, judges)
    queries = torch.cat([private, others.to(private)])
    dealt = torch.arange(len(others)) % judges.participants
    found = trace(
        guess.flatten(0, 1) / 255,
        owners,
        queries / 255,
        torch.cat([owners, dealt]),
        made_of=torch.arange(len(private)),
    )
    wrong, holders = (~found.success).double().cpu(), torch.cat([owners, dealt])
    shares = [float(wrong[holders == one].mean()) for one in range(judges.participants)]
    return {"tracing": wrong[: len(private)].view(victims, size).mean(1).tolist(), "tracing-all": shares}


def _others(private: Tensor, judges: Judges) -> Tensor:
    """Draw images of the data set that are none of the private ones, in an order that the seed decides."""
    known = {image.numpy().tobytes() for image in private.cpu()}
    streams = Streams(seed=judges.seed, purpose="tracing").bind(1)
    order = streams.permutation("queries", len(judges.queries))[0].tolist()
    fresh = [place for place in order if judges.queries[place].numpy().tobytes() not in known]
    return judges.queries[fresh[: max(0, judges.most - len(private))]]
