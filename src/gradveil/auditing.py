"""The audit: step, attack, align, score. Here, and only here, the truth meets the guess."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from gradveil._agreement import agreement
from gradveil._encoded import in_known_range, in_unit, pixel_bounds
from gradveil._regions import ratios_of
from gradveil._scoring import Reference, identification, score
from gradveil._serving import Granted, Served, serve
from gradveil.attacks import Attack
from gradveil.client import Client, Step
from gradveil.defenses import Defense
from gradveil.engine import Runtime
from gradveil.metrics import PSNR, RMSE, SSIM, Metric, RegisteredPSNR, View, align, aligned_label_accuracy, arrange
from gradveil.record import Identification, Scores
from gradveil.streams import Streams
from gradveil.types import (
    Auxiliary,
    Batch,
    Gradients,
    Knowledge,
    LocalTraining,
    LossFn,
    Mode,
    Observation,
    Reconstruction,
    State,
)

_RANDOM = 1 << 32
STANDARD_METRICS: tuple[Metric, ...] = (PSNR(), SSIM(), RegisteredPSNR(), RMSE())


@dataclass(frozen=True, slots=True, kw_only=True)
class Judging:
    """How guesses are judged.

    Args:
        metrics: to score with.
        reference: images of the same data set, for decoys and null guesses; None judges without them.
        decoys: candidates beside the private image in identification.
        extractor: features to identify in, beside pixels, blurred pixels and correlation; None for none.
        null_victims: victims whose update is also replaced by a random one of the same norm.
        null_draws: other images of the class drawn per sample.
    """

    metrics: tuple[Metric, ...] = STANDARD_METRICS
    reference: Reference | None = None
    decoys: int = 1000
    extractor: View | None = None
    null_victims: int = 8
    null_draws: int = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """The result of an audit.

    Args:
        step: both sides of the wall.
        attack: that was run.
        guess: (V, B', ...) in the order of what the model saw.
        truth: (V, B', C, H, W) the private image behind each of them; of a mixture, the heaviest.
        labels: (V, B') their classes.
        scores: by metric.
        identification: by view.
        label_accuracy: (V,), None if labels were granted or not guessed.
        ratios: ||gradient|| / ||perturbation||, (V,) by parameter; empty if nothing was perturbed.
        certificate: (V, ...) by name, what the attack can state given the plain update, which it does not have.
        agreement: (V,), how well images explain the update: those `found`, those `seen` by the model, and `grey` ones;
            see `gradveil._agreement`.
        seconds: by stage.
        search: how the settings of the attack were chosen, if they were tuned; see `tuning.Search`.
        runtime: how it ran.
    """

    step: Step
    attack: Attack
    guess: Reconstruction
    truth: Tensor
    labels: Tensor
    scores: Mapping[str, Scores]
    identification: Mapping[str, Identification]
    label_accuracy: Tensor | None
    ratios: Mapping[str, Tensor]
    certificate: State
    seconds: Mapping[str, float]
    agreement: Mapping[str, Tensor] = field(default_factory=dict)
    search: Mapping[str, Any] = field(default_factory=dict)
    runtime: Runtime = field(default_factory=Runtime)


def audit(
    batch: Batch,
    model: nn.Module,
    loss: LossFn,
    *,
    attack: Attack,
    defenses: Sequence[Defense] = (),
    metrics: Sequence[Metric] = STANDARD_METRICS,
    knowledge: Knowledge = Knowledge.NOTHING,
    seed: int = 0,
    local: LocalTraining | None = None,
    mode: Mode = "eval",
    reference: Reference | None = None,
    extractor: View | None = None,
    auxiliary: Auxiliary | None = None,
    pool: Tensor | None = None,
    parameters: State | None = None,
    buffers: State | None = None,
    runtime: Runtime | None = None,
) -> Audit:
    """Let V clients share one protected update each, attack them, and score what came out.

    Args:
        batch: private data (V, B, C, H, W) in [0, 1] and labels.
        model: your own network; wrap it by `gradveil.normalized` if it was trained on standardized pixels.
        loss: of the outputs and labels of one client.
        attack: the adversary; a malicious server sends the clients its own changed copy of the model.
        defenses: in use at the clients.
        metrics: to score with.
        knowledge: granted to the adversary beyond the model and the update.
        seed: of all randomness.
        local: the clients' training; one plain gradient by default.
        mode: of batch norm while training.
        reference: images of the same data set, for identification and null guesses.
        extractor: features to identify in too, such as `metrics.features(network)`.
        auxiliary: public material for the adversary.
        pool: further images that a data defense may draw from.
        parameters: (V, *shape) weights by name, where the clients' models differ.
        buffers: (V, *shape) buffers by name, where they differ.
        runtime: precision, chunk, progress, checkpoints.

    Example:
        >>> from gradveil.attacks import DLG
        >>> model = nn.Sequential(nn.Flatten(), nn.Linear(16, 4), nn.Sigmoid(), nn.Linear(4, 3))
        >>> batch = Batch(torch.rand(2, 1, 1, 4, 4), torch.tensor([[0], [2]]))
        >>> audit(batch, model, nn.functional.cross_entropy, attack=DLG(steps=2)).guess.inputs.shape
        torch.Size([2, 1, 1, 4, 4])
    """
    training = local or LocalTraining()
    client = Client(model=model, loss=loss, defenses=tuple(defenses), local=training, mode=mode, pool=pool)
    granted = Granted(knowledge=knowledge, auxiliary=auxiliary)
    served = serve(batch, client, attack, granted=granted, seed=seed, parameters=parameters, buffers=buffers)
    judging = Judging(metrics=tuple(metrics), reference=reference, extractor=extractor)
    return attack_and_judge(served, attack, judging=judging, seed=seed, runtime=runtime or Runtime())


def attack_and_judge(served: Served, attack: Attack, *, judging: Judging, seed: int, runtime: Runtime) -> Audit:
    """Run an attack behind the wall, and bring the truth to what it guessed.

    Updates that hold no image are attacked in the same stack, which costs less than a run of their own; the time of the
    attack is that of both.
    """
    sample = served.step.evidence.batch.inputs[:1, :1]
    for metric in judging.metrics:
        metric(sample, sample)  # one that cannot score says so before the attack, not after
    began = time.monotonic()
    taken, nulls = served.step.observation, judging.null_victims if judging.reference else 0
    seen, in_pixels = in_known_range(_beside_random(taken, nulls, seed=seed))
    streams = Streams(seed=seed, purpose="attack", keys=_keys(taken.victims, seen.victims - taken.victims))
    found = in_pixels(attack(seen, streams=streams, runtime=runtime))
    guess, null = (found.select(some) for some in (slice(0, taken.victims), slice(taken.victims, None)))
    seconds = time.monotonic() - began
    result = judge_guess(served, attack, guess, null, judging=judging, seed=seed)
    began = time.monotonic()
    compared = {}
    if attack.whole:
        chunked = replace(runtime, chunk=guess.chunk or runtime.chunk)
        compared = _agreements(served.step, guess, result.guess, seed=seed, runtime=chunked)
    judged = result.seconds["judge"] + time.monotonic() - began
    return replace(
        result,
        runtime=runtime,
        agreement=compared,
        seconds={"client": served.seconds, "attack": seconds, "judge": judged},
    )


def _agreements(
    step: Step, guess: Reconstruction, arranged: Reconstruction, *, seed: int, runtime: Runtime
) -> dict[str, Tensor]:
    """Say how well what was found, what the model saw and grey explain the update; nothing where numbers differ.

    Of images that came without labels nobody knows the order: they explain what they do in the better of two, their own
    and that of what the model saw, into which they were `arranged`.
    """
    seen, observation = step.evidence.protected, step.observation
    images = _shown(guess)
    labels = next((some for some in (guess.labels, observation.labels) if some is not None), seen.labels)
    if images.shape != seen.inputs.shape or labels.shape[:2] != images.shape[:2]:
        return {}

    def explained(some: Tensor, labels: Tensor) -> Tensor:
        return agreement(observation, some.to(seen.inputs), labels, seed=seed, runtime=runtime)

    found = explained(images, labels)
    if guess.labels is None and images.shape[1] > 1:
        found = found.fmax(explained(_shown(arranged), seen.labels))
    grey = torch.full_like(seen.inputs, 0.5)
    return {"found": found, "seen": explained(seen.inputs, seen.labels), "grey": explained(grey, seen.labels)}


def _shown(guess: Reconstruction) -> Tensor:
    """Return what the guess says that the model saw."""
    return guess.inputs if guess.protected is None else guess.protected


def judge_guess(
    served: Served, attack: Attack, guess: Reconstruction, null: Reconstruction, *, judging: Judging, seed: int
) -> Audit:
    """Bring a guess into the order of what the model saw, and score it beside the null lines.

    Where a defense takes pixels out of [0, 1], what the model saw and the guess of it are compared on the range that
    they can have, scaled to [0, 1].

    Args:
        served: both sides of the wall.
        attack: that guessed.
        guess: of every victim.
        null: what the attack made of random updates in the place of those of the first victims; may be empty.
        judging: how to judge.
        seed: of decoys and null guesses.
    """
    began = time.monotonic()
    taken, evidence = served.step, served.step.evidence
    low, high = pixel_bounds(served.defenses, evidence.batch.inputs.shape[2])
    seen = in_unit(evidence.protected.inputs, low, high).clamp(0, 1)
    of_seen = in_unit(_shown(guess), low, high)
    order = align(of_seen, seen)
    of_seen, guess = arrange(of_seen, order), _arranged(guess, order)
    heaviest = evidence.protected.origin.gather(2, evidence.protected.weights.argmax(2, keepdim=True)).squeeze(2)
    rows = torch.arange(len(seen), device=seen.device)[:, None]
    truth, labels = evidence.batch.inputs[rows, heaviest], _classes(evidence.batch.labels)[rows, heaviest]

    streams = Streams(seed=seed, purpose="null").bind(len(seen))
    nulls = (
        judging.reference.null_guesses(truth, labels, draws=judging.null_draws, streams=streams)
        if judging.reference
        else {}
    )
    if len(null.inputs):
        of_null = in_unit(_shown(null), low, high)
        nulls["random-gradient"] = arrange(null.inputs, align(of_null, seen[: len(of_null)]))
    accuracy = None
    if guess.labels is not None and Knowledge.LABELS not in taken.observation.knowledge:
        accuracy = aligned_label_accuracy(guess.labels, evidence.protected.labels, order)
    return Audit(
        step=taken,
        attack=attack,
        guess=guess,
        truth=truth,
        labels=labels,
        scores=score(judging.metrics, guess.inputs, guess_of_seen=of_seen, truth=truth, seen=seen, nulls=nulls),
        identification=identification(
            guess.inputs,
            truth=truth,
            nulls=nulls,
            reference=judging.reference,
            decoys=judging.decoys,
            extractor=judging.extractor,
            streams=streams,
        ),
        label_accuracy=accuracy,
        ratios=ratios_of(served),
        certificate=attack.certify(taken.observation, served.clean()),
        seconds={"judge": time.monotonic() - began},
    )


def _arranged(guess: Reconstruction, order: Tensor) -> Reconstruction:
    protected = None if guess.protected is None else arrange(guess.protected, order)
    return replace(guess, inputs=arrange(guess.inputs, order), protected=protected)


def _beside_random(observation: Observation, count: int, *, seed: int) -> Observation:
    """Put behind the victims the first `count` of them again, with random updates in the place of their own."""
    victims = list(range(observation.victims))
    again = victims[:count]
    if not again:
        return observation
    streams = Streams(seed=seed, purpose="random-gradient").bind(len(again))
    random = _random_like(observation.select(again), streams)
    both = tuple(torch.cat(pair) for pair in zip(observation.update, random, strict=True))
    return replace(observation.select([*victims, *again]), update=both)


def _keys(victims: int, nulls: int) -> tuple[tuple[int, ...], ...]:
    """Number the victims; those behind them are further starts of the first ones, beyond any number of restarts."""
    return (*((v,) for v in range(victims)), *((v, _RANDOM) for v in range(nulls)))


def _random_like(observation: Observation, streams: Streams) -> Gradients:
    noise = []
    for number, tensor in enumerate(observation.update):
        drawn = streams.normal(f"update/{number}", tensor.shape[1:], like=tensor).flatten(1)
        scale = tensor.flatten(1).norm(dim=1) / drawn.norm(dim=1)
        noise.append((drawn * scale[:, None]).view_as(tensor))
    return tuple(noise)


def _classes(labels: Tensor) -> Tensor:
    return labels.argmax(2) if labels.ndim == 3 else labels
