"""The search: draw policies, score them in stacks, keep what passes and hides most."""

import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal, Self

import torch
import torch.nn.functional as F

from gradveil.data import Dataset, Split
from gradveil.engine import Progress, Runtime
from gradveil.engine.runtime import silent
from gradveil.errors import DataError, SpecError
from gradveil.models.training import Training
from gradveil.policies import result
from gradveil.policies._accuracy import AccuracyScorer
from gradveil.policies._material import Material
from gradveil.policies._networks import SEMI_TRAINING, Networks, make_networks
from gradveil.policies._privacy import PrivacyScorer
from gradveil.policies._proposals import evolved_policies, given_policies, random_policies
from gradveil.policies.result import ScoredPolicy, SearchRecord, build_hybrid, ranked
from gradveil.policies.scores import Score
from gradveil.policies.settings import SearchSettings
from gradveil.record import about_this_run
from gradveil.streams import Streams
from gradveil.transforms import NO_POLICY, Hybrid, Policy

Origin = Literal["given", "random", "evolved"]
Watch = Callable[[SearchRecord], None]
"""Called with the search so far after every stack of policies."""

_RESERVED = 100  # the first test images are for attacks, not for the search
_FIRST, _EVERY = 200, 5  # the published program's images: from 200 on, every fifth for the privacy score


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Scorers:
    """Both scores, ready for any policy."""

    privacy: PrivacyScorer
    accuracy: AccuracyScorer

    @classmethod
    def of(cls, networks: Networks, split: Split, settings: SearchSettings, *, runtime: Runtime) -> Self:
        """Take the images of a search from a split."""
        device = next(networks.untrained.parameters()).device

        def material(rows: Sequence[int], purpose: str) -> Material:
            return Material.of(
                split.inputs(rows).to(device),
                split.labels[torch.as_tensor(rows)].to(device),
                length=settings.length,
                crop_and_flip=settings.crop_and_flip,
                streams=Streams(seed=settings.seed, purpose=f"search/{purpose}"),
            )

        return cls(
            privacy=PrivacyScorer.of(
                networks.semi_trained,
                material(privacy_rows(len(split), settings.images), "privacy"),
                loss=F.cross_entropy,
                variant=settings.variant,
                intervals=settings.intervals,
                runtime=runtime,
            ),
            accuracy=AccuracyScorer.of(
                networks.untrained,
                material(accuracy_rows(len(split), settings.rounds, settings.round_size), "accuracy"),
                rounds=settings.rounds,
                variant=settings.variant,
                runtime=runtime,
            ),
        )

    def score(self, policies: Sequence[Policy], settings: SearchSettings, origin: Origin) -> list[ScoredPolicy]:
        """Score policies in one stack."""
        hybrids = [Hybrid((policy,)) for policy in policies]
        spread = [Score(values) for values in self.accuracy(hybrids)]
        scored = [
            ScoredPolicy(policy=str(p), accuracy=s.mean, accuracy_error=_finite(s.standard_error), origin=origin)
            for p, s in zip(policies, spread, strict=True)
        ]
        wanted = [i for i, entry in enumerate(scored) if _worth(entry, settings)]
        if wanted:
            for i, values in zip(wanted, self.privacy([hybrids[i] for i in wanted]), strict=True):
                area = Score(values)
                scored[i] = replace(scored[i], privacy=area.mean, privacy_error=_finite(area.standard_error))
        return scored


def search_policies(
    dataset: Dataset,
    model: str,
    *,
    settings: SearchSettings,
    folder: Path | None = None,
    device: torch.device | str = "cpu",
    training: Training = SEMI_TRAINING,
    runtime: Runtime | None = None,
    progress: Progress = silent,
    watch: Watch | None = None,
) -> SearchRecord:
    """Search for policies on a data set; an interrupted search in the same folder goes on where it was.

    Args:
        dataset: whose training images the semi-trained network learns, and on whose test images policies are scored.
        model: such as `resnet20-4`.
        settings: budget, scores, method.
        folder: keeps `search.json` and the networks; None keeps nothing.
        device: where to compute.
        training: of the semi-trained network.
        runtime: precision and chunk.
        progress: of training and of the search.
        watch: called after every stack of policies.
    """
    if len(dataset.test.labels.unique()) < 2:
        raise DataError(f"a search needs images of at least two classes, but {dataset.name} has one; add classes")
    place, runtime = torch.device(device), runtime or Runtime()
    spec = {
        "dataset": dataset.name,
        "model": model,
        "precision": runtime.precision,
        "training": asdict(training),
        "search": asdict(settings),
    }
    record = _resumed(folder, json.loads(json.dumps(spec)), settings)
    if record.status == "done":
        return record
    began = time.monotonic()
    networks = make_networks(
        dataset,
        model,
        seed=settings.seed,
        folder=folder / "models" if folder else None,
        device=place,
        training=training,
        progress=progress,
    )
    prepared = time.monotonic()
    scorers = Scorers.of(networks, dataset.test, settings, runtime=runtime)
    record = run_search(scorers, settings, record=record, folder=folder, progress=progress, watch=watch)
    seconds = {"networks": prepared - began, "search": time.monotonic() - prepared}
    record = replace(record, status="done", run=about_this_run(seconds=seconds, chunk=runtime.chunk or 0, device=place))
    if folder:
        result.write(record, folder)
    return record


def run_search(
    scorers: Scorers,
    settings: SearchSettings,
    *,
    record: SearchRecord,
    folder: Path | None = None,
    progress: Progress = silent,
    watch: Watch | None = None,
) -> SearchRecord:
    """Score policies until the budget is spent; what the record holds already is not scored again."""
    given = given_policies(settings)
    while True:
        drawn = [entry for entry in record.scored if entry.origin != "given"]
        budget = _budget(settings, drawn)
        progress("search", len(record.scored), budget + len(given))
        policies, origin = _next(settings, given, record.scored, drawn, budget)
        if not policies:
            return record
        scored = [*record.scored, *scorers.score(policies, settings, origin)]
        record = summarized(replace(record, scored=scored), top=settings.top)
        if folder:
            result.write(record, folder)
        if watch:
            watch(record)


def summarized(record: SearchRecord, *, top: int) -> SearchRecord:
    """Fill in the best, their hybrid and the share that passes."""
    best = ranked(record.scored, threshold=record.threshold)
    drawn = [entry for entry in record.scored if entry.origin != "given"]
    passed = sum(entry.accuracy >= record.threshold for entry in drawn) / max(len(drawn), 1)
    useful = [entry.policy for entry in best if entry.policy != str(NO_POLICY)]
    hybrid = str(build_hybrid(useful)) if useful else ""
    return replace(record, best=best[:top], hybrid=hybrid, passed=passed)


def privacy_rows(total: int, images: int) -> list[int]:
    """Choose test images for the privacy score: the published ones, or evenly spread in a small set.

    Example:
        >>> privacy_rows(10_000, 3), privacy_rows(120, 3)
        ([200, 205, 210], [30, 60, 90])
    """
    if _FIRST + _EVERY * images <= total:
        return list(range(_FIRST, _FIRST + _EVERY * images, _EVERY))
    first = min(_RESERVED, total // 4)
    count = min(images, total - first)
    return [first + i * (total - first) // count for i in range(count)]


def accuracy_rows(total: int, rounds: int, size: int) -> list[int]:
    """Choose test images for the accuracy score, round after round: the published ones, or smaller rounds.

    Example:
        >>> accuracy_rows(10_000, 10, 100)[:2], len(accuracy_rows(340, 10, 100))
        ([200, 201], 250)
    """
    if _FIRST + rounds * size <= total:
        return list(range(_FIRST, _FIRST + rounds * size))
    first = min(_RESERVED, total // 4)
    return list(range(first, first + rounds * min(size, (total - first) // rounds)))


def _next(
    settings: SearchSettings,
    given: tuple[Policy, ...],
    scored: Sequence[ScoredPolicy],
    drawn: Sequence[ScoredPolicy],
    budget: int,
) -> tuple[list[Policy], Origin]:
    """Choose the next stack: what is given first, then random policies, then, with evolution, those made of them."""
    done = {entry.policy for entry in scored}
    left = [policy for policy in given if str(policy) not in done]
    if left:
        return left[: settings.batch], "given"
    count = min(settings.batch, budget - len(drawn))
    if settings.method == "evolution" and len(drawn) >= settings.population and count > 0:
        return evolved_policies(settings, scored, count), "evolved"
    wanted = budget if settings.method == "random" else min(budget, settings.population)
    fresh = [p for p in random_policies(settings, wanted, exclude=given) if str(p) not in done]
    return fresh[: min(count, len(fresh))], "random"


def _budget(settings: SearchSettings, drawn: Sequence[ScoredPolicy]) -> int:
    """Return how many policies may be drawn in all, with the extensions that are due by now."""
    budget = settings.policies
    for _ in range(settings.extensions):
        passing = ranked(drawn[:budget], threshold=settings.kept_from)
        if len(drawn) >= budget and len(passing) < settings.top:
            budget += settings.policies
    return budget


def _resumed(folder: Path | None, spec: dict[str, object], settings: SearchSettings) -> SearchRecord:
    """Return the search of a folder, or a new one; refuse a folder that holds another one."""
    if folder and (folder / result.FILE).exists():
        found = result.read(folder)
        if found.spec != spec:
            raise SpecError(f"{folder} holds the search of another spec; name a new folder, or remove it")
        return found
    return SearchRecord(spec=spec, status="running", threshold=settings.kept_from, scored=[])


def _worth(entry: ScoredPolicy, settings: SearchSettings) -> bool:
    return not settings.skip_rejected or entry.accuracy >= settings.kept_from or entry.origin == "given"


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
