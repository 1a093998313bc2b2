"""The search: draw policies, score them in stacks, keep what passes and hides most."""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import torch

from gradveil.data import Dataset
from gradveil.engine import Progress, Runtime
from gradveil.engine.runtime import silent
from gradveil.errors import DataError, SpecError
from gradveil.models.training import Training
from gradveil.policies import result
from gradveil.policies._continuing import check_networks, differences, filled_in, next_to_inform, take_over
from gradveil.policies._networks import SEMI_TRAINING, known_as, make_networks
from gradveil.policies._proposals import evolved_policies, given_policies, random_policies
from gradveil.policies._scorers import Clock, Scorers
from gradveil.policies.result import Origin, ScoredPolicy, SearchRecord, build_hybrid, passing, ranked
from gradveil.policies.settings import SearchSettings
from gradveil.record import about_this_run
from gradveil.transforms import NO_POLICY, Policy

Watch = Callable[[SearchRecord], None]
"""Called with the search so far after every stack of policies."""


def search_policies(
    dataset: Dataset,
    model: str,
    *,
    settings: SearchSettings,
    folder: Path | None = None,
    networks: Path | None = None,
    device: torch.device | str = "cpu",
    training: Training = SEMI_TRAINING,
    runtime: Runtime | None = None,
    progress: Progress = silent,
    watch: Watch | None = None,
    earlier: SearchRecord | None = None,
) -> SearchRecord:
    """Search for policies on a data set; an interrupted search in the same folder goes on where it was.

    Args:
        dataset: whose training images the semi-trained network learns, and on whose test images policies are scored.
        model: such as `resnet20-4`.
        settings: budget, scores, method.
        folder: keeps `search.json` and the networks; None keeps nothing.
        networks: another folder for the networks, which searches share.
        device: where to compute.
        training: of the semi-trained network.
        runtime: precision and chunk.
        progress: of training and of the search.
        watch: called after every stack of policies.
        earlier: a search whose scores are taken over if the folder holds none; only what differs by choice, such as
            budget, threshold or adversary, may be another. Its networks must be in `networks`: a GPU does not train the
            same ones again.
    """
    if len(dataset.test.labels.unique()) < 2:
        raise DataError(f"a search needs images of at least two classes, but {dataset.name} has one; add classes")
    place, runtime = torch.device(device), runtime or Runtime()
    spec = {
        "dataset": known_as(dataset),
        "model": model,
        "precision": runtime.precision,
        "training": asdict(training),
        "search": asdict(settings),
    }
    record = _begun(folder, json.loads(json.dumps(spec)), settings, earlier, dataset.input_shape[0])
    if record.status == "done":
        return record
    clock, kept = Clock(dict(record.seconds)), networks or (folder / "models" if folder else None)
    with clock.stage("networks"):
        made = make_networks(
            dataset, model, seed=settings.seed, folder=kept, device=place, training=training, progress=progress
        )
    with clock.stage("preparation"):
        scorers = Scorers.of(made, dataset.test, settings, runtime=runtime, clock=clock)
        check_networks(scorers, record)
    record = replace(record, scored_with=scorers.fingerprint)
    record = run_search(scorers, settings, record=record, folder=folder, progress=progress, watch=watch)
    run = about_this_run(seconds=clock.seconds, chunk=runtime.chunk or 0, device=place)
    record = replace(record, status="done", seconds=run.seconds, run=run)
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
    """Score policies until the budget is spent; what the record holds already is not scored again.

    Before anything is drawn, an informed adversary looks at what an earlier search scored without one: the policies of
    a first look have to beat the best, and the children of evolution descend from them.
    """
    while scored := _step(scorers, settings, record.scored, progress):
        record = summarized(replace(record, scored=scored, seconds=dict(scorers.clock.seconds)), top=settings.top)
        if folder:
            result.write(record, folder)
        if watch:
            watch(record)
    return record


def summarized(record: SearchRecord, *, top: int) -> SearchRecord:
    """Fill in the best, their hybrid and the share that passes."""
    order = ranked(record.scored, threshold=record.threshold)
    best = [entry for entry in order if entry.policy != str(NO_POLICY)]
    drawn = [entry for entry in record.scored if entry.origin != "given"]
    passed = sum(entry.accuracy >= record.threshold for entry in drawn) / max(len(drawn), 1)
    hybrid = str(build_hybrid([entry.policy for entry in best])) if best else ""
    return replace(record, best=best[:top], hybrid=hybrid, passed=passed)


def _step(
    scorers: Scorers, settings: SearchSettings, scored: Sequence[ScoredPolicy], progress: Progress
) -> list[ScoredPolicy]:
    """Return what is scored after one more stack; nothing where no stack is left."""
    channels = scorers.privacy.starts.shape[1]
    stack = next_to_inform(scored, settings, channels=channels)
    if stack:
        progress("informed adversary", sum(entry.aware is not None for entry in scored), len(scored))
        return filled_in(scored, scorers.informed(stack))
    given = given_policies(settings, channels=channels)
    drawn = [entry for entry in scored if entry.origin != "given"]
    budget = _budget(settings, drawn)
    progress("search", len(scored), max(budget + len(given), len(scored)))
    policies, origin = _next(settings, given, scored, drawn, budget, channels)
    return [*scored, *scorers.score(policies, origin, scored)] if policies else []


def _next(
    settings: SearchSettings,
    given: tuple[Policy, ...],
    scored: Sequence[ScoredPolicy],
    drawn: Sequence[ScoredPolicy],
    budget: int,
    channels: int,
) -> tuple[list[Policy], Origin]:
    """Choose the next stack: what is given first, then random policies, then, with evolution, those made of them."""
    done = {entry.policy for entry in scored}
    left = [policy for policy in given if str(policy) not in done]
    if left:
        return left[: settings.batch], "given"
    if settings.method == "evolution" and len(drawn) >= settings.population:
        return evolved_policies(
            settings, scored, min(settings.batch, budget - len(drawn)), channels=channels
        ), "evolved"
    wanted = budget if settings.method == "random" else min(budget, settings.population)
    fresh = [p for p in random_policies(settings, wanted, exclude=given, channels=channels) if str(p) not in done]
    return fresh[: settings.batch], "random"


def _budget(settings: SearchSettings, drawn: Sequence[ScoredPolicy]) -> int:
    """Return how many policies may be drawn in all, with the extensions that are due by now."""
    budget = settings.policies
    for _ in range(settings.extensions):
        enough = len(passing(drawn[:budget], threshold=settings.kept_from)) >= settings.top
        if len(drawn) >= budget and not enough:
            budget += settings.policies
    return budget


def _begun(
    folder: Path | None,
    spec: dict[str, object],
    settings: SearchSettings,
    earlier: SearchRecord | None,
    channels: int,
) -> SearchRecord:
    """Return the search of a folder, or a new one; refuse a folder that holds another one."""
    if folder and (folder / result.FILE).exists():
        found = result.read(folder)
        if found.spec != spec:
            other = "; ".join(differences(spec, found.spec)) or "settings that there are not here"
            raise SpecError(f"{folder} holds the search of another spec: {other}; name a new folder, or remove it")
        return found
    record = SearchRecord(spec=spec, status="running", threshold=settings.kept_from, scored=[])
    return summarized(take_over(record, earlier, settings, channels=channels), top=settings.top) if earlier else record
