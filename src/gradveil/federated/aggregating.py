"""What remains of recorded updates when only their sum is seen, as under secure aggregation."""

from collections.abc import Sequence
from dataclasses import replace

import torch

from gradveil.errors import RecordError
from gradveil.federated._weights import average
from gradveil.federated.recorder import About, Recorded
from gradveil.types import State


def aggregate(recordings: Sequence[Recorded]) -> Recorded:
    """Return the mean update of the clients of one round, by their numbers of samples, as one recording.

    Its batch is that of all clients together. What they disagree about is unknown of the aggregate.

    Args:
        recordings: of clients that were sent the same model.

    Example:
        >>> def sent(value, samples):
        ...     update = {"w": torch.full((1,), value)}
        ...     return Recorded(before={"w": torch.ones(1)}, buffers={}, update=update, about=About(batch_size=samples))
        >>> both = aggregate([sent(1.0, 1), sent(4.0, 2)])
        >>> both.update["w"].item(), both.about.batch_size
        (3.0, 3)
    """
    if not recordings:
        raise RecordError("an aggregate needs at least 1 recorded update, got none")
    first = recordings[0]
    for other in recordings[1:]:
        _check_same(first, other)
    sizes = [one.about.batch_size for one in recordings]
    known = [size for size in sizes if size is not None]
    whole = len(known) == len(sizes)
    shares = torch.tensor([float(size) for size in known] if whole else [1.0] * len(sizes), dtype=torch.float64)
    # With full batches the mean of updates is that of all samples; of whole numbers the largest is kept.
    return Recorded(
        before=first.before,
        buffers=first.buffers,
        update=_mean([one.update for one in recordings], shares),
        buffers_after=_mean([one.buffers_after for one in recordings], shares),
        about=replace(
            _agreed([one.about for one in recordings]), batch_size=sum(known) if whole else None, client=None
        ),
    )


def _check_same(first: Recorded, other: Recorded) -> None:
    if first.update.keys() != other.update.keys() or first.before.keys() != other.before.keys():
        raise RecordError("the recorded updates are of different models, so that they have no mean; give one round")
    for name, tensor in first.before.items():
        if tensor.shape != other.before[name].shape or not torch.equal(tensor, other.before[name]):
            raise RecordError(f"the recorded updates begin with different '{name}', so that they have no mean")


def _mean(states: Sequence[State], shares: torch.Tensor) -> dict[str, torch.Tensor]:
    names = [name for name in states[0] if all(name in state for state in states)]
    return {name: average(torch.stack([state[name] for state in states]), shares) for name in names}


def _agreed(abouts: Sequence[About]) -> About:
    first = abouts[0]
    odd = {
        name: None
        for name in ("mode", "optimizer", "lr", "momentum", "weight_decay", "steps", "local_batch_size", "defenses")
        if any(getattr(about, name) != getattr(first, name) for about in abouts)
    }
    return replace(first, **odd)
