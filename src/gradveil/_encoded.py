"""Private sets encoded by data defenses in many rounds, and what an adversary gets of them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, final

import torch
from torch import Tensor
from typing_extensions import override

from gradveil.attacks import Attack, Encodings
from gradveil.attacks._decode_range import in_own_range, stretched
from gradveil.client import Client, check, protect_data, step
from gradveil.defenses import Adversary, DataDefense, Defense, InstaHide
from gradveil.engine import Runtime
from gradveil.errors import DataError
from gradveil.streams import Streams
from gradveil.types import Auxiliary, Batch, Knowledge, Protected


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedSet:
    """What V clients make of their private sets; an adversary has none of it but through `Encodings`.

    Args:
        batch: the private sets, (V, P, C, H, W).
        protected: (V, N, ...) the encodings of all rounds, and what they were made of.
        mean: of each channel, around which signs were flipped; empty for none.
        low: (C,) least pixel that an encoding can have.
        high: (C,) largest one.
    """

    batch: Batch
    protected: Protected
    mean: tuple[float, ...]
    low: Tensor
    high: Tensor

    def weights(self) -> Tensor:
        """Return (V, N, P), how much of each private image is in each encoding."""
        seen, images = self.protected, self.batch.inputs.shape[1]
        empty = seen.weights.new_zeros(*seen.weights.shape[:2], images)
        return empty.scatter_add(2, seen.origin, seen.weights)

    def unit(self, encodings: Tensor) -> Tensor:
        """Map encodings (..., C, H, W) to [0, 1], to compare them by metrics of pixels."""
        low, high = (bound.to(encodings)[:, None, None] for bound in (self.low, self.high))
        return (encodings - low) / (high - low)


def encode(batch: Batch, client: Client, *, rounds: int, seed: int = 0) -> EncodedSet:
    """Let every client encode its private set so many times, each time anew.

    Args:
        batch: private sets (V, P, C, H, W).
        client: whose data defenses encode.
        rounds: at least 1.
        seed: of the clients.
    """
    check(batch)
    if rounds < 1:
        raise DataError(f"rounds must be at least 1, got {rounds}")
    if not client.data_defenses:
        raise DataError("nothing encodes the data of a client without a data defense; give one such as mixup")
    streams = Streams(seed=seed, purpose="client").bind(batch.victims)
    seen = [protect_data(batch, client, streams=streams.fork(f"step-{n}")) for n in range(rounds)]
    joined = (torch.cat([getattr(s, name) for s in seen], 1) for name in ("inputs", "labels", "origin", "weights"))
    flipped = [defense for defense in client.data_defenses if isinstance(defense, InstaHide)]
    low, high = pixel_bounds(client.data_defenses, batch.inputs.shape[2])
    return EncodedSet(
        batch=batch, protected=Protected(*joined), mean=flipped[-1].mean if flipped else (), low=low, high=high
    )


def pixel_bounds(defenses: Sequence[Defense], channels: int) -> tuple[Tensor, Tensor]:
    """Return the least and the largest pixel of each channel, (C,) each, that a model sees behind some defenses.

    Example:
        >>> [bound.tolist() for bound in pixel_bounds([InstaHide(mean=(0.75,))], 1)]
        [[0.0], [1.5]]
    """
    flipped = [defense for defense in defenses if isinstance(defense, InstaHide)]
    return flipped[-1].bounds(channels) if flipped else (torch.zeros(channels), torch.ones(channels))


def known_encodings(
    made: EncodedSet, *, knowledge: Knowledge = Knowledge.NOTHING, auxiliary: Auxiliary | None = None
) -> Encodings:
    """Return the true encodings with as much beside them as the adversary is granted."""
    labels = made.protected.labels
    soft = labels if labels.ndim == 3 and Knowledge.LABELS in knowledge else None
    return Encodings(
        images=made.protected.inputs,
        labels=soft,
        weights=made.weights() if Knowledge.ENCODING in knowledge else None,
        mean=made.mean,
        knowledge=knowledge,
        auxiliary=auxiliary if Knowledge.AUXILIARY in knowledge else None,
    )


def recover(
    made: EncodedSet, encodings: Encodings, client: Client, attack: Attack, *, seed: int = 0, runtime: Runtime
) -> Encodings:
    """Put what an attack recovers in the place of the true encodings; every one is shared by a gradient of its own."""
    victims, count = made.protected.inputs.shape[:2]
    heaviest = made.protected.origin.gather(2, made.protected.weights.argmax(2, keepdim=True)).flatten(1)
    rows = torch.arange(victims, device=heaviest.device)[:, None]
    alone = Batch(
        made.batch.inputs[rows, heaviest].flatten(0, 1)[:, None],
        made.batch.labels[rows, heaviest].flatten(0, 1)[:, None],
    )
    others = tuple(defense for defense in client.defenses if not isinstance(defense, DataDefense))
    single = replace(client, defenses=(_Given(made.protected), *others))
    granted = encodings.knowledge & ~(Knowledge.ENCODING | Knowledge.DEFENSES)
    taken = step(
        alone,
        single,
        streams=Streams(seed=seed, purpose="client").fork("sharing"),
        knowledge=granted,
        auxiliary=encodings.auxiliary,
    )
    seen = stretched(taken.observation, made.low, made.high)
    guess = attack(seen, streams=Streams(seed=seed, purpose="attack"), runtime=runtime.named("recover"))
    images = in_own_range(guess.inputs[:, 0], made.low, made.high).unflatten(0, (victims, count))
    return replace(encodings, images=images.to(encodings.images))


@final
@dataclass(frozen=True, slots=True, eq=False)
class _Given(DataDefense):
    """Shows the model encodings that were made before, one to each of V · N victims."""

    adversary: ClassVar[Adversary] = Adversary(reason="the encodings are the defense")

    encoded: Protected

    @override
    def protect(self, data: Protected, *, pool: Tensor | None, streams: Streams) -> Protected:
        inputs, labels = (tensor.flatten(0, 1)[:, None] for tensor in (self.encoded.inputs, self.encoded.labels))
        return Protected(inputs, labels, data.origin, data.weights)
