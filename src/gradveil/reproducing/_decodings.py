"""Decodings: encoded images recovered from gradients, and what a second stage makes of many of them."""

import json
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch.nn.functional as F

from gradveil import data
from gradveil._encoded import EncodedSet, encode, known_encodings, recover
from gradveil._scoring import numbers
from gradveil.attacks import Encodings, attacks, decoders
from gradveil.auditing import Judging
from gradveil.client import Client
from gradveil.data import Dataset
from gradveil.decoding import judge_decoding
from gradveil.defenses import Loda
from gradveil.engine import Runtime, normalized
from gradveil.errors import RecordError, SpecError
from gradveil.metrics import PSNR, SSIM, Metric
from gradveil.models import build as build_model
from gradveil.record import Run, about_this_run
from gradveil.reproducing._kinds import Means, matches, slug
from gradveil.reproducing.measuring import Measurement, of_mean
from gradveil.reproducing.plans import Part, Wanted
from gradveil.spec import build, build_defenses
from gradveil.storage import TensorFolder, write_atomically
from gradveil.streams import Streams
from gradveil.types import Auxiliary, Knowledge

FILE = "decoding.json"
_METRICS: dict[str, Metric] = {"psnr": PSNR(), "ssim": SSIM()}
_DEFAULTS: dict[str, Any] = {
    "dataset": "digits", "split": "test", "images": 10, "model": "lenet", "model_seed": 0, "rounds": 1, "pool": "",
    "public_images": 200, "attack": "inverting-gradients", "decoder": "", "defenses": [], "seed": 0,
    "precision": "tf32",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodingRecord:
    """What an adversary recovered of encoded images, and decoded from that.

    Args:
        spec: everything that is needed to run it again.
        defenses: that encoded the images.
        seed: of all randomness.
        recovered: scores of the images recovered from gradients, each against the private image that weighs most in
            it, by metric; one per encoding.
        decoded: scores of the decoded images against the private ones, by metric; empty without a decoder.
        oracle: whether the decoder was told what no adversary knows.
        run: date, timings, device, versions.
    """

    spec: dict[str, Any]
    defenses: str
    seed: int
    recovered: dict[str, list[float]]
    decoded: dict[str, list[float]] = field(default_factory=dict)
    oracle: bool = False
    run: Run


def run(part: Part, folder: Path, means: Means) -> None:
    """Recover and decode what every defense of the part's table `decoding` encodes."""
    table = {**_DEFAULTS, **part.table("decoding")}
    unknown = [name for name in table if name not in _DEFAULTS]
    if unknown:
        raise SpecError(f"[decoding] takes {', '.join(_DEFAULTS)}, got {unknown[0]}")
    dataset = data.load(table["dataset"], means.settings.data_dir)
    for defenses in table["defenses"]:
        spec, place = {**table, "defenses": [defenses]}, folder / slug(defenses)
        if (place / FILE).exists():
            if read(place / FILE).spec != spec:
                raise SpecError(f"{place} holds another spec; name a new folder with --out, or remove it")
            continue
        made = _decode(spec, defenses, dataset, place, means)
        write_atomically(place / FILE, json.dumps(asdict(made), indent=1, allow_nan=False).encode())
        TensorFolder(place / "unfinished").clear()


def measure(folder: Path, wanted: Wanted) -> Measurement | None:
    """Read `psnr.recovered.mean` or `psnr.decoded.max` and the like off the record that is meant."""
    metric, stage, statistic = wanted.take.split(".")
    for file in sorted(folder.glob(f"*/{FILE}")):
        made = read(file)
        if not matches({"defenses": made.defenses}, wanted):
            continue
        values = (made.recovered if stage == "recovered" else made.decoded)[metric]
        summaries = {"mean": float(np.mean(values)), "max": max(values), "std": _deviation(values)}
        return Measurement(
            value=summaries[statistic],
            interval=of_mean(values) if statistic == "mean" else None,
            records=(file,),
            seed=made.seed,
            device=made.run.device,
            date=made.run.date,
        )
    return None


def read(file: Path) -> DecodingRecord:
    """Read the record of a decoding."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        return DecodingRecord(**{**content, "run": Run(**content["run"])})
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise RecordError(f"{file} is not the record of a decoding ({error}); run it again") from error


def _deviation(values: list[float]) -> float:
    return float(np.std(values, ddof=1)) if len(values) > 1 else 0.0


def _decode(spec: dict[str, Any], defenses: str, dataset: Dataset, place: Path, means: Means) -> DecodingRecord:
    settings, began = means.settings, time.monotonic()
    runtime = Runtime(
        precision=spec["precision"],
        chunk=settings.chunk,
        progress=settings.progress,
        store=TensorFolder(place / "unfinished"),
    )
    client, made, encodings = _encoded(spec, defenses, dataset, means)
    attack = build(attacks, spec["attack"])
    with runtime.numerics():
        recovered = recover(made, encodings, client, attack, seed=spec["seed"], runtime=runtime)
        decoded, oracle = _second_stage(spec, made, recovered, runtime)
    seconds = {"all": time.monotonic() - began}
    return DecodingRecord(
        spec=spec,
        defenses=defenses,
        seed=spec["seed"],
        recovered=_against_heaviest(made, recovered),
        decoded=decoded,
        oracle=oracle,
        run=about_this_run(seconds=seconds, chunk=settings.chunk or 0, device=settings.place()),
    )


def _encoded(
    spec: dict[str, Any], defenses: str, dataset: Dataset, means: Means
) -> tuple[Client, "EncodedSet", Encodings]:
    """Let one client encode its images, no two of one class while classes last, and say what the adversary has."""
    place, split = means.settings.place(), dataset.test if spec["split"] == "test" else dataset.train
    distinct = spec["images"] <= dataset.num_classes
    batch = data.draw_victims(split, victims=1, batch_size=spec["images"], distinct_labels=distinct).to(place)
    public = data.load(spec["pool"], means.settings.data_dir) if spec["pool"] else dataset
    other = public.train.inputs(range(min(spec["public_images"], len(public.train)))).to(place)
    plain = build_model(
        spec["model"], input_shape=dataset.input_shape, num_classes=dataset.num_classes, seed=spec["model_seed"]
    )
    model, protections = normalized(plain, dataset.mean, dataset.std).to(place).eval(), build_defenses(defenses)
    pool = public.train.inputs().to(place) if spec["pool"] else None
    client = Client(model=model, loss=F.cross_entropy, defenses=protections, pool=pool)
    made = encode(batch, client, rounds=spec["rounds"], seed=spec["seed"])
    obscuring = [defense for defense in protections if isinstance(defense, Loda)]
    extractor = obscuring[0].features(batch.inputs[0]) if obscuring else None
    knowledge = Knowledge.LABELS | Knowledge.AUXILIARY | Knowledge.ENCODING
    auxiliary = Auxiliary(inputs=other, extractor=extractor)
    return client, made, known_encodings(made, knowledge=knowledge, auxiliary=auxiliary)


def _second_stage(
    spec: dict[str, Any], made: "EncodedSet", encodings: Encodings, runtime: Runtime
) -> tuple[dict[str, list[float]], bool]:
    if not spec["decoder"]:
        return {}, False
    decoder = build(decoders, spec["decoder"])
    streams = Streams(seed=spec["seed"], purpose="attack")
    decoding = decoder(encodings, streams=streams, runtime=runtime.named("decode"))
    judging = Judging(metrics=tuple(_METRICS.values()))
    judged = judge_decoding(made, encodings, decoder, decoding, judging=judging, seed=spec["seed"], runtime=runtime)
    return {name: judged.scores[name].private[0] for name in _METRICS}, decoder.oracle


def _against_heaviest(made: "EncodedSet", recovered: Encodings) -> dict[str, list[float]]:
    """Compare every recovered encoding with the private image that weighs most in it."""
    heaviest = made.protected.origin.gather(2, made.protected.weights.argmax(2, keepdim=True)).squeeze(2)
    truth, guess = made.batch.inputs[0, heaviest[0]][None], recovered.images.clamp(0, 1)
    return {name: numbers(metric(guess, truth))[0] for name, metric in _METRICS.items()}
