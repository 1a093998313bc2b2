"""Decodings: encoded images recovered from gradients, and what a second stage makes of many of them."""

import json
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch.nn.functional as F
from torch import Tensor

from gradveil import data
from gradveil._encoded import EncodedSet, encode, known_encodings, recover
from gradveil._scoring import numbers
from gradveil.attacks import Decoder, Encodings, attacks, decoders
from gradveil.client import Client
from gradveil.data import Dataset, Split
from gradveil.decoding import in_order
from gradveil.defenses import Loda
from gradveil.engine import Runtime, normalized
from gradveil.errors import DataError, RecordError, SpecError
from gradveil.metrics import PSNR, SSIM, Metric, correlation, draw_decoys, identify
from gradveil.models import build as build_model
from gradveil.obscuring import mark_of
from gradveil.record import Run, about_this_run
from gradveil.reproducing._kinds import Means, matches, slug
from gradveil.reproducing.measuring import Measurement, of_mean, of_shares
from gradveil.reproducing.plans import Part, Wanted
from gradveil.spec import build, build_defenses
from gradveil.storage import TensorFolder, content_hash, refuse_another, write_atomically
from gradveil.streams import Streams
from gradveil.types import Auxiliary, Knowledge

FILE = "decoding.json"
_METRICS: dict[str, Metric] = {"psnr": PSNR(), "ssim": SSIM()}
_DEFAULTS: dict[str, Any] = {
    "dataset": "digits", "split": "test", "images": 10, "model": "lenet", "model_seed": 0, "rounds": 1, "pool": "",
    "public_images": 200, "attack": "inverting-gradients", "decoders": [], "defenses": [], "seed": 0,
    "precision": "tf32", "decoys": 1000,
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodingRecord:
    """What an adversary recovered of encoded images, and decoded from that.

    Args:
        spec: everything that is needed to run it again.
        defenses: that encoded the images.
        seed: of all randomness.
        recovered: scores of the images recovered from gradients, each against the private image that weighs most in
            it, by metric; one per encoding. Empty where decoders were given the true encodings. `first` is 1 where
            the private image correlates with it more than every decoy does, and 0 elsewhere.
        decoded: scores of the decoded images against the private ones, by decoder and metric.
        oracles: decoders that were told what no adversary knows.
        failures: why a decoder gave nothing, by decoder.
        run: date, timings, device, versions.
        extractor: hash of the weights of LODA's extractor; empty without one.
    """

    spec: dict[str, Any]
    defenses: str
    seed: int
    recovered: dict[str, list[float]]
    decoded: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    oracles: list[str] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)
    run: Run
    extractor: str = ""


def run(part: Part, folder: Path, means: Means) -> None:
    """Recover and decode what every defense of the part's table `decoding` encodes.

    An empty `attack` gives the `decoders` the true encodings; all of them work on the same ones.
    """
    table = {**_DEFAULTS, **part.table("decoding")}
    unknown = [name for name in table if name not in _DEFAULTS]
    if unknown:
        raise SpecError(f"[decoding] takes {', '.join(_DEFAULTS)}, got {unknown[0]}")
    dataset = data.load(table["dataset"], means.settings.data_dir)
    for defenses in table["defenses"]:
        spec, place = {**table, "defenses": [defenses]}, folder / slug(defenses)
        if (place / FILE).exists():
            refuse_another(place / FILE, _about(spec, defenses))
            continue
        made = _decode(spec, defenses, dataset, place, means)
        write_atomically(place / FILE, json.dumps(asdict(made), indent=1, allow_nan=False).encode())
        TensorFolder(place / "unfinished").clear()


def _about(spec: dict[str, Any], defenses: str) -> dict[str, Any]:
    """Return what a record, and what an interrupted run has left, belong to."""
    return {"spec": spec, "extractor": mark_of(build_defenses(defenses))}


def measure(folder: Path, wanted: Wanted) -> Measurement | None:
    """Read `psnr.recovered.mean`, `psnr.decoded.max` and the like off the record that is meant.

    Where there are several decoders, the field `decoder` says which one is meant.
    """
    for file in sorted(folder.glob(f"*/{FILE}")):
        made = read(file)
        found = next((one for one in _stages(made, wanted) if matches(one.fields, wanted)), None)
        if found is None:
            continue
        values, statistic = found.values, wanted.take.rpartition(".")[2]
        interval = of_shares if wanted.take.startswith("first.") else of_mean
        summaries = {"mean": float(np.mean(values)), "max": max(values), "std": _deviation(values)}
        return Measurement(
            value=summaries[statistic],
            interval=interval(values) if statistic == "mean" else None,
            records=(file,),
            seed=made.seed,
            device=made.run.device,
            date=made.run.date,
        )
    return None


@dataclass(frozen=True, slots=True)
class _Stage:
    """Scores of one stage of a record, and what it is called."""

    fields: dict[str, str]
    values: list[float]


def _stages(made: DecodingRecord, wanted: Wanted) -> list[_Stage]:
    metric, stage, _ = wanted.take.split(".")
    if stage == "recovered":
        return [_Stage({"defenses": made.defenses}, made.recovered[metric])] if made.recovered else []
    return [
        _Stage({"defenses": made.defenses, "decoder": decoder}, scores[metric])
        for decoder, scores in made.decoded.items()
    ]


def read(file: Path) -> DecodingRecord:
    """Read the record of a decoding."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        return DecodingRecord(**{**content, "run": Run(**content["run"])})
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise RecordError(f"{file} is not the record of a decoding ({error}); remove it and run again") from error


def _deviation(values: list[float]) -> float:
    return float(np.std(values, ddof=1)) if len(values) > 1 else 0.0


def _decode(spec: dict[str, Any], defenses: str, dataset: Dataset, place: Path, means: Means) -> DecodingRecord:
    settings, began = means.settings, time.monotonic()
    runtime = Runtime(
        precision=spec["precision"],
        chunk=settings.chunk,
        progress=settings.progress,
        store=TensorFolder(place / "unfinished", content_hash(json.dumps(_about(spec, defenses)))),
    )
    client, made, encodings = _encoded(spec, defenses, dataset, means)
    judge = _Judge(made, _decoys(spec, dataset).to(made.batch.inputs))
    with runtime.numerics():
        if spec["attack"]:
            attack = build(attacks, spec["attack"])
            encodings = recover(made, encodings, client, attack, seed=spec["seed"], runtime=runtime)
        recovered_in = time.monotonic() - began
        decoded, failures = _second_stage(spec, encodings, judge, runtime)
    seconds = {"recover": recovered_in, "all": time.monotonic() - began}
    return DecodingRecord(
        spec=spec,
        defenses=defenses,
        seed=spec["seed"],
        recovered=judge.recovered(encodings) if spec["attack"] else {},
        decoded=decoded,
        oracles=[text for text in spec["decoders"] if build(decoders, text).oracle],
        failures=failures,
        run=about_this_run(seconds=seconds, chunk=settings.chunk or 0, device=settings.place()),
        extractor=mark_of(client.data_defenses),
    )


def _encoded(
    spec: dict[str, Any], defenses: str, dataset: Dataset, means: Means
) -> tuple[Client, "EncodedSet", Encodings]:
    """Let one client encode its images, no two of one class while classes last, and say what the adversary has."""
    place, split = means.settings.place(), dataset.test if spec["split"] == "test" else dataset.train
    distinct = spec["images"] <= dataset.num_classes
    batch = data.draw_victims(split, victims=1, batch_size=spec["images"], distinct_labels=distinct).to(place)
    public = data.load(spec["pool"], means.settings.data_dir).train if spec["pool"] else _other_split(spec, dataset)
    other = public.inputs(range(min(spec["public_images"], len(public)))).to(place)
    plain = build_model(
        spec["model"], input_shape=dataset.input_shape, num_classes=dataset.num_classes, seed=spec["model_seed"]
    )
    model, protections = normalized(plain, dataset.mean, dataset.std).to(place).eval(), build_defenses(defenses)
    pool = public.inputs().to(place) if spec["pool"] else None
    client = Client(model=model, loss=F.cross_entropy, defenses=protections, pool=pool)
    made = encode(batch, client, rounds=spec["rounds"], seed=spec["seed"])
    obscuring = [defense for defense in protections if isinstance(defense, Loda)]
    extractor = obscuring[0].features(batch.inputs[0]) if obscuring else None
    knowledge = Knowledge.LABELS | Knowledge.AUXILIARY | Knowledge.ENCODING
    auxiliary = Auxiliary(inputs=other, extractor=extractor)
    return client, made, known_encodings(made, knowledge=knowledge, auxiliary=auxiliary)


def _second_stage(
    spec: dict[str, Any], encodings: Encodings, judge: "_Judge", runtime: Runtime
) -> tuple[dict[str, dict[str, list[float]]], dict[str, str]]:
    """Return scores by decoder, and why a decoder gave none: noise need not fall into as many clusters as images."""
    decoded, failures = {}, {}
    for text in spec["decoders"]:
        try:
            images = _images(text, encodings, seed=spec["seed"], runtime=runtime)
            decoded[text] = judge.decoded(images, build(decoders, text))
        except DataError as error:
            failures[text] = str(error)
    return decoded, failures


def _images(text: str, encodings: Encodings, *, seed: int, runtime: Runtime) -> Tensor:
    """Decode, or take what an interrupted run had decoded before."""
    store, name = runtime.store, f"decoded-{slug(text)}"
    kept = store.load(name) if store else None
    if kept:
        return kept["images"].to(encodings.images)
    decoder, streams = build(decoders, text), Streams(seed=seed, purpose="attack")
    found = decoder(encodings, streams=streams, runtime=runtime.named(f"decode-{slug(text)}"))
    if store:
        store.save(name, {"images": found.images})
    return found.images


@dataclass(frozen=True, slots=True)
class _Judge:
    """Compares images with the private ones of one client, among (N, C, H, W) decoys."""

    made: EncodedSet
    decoys: Tensor

    def recovered(self, encodings: Encodings) -> dict[str, list[float]]:
        """Score every recovered encoding against the private image that weighs most in it."""
        seen = self.made.protected
        heaviest = seen.origin.gather(2, seen.weights.argmax(2, keepdim=True)).squeeze(2)
        return self._scores(encodings.images.clamp(0, 1), self.made.batch.inputs[0, heaviest[0]][None])

    def decoded(self, images: Tensor, decoder: Decoder) -> dict[str, list[float]]:
        """Score decoded images, in the order of the private ones, against them."""
        truth = self.made.batch.inputs
        return self._scores(in_order(images, truth, decoder=decoder), truth)

    def _scores(self, guess: Tensor, truth: Tensor) -> dict[str, list[float]]:
        found = {name: numbers(metric(guess, truth))[0] for name, metric in _METRICS.items()}
        return {**found, "first": numbers((identify(guess, truth, self.decoys, view=correlation) == 0).float())[0]}


def _decoys(spec: dict[str, Any], dataset: Dataset) -> Tensor:
    """Return images of the same data set that are nobody's."""
    other = _other_split(spec, dataset).inputs()
    return draw_decoys(other, count=spec["decoys"], streams=Streams(seed=spec["seed"], purpose="null"))


def _other_split(spec: dict[str, Any], dataset: Dataset) -> Split:
    return dataset.train if spec["split"] == "test" else dataset.test
