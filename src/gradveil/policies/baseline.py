"""The baseline of the automatic transformation search: random policies, averaged."""

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gradveil.errors import RecordError, SpecError
from gradveil.record import Numbers, Record

_NAME = "random-policy"


@dataclass(frozen=True, slots=True, kw_only=True)
class Average:
    """A mean over policies.

    Args:
        mean: of the means of each policy.
        error: its standard error over policies, None for one policy.
    """

    mean: float
    error: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """What random policies reach together under one attack.

    Args:
        attack: spec string.
        model: architecture and state.
        policies: how many different ones were audited.
        private: each metric against the private images.
        protected: each metric against what the network saw.
        identified: share of images found first among decoys, by view.
        accuracy: of the networks, None where one is unknown.
    """

    attack: str
    model: str
    policies: int
    private: dict[str, Average]
    protected: dict[str, Average]
    identified: dict[str, Average]
    accuracy: Average | None


def random_defenses(count: int = 10, *, first: int = 0) -> list[str]:
    """Write the defenses of the baseline as a spec names them; the paper takes ten.

    Example:
        >>> random_defenses(2)
        ['random-policy:seed=0', 'random-policy:seed=1']
    """
    if count < 1:
        raise SpecError(f"the baseline is made of at least 1 random policy, got {count}")
    return [f"{_NAME}:seed={seed}" for seed in range(first, first + count)]


def random_baseline(records: Sequence[Record]) -> list[Baseline]:
    """Average the audits of random policies, for each attack, model and data set; others are left out.

    Args:
        records: finished audits, each under one random policy.
    """
    groups: dict[tuple[str, str], dict[str, Record]] = {}
    for record in records:
        if record.status == "done" and len(record.defenses) == 1 and record.defenses[0].split(":")[0] == _NAME:
            # Each policy has a checkpoint of its own: what it is called does not matter, that it was trained does.
            network = f"{record.network.spec}, {record.network.state.partition(':')[0]}"
            key = (record.attack, f"{network}, {record.spec.get('audit', {}).get('dataset', '')}".rstrip(", "))
            policy = record.defenses[0] if ":" in record.defenses[0] else random_defenses(1)[0]
            groups.setdefault(key, {})[policy] = record
    if not groups:
        raise RecordError(f"there is no finished audit of {_NAME} alone; audit {', '.join(random_defenses(2))}, ...")
    return [_baseline(attack, model, list(found.values())) for (attack, model), found in groups.items()]


def average(values: Iterable[float]) -> Average:
    """Return mean and standard error of some numbers.

    Example:
        >>> average([1.0, 3.0])
        Average(mean=2.0, error=1.0)
    """
    known = list(values)
    error = statistics.stdev(known) / math.sqrt(len(known)) if len(known) > 1 else None
    return Average(mean=statistics.fmean(known), error=error)


def _baseline(attack: str, model: str, records: Sequence[Record]) -> Baseline:
    metrics = [name for name in records[0].scores if all(name in record.scores for record in records)]
    views = [v for v in records[0].identification if all(v in record.identification for record in records)]
    accuracies = [record.network.accuracy for record in records if record.network.accuracy is not None]
    return Baseline(
        attack=attack,
        model=model,
        policies=len(records),
        private={name: average(_mean(record.scores[name].private) for record in records) for name in metrics},
        protected={name: average(_mean(record.scores[name].protected) for record in records) for name in metrics},
        identified={view: average(_first(record.identification[view].ranks) for record in records) for view in views},
        accuracy=average(accuracies) if len(accuracies) == len(records) else None,
    )


def _mean(values: Numbers) -> float:
    return statistics.fmean(value for row in values for value in row)


def _first(ranks: Numbers) -> float:
    return statistics.fmean(float(rank == 0) for row in ranks for rank in row)
