"""Scores, ranks and null guesses of an audit."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradveil.metrics import VIEWS, Metric, View, draw_decoys, identify_all, metrics, null_guesses, other_of_class
from gradveil.record import Identification, Numbers, Scores
from gradveil.streams import Streams


@dataclass(frozen=True, slots=True)
class Reference:
    """Images of the victims' data set that are nobody's secret here: decoys, and guesses that know nothing.

    Args:
        inputs: (N, C, H, W) in [0, 1].
        labels: (N,) their classes.
    """

    inputs: Tensor
    labels: Tensor

    def null_guesses(self, truth: Tensor, labels: Tensor, *, draws: int, streams: Streams) -> dict[str, Tensor]:
        """Make guesses that know nothing of the private images, (V, B, C, H, W) or (draws * V, B, C, H, W)."""
        known = {"reference_inputs": self.inputs.to(truth.device), "reference_labels": self.labels}
        guesses = null_guesses(truth, labels, streams=streams, **known)
        further = [other_of_class(truth, labels, streams=streams.fork(f"draw-{k}"), **known) for k in range(1, draws)]
        return {**guesses, "other-of-class": torch.cat([guesses["other-of-class"], *further])}


def score(
    chosen: Sequence[Metric],
    guess: Tensor,
    *,
    guess_of_seen: Tensor,
    truth: Tensor,
    seen: Tensor,
    nulls: Mapping[str, Tensor],
) -> dict[str, Scores]:
    """Score a guess of the private images, one of what the model saw, and the null guesses."""
    return {
        metrics.describe(metric): Scores(
            private=numbers(metric(guess, truth)),
            protected=numbers(metric(guess_of_seen, seen)),
            nulls={name: numbers(metric(null, _repeated(truth, null))) for name, null in nulls.items()},
            higher_is_better=metric.higher_is_better,
            unit=metric.unit,
            title=metric.title,
        )
        for metric in chosen
    }


def identification(
    guess: Tensor,
    *,
    truth: Tensor,
    nulls: Mapping[str, Tensor],
    reference: Reference | None,
    decoys: int,
    extractor: View | None,
    streams: Streams,
) -> dict[str, Identification]:
    """Rank the private images among decoys, in every view; empty without a reference."""
    if reference is None:
        return {}
    candidates = draw_decoys(reference.inputs, count=min(decoys, len(reference.inputs)), streams=streams).to(truth)
    views = {**VIEWS, **({"features": extractor} if extractor else {})}
    ranks = identify_all({"": guess, **nulls}, truth, candidates, views=views)
    return {
        name: Identification(
            ranks=numbers(found.pop("")),
            nulls={null: numbers(values) for null, values in found.items()},
            decoys=len(candidates),
        )
        for name, found in ranks.items()
    }


def numbers(values: Tensor) -> Numbers:
    """Turn (V, B) into nested lists, to the sixth decimal."""
    found: Numbers = values.detach().double().round(decimals=6).cpu().tolist()
    return found


def _repeated(truth: Tensor, null: Tensor) -> Tensor:
    """Bring the truth to the victims of a null guess: fewer of them, or several draws one after the other."""
    return truth[: len(null)] if len(null) <= len(truth) else truth.repeat(len(null) // len(truth), 1, 1, 1, 1)
