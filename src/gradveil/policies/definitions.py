"""Definitions 1 and 2 of the automatic transformation search, read off the records of audits.

Definition 1: an attack is an (epsilon, delta)-reconstruction attack if its PSNR reaches epsilon with a probability of
at least 1 - delta. Definition 2: a policy is (epsilon, delta, gamma)-privacy-aware if the PSNR of an attack against
what the network saw stays below epsilon with a probability of at least 1 - delta, and the policy costs less than gamma
of the accuracy. Neither is a guarantee: both speak of one attack and say nothing of a better one, and neither is
differential privacy.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from gradveil.errors import RecordError, SpecError
from gradveil.record import Numbers, Record

_QUANTILE = 1.6448536269514722  # of the normal distribution, one-sided at 95 %


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """The share of images for which a property fails.

    Args:
        share: that was seen, the smallest delta for these images.
        upper: Wilson bound of the probability, one-sided at 95 %.
    """

    share: float
    upper: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Definitions:
    """Both definitions for one audit.

    Args:
        title: of the audit.
        epsilon: in dB.
        images: how many were attacked.
        attack: delta of Definition 1 against the private images: how often the attack misses epsilon.
        attack_protected: the same against what the network saw, as the paper measures.
        policy: delta of Definition 2: how often the attack reaches epsilon against what the network saw.
        policy_private: the same against the private images.
        gamma: accuracy of the unprotected network minus that of the attacked one; any larger gamma holds. None where
            one of them is unknown.
    """

    title: str
    epsilon: float
    images: int
    attack: Delta
    attack_protected: Delta
    policy: Delta
    policy_private: Delta
    gamma: float | None


def definitions(records: Sequence[Record], *, epsilon: float, plain_accuracy: float | None = None) -> list[Definitions]:
    """Work out both definitions for each finished record with a PSNR.

    Args:
        records: of one run or of several.
        epsilon: in dB.
        plain_accuracy: of the unprotected network, from 0 to 1; None takes that of a record without defenses, of the
            same architecture and trained, where there is one.
    """
    if not math.isfinite(epsilon):
        raise SpecError(f"epsilon must be a finite number of dB, got {epsilon}")
    if plain_accuracy is not None and not 0 <= plain_accuracy <= 1:
        raise SpecError(f"the accuracy without a defense lies between 0 and 1, got {plain_accuracy:g}")
    usable = [record for record in records if record.status == "done" and "psnr" in record.scores]
    if not usable:
        raise RecordError("the definitions need a finished audit scored by PSNR, got none; audit with the metric psnr")
    return [
        _of(record, epsilon, _plain_accuracy(record, usable) if plain_accuracy is None else plain_accuracy)
        for record in usable
    ]


def delta(failures: int, images: int) -> Delta:
    """Return how often a property failed, and how often it may fail.

    Example:
        >>> found = delta(0, 100)
        >>> found.share, round(found.upper, 3)
        (0.0, 0.026)
    """
    share, square = failures / images, _QUANTILE**2
    middle = share + square / (2 * images)
    spread = _QUANTILE * math.sqrt(share * (1 - share) / images + square / (4 * images**2))
    return Delta(share=share, upper=min(1.0, (middle + spread) / (1 + square / images)))


def _of(record: Record, epsilon: float, plain_accuracy: float | None) -> Definitions:
    scores, own = record.scores["psnr"], record.network.accuracy
    private, protected = (_reached(values, epsilon) for values in (scores.private, scores.protected))
    images = sum(map(len, scores.private))
    return Definitions(
        title=record.title,
        epsilon=epsilon,
        images=images,
        attack=delta(images - private, images),
        attack_protected=delta(images - protected, images),
        policy=delta(protected, images),
        policy_private=delta(private, images),
        gamma=None if plain_accuracy is None or own is None else plain_accuracy - own,
    )


def _reached(values: Numbers, epsilon: float) -> int:
    """Count the images whose PSNR reaches epsilon; an attack that diverged reaches nothing."""
    return sum(value >= epsilon for row in values for value in row)


def _plain_accuracy(record: Record, others: Sequence[Record]) -> float | None:
    """Return the accuracy of an unprotected and trained network of the same architecture on the same data."""
    alike = [other for other in others if not other.defenses and other.network.spec == record.network.spec]
    known = [
        other.network.accuracy
        for other in alike
        if other.network.state != "untrained" and _data_of(other) == _data_of(record)
    ]
    return next((accuracy for accuracy in known if accuracy is not None), None)


def _data_of(record: Record) -> object:
    return record.spec.get("audit", {}).get("dataset")
