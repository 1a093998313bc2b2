"""All scores of many policies at once."""

import contextlib
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Self, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gradveil.data import Split
from gradveil.engine import Runtime
from gradveil.errors import DataError
from gradveil.models.training import TrainingError
from gradveil.policies._accuracy import AccuracyScorer
from gradveil.policies._material import Material
from gradveil.policies._networks import Networks
from gradveil.policies._privacy import PrivacyScorer
from gradveil.policies._undoing import margin_over_grey, share_undone
from gradveil.policies.result import Origin, ScoredPolicy, ranked
from gradveil.policies.scores import Score
from gradveil.policies.settings import SearchSettings
from gradveil.storage import content_hash
from gradveil.streams import Streams
from gradveil.transforms import NO_POLICY, Hybrid, Policy

Summary: TypeAlias = list[tuple[float, float | None]]
"""Mean and standard error of each policy."""

_RESERVED: Final = 100  # the first test images are for attacks, not for the search
_FIRST: Final = 200  # the published program's images: from 200 on, every fifth for the privacy score
_EVERY: Final = 5
_SURE: Final = 4.0  # standard errors by which a policy must miss the best to be dropped after a first look


@dataclass(slots=True)
class Clock:
    """Adds up seconds by stage; scores are read back at the end of each, so no work of the device is left out.

    Args:
        seconds: so far.
    """

    seconds: dict[str, float] = field(default_factory=dict)

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Count the time inside towards a stage."""
        began = time.monotonic()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.monotonic() - began


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Scorers:
    """Both scores, ready for any policy.

    Args:
        network: semi-trained.
        privacy: on all images.
        accuracy: on all rounds.
        settings: of the search.
        unprotected: (N,) privacy scores of no policy at all, with which a first look compares; empty without one.
        clock: adds up what each score takes.
    """

    network: nn.Module
    privacy: PrivacyScorer
    accuracy: AccuracyScorer
    settings: SearchSettings
    unprotected: Tensor
    clock: Clock

    @classmethod
    def of(
        cls,
        networks: Networks,
        split: Split,
        settings: SearchSettings,
        *,
        runtime: Runtime,
        clock: Clock | None = None,
    ) -> Self:
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

        privacy = PrivacyScorer.of(
            networks.semi_trained,
            material(privacy_rows(len(split), settings.images), "privacy"),
            loss=F.cross_entropy,
            variant=settings.variant,
            intervals=settings.intervals,
            runtime=runtime,
        )
        accuracy = AccuracyScorer.of(
            networks.untrained,
            material(accuracy_rows(len(split), settings.rounds, settings.round_size), "accuracy"),
            rounds=settings.rounds,
            variant=settings.variant,
            # An image of the privacy score is as many images as its way has points.
            runtime=replace(runtime, chunk=runtime.chunk and runtime.chunk * (settings.intervals + 1)),
        )
        unprotected = privacy([Hybrid((NO_POLICY,))])[0] if settings.first_look else torch.empty(0)
        return cls(
            network=networks.semi_trained,
            privacy=privacy,
            accuracy=accuracy,
            settings=settings,
            unprotected=unprotected,
            clock=clock or Clock(),
        )

    @property
    def fingerprint(self) -> str:
        """Tell apart semi-trained networks and images, wherever they are scored."""
        own = [self.privacy.material, self.accuracy.material]
        tensors = [*self.network.state_dict().values(), *(each for one in own for each in (one.images, one.labels))]
        return content_hash(*tensors)[:16]

    def score(
        self, policies: Sequence[Policy], origin: Origin, scored: Sequence[ScoredPolicy] = ()
    ) -> list[ScoredPolicy]:
        """Score policies in one stack.

        Args:
            policies: to score.
            origin: of all of them.
            scored: what is scored already, which a policy has to beat if there is a first look.
        """
        with self.clock.stage("accuracy"):
            spread = summarize(self.accuracy([Hybrid((policy,)) for policy in policies]))
        made = [
            ScoredPolicy(policy=str(policy), accuracy=mean, accuracy_error=error, origin=origin)
            for policy, (mean, error) in zip(policies, spread, strict=True)
        ]
        wanted = [i for i, entry in enumerate(made) if self._worth(entry)]
        if self.settings.first_look and wanted:
            with self.clock.stage("first look"):
                looked = self._looked([made[i] for i in wanted], _to_beat(scored, self.settings))
            for i, entry in zip(wanted, looked, strict=True):
                made[i] = entry
            wanted = [i for i in wanted if not made[i].dropped]
        if wanted:
            for i, entry in zip(wanted, self._scored([made[i] for i in wanted]), strict=True):
                made[i] = entry
        return made

    def _worth(self, entry: ScoredPolicy) -> bool:
        skips = self.settings.skip_rejected
        return not skips or entry.accuracy >= self.settings.kept_from or entry.origin == "given"

    def _looked(self, entries: Sequence[ScoredPolicy], limit: float) -> list[ScoredPolicy]:
        """Score on the first images, and drop what cannot be among the best.

        Images differ more than policies do, so what is estimated is the difference to no policy at all, whose score on
        every image is at hand; the standard error is that of some images drawn from all of them without repetition.
        """
        total, looks = len(self.privacy.starts), self.settings.first_look
        if looks >= total or math.isinf(limit) or entries[0].origin == "given":
            return list(entries)
        difference = (self.privacy.select(range(looks))(_parsed(entries)) - self.unprotected[:looks]).double()
        estimate = self.unprotected.double().mean() + difference.mean(1)
        error = difference.std(1) * math.sqrt((1 - looks / total) / looks)
        missed = estimate - _SURE * error > limit
        return [
            replace(entry, privacy=value, privacy_error=spread, dropped=True) if out else entry
            for entry, value, spread, out in zip(
                entries, estimate.tolist(), error.tolist(), missed.tolist(), strict=True
            )
        ]

    def _scored(self, entries: Sequence[ScoredPolicy]) -> list[ScoredPolicy]:
        """Fill in the privacy score, and against an informed adversary all that it sees."""
        hybrids = _parsed(entries)
        with self.clock.stage("privacy"):
            areas = summarize(self.privacy(hybrids))
        for entry, (mean, _) in zip(entries, areas, strict=True):
            if not math.isfinite(mean):
                raise TrainingError(
                    f"S_pri of {entry.policy} is {mean}: the semi-trained network diverged; train it with a lower "
                    "learning rate (--training lr=...)"
                )
        done = [replace(e, privacy=mean, privacy_error=error) for e, (mean, error) in zip(entries, areas, strict=True)]
        return done if self.settings.adversary == "plain" else self.informed(done)

    def informed(self, entries: Sequence[ScoredPolicy]) -> list[ScoredPolicy]:
        """Fill in what an informed adversary sees, in one stack."""
        with self.clock.stage("informed adversary"):
            areas, undone, margin = self._informed(_parsed(entries))
            rows = zip(entries, summarize(areas * undone), summarize(undone), summarize(margin), strict=True)
        return [
            replace(entry, aware=aware, aware_error=error, undone=share, margin=decibels)
            for entry, (aware, error), (share, _), (decibels, _) in rows
        ]

    def _informed(self, hybrids: Sequence[Hybrid]) -> tuple[Tensor, Tensor, Tensor]:
        """Return (P, N) areas of the informed adversary, shares it can undo, and margins of the plain adversary."""
        material, count = self.privacy.material, len(hybrids)
        seen, private = material.seen(hybrids).flatten(0, 1), material.private().repeat(count, 1, 1, 1)
        undone = share_undone(seen, private, material.variants(hybrids))
        return self.privacy.informed(hybrids), undone.view(count, -1), margin_over_grey(seen, private).view(count, -1)


def summarize(values: Tensor) -> Summary:
    """Return mean and standard error of each row (P, n); one transfer from the device for all of them.

    Example:
        >>> summarize(torch.tensor([[1.0, 3.0]])), summarize(torch.tensor([[2.0]]))
        ([(2.0, 1.0)], [(2.0, None)])
    """
    # Row by row, so that the last digit does not depend on how many rows there are.
    scores = [Score(row) for row in values.double().cpu()]
    return [(score.mean, score.standard_error if values.shape[1] > 1 else None) for score in scores]


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
    left = total - first
    if left < 2 * rounds:
        raise DataError(
            f"{rounds} rounds need at least {2 * rounds} images beside the first {first}, got {left}; "
            "take fewer rounds (--settings rounds=...)"
        )
    return list(range(first, first + rounds * min(size, left // rounds)))


def _to_beat(scored: Sequence[ScoredPolicy], settings: SearchSettings) -> float:
    """Return S_pri from which on a policy cannot be among those wanted; infinity where too few are scored."""
    best = [entry.exposure for entry in ranked(scored, threshold=settings.kept_from) if entry.policy != str(NO_POLICY)]
    halves = 1 if settings.adversary == "plain" else 2
    return halves * best[settings.top - 1] if len(best) >= settings.top else math.inf


def _parsed(entries: Sequence[ScoredPolicy]) -> list[Hybrid]:
    return [Hybrid((Policy(tuple(map(int, entry.policy.split("-")))),)) for entry in entries]
