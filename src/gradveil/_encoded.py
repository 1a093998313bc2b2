"""Private sets encoded by data defenses in many rounds, and what an adversary gets of them."""

from collections.abc import Callable, Sequence
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
from gradveil.types import Auxiliary, Batch, Knowledge, Observation, Protected, Reconstruction


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
        return in_unit(encodings, self.low, self.high)


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


def in_unit(images: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Map images (..., C, H, W) between `low` and `high`, (C,) each, to [0, 1], to compare them by metrics of pixels.

    Example:
        >>> in_unit(torch.tensor([[[1.5]]]), torch.tensor([0.0]), torch.tensor([2.0])).item()
        0.75
    """
    least, most = (bound.to(images)[:, None, None] for bound in (low, high))
    return (images - least) / (most - least)


def known_bounds(observation: Observation) -> tuple[Tensor, Tensor]:
    """Return the least and the largest pixel of each channel, (C,) each, that an adversary expects at the model."""
    known = tuple(defense for defense in observation.defenses or () if isinstance(defense, Defense))
    return pixel_bounds(known, observation.input_shape[1])


def in_known_range(observation: Observation) -> tuple[Observation, Callable[[Reconstruction], Reconstruction]]:
    """Let an adversary who knows that pixels leave [0, 1] look for them where they are.

    Returns:
        What to attack, and what to make of the guess: what was found is a guess of what the model saw; clamped, of the
        private images. Who expects nothing beyond [0, 1] attacks as ever.
    """
    low, high = known_bounds(observation)
    if bool((low == 0).all()) and bool((high == 1).all()):
        return observation, lambda guess: guess

    def back(guess: Reconstruction) -> Reconstruction:
        found = in_own_range(guess.inputs, low, high)
        return replace(guess, protected=found, inputs=found.clamp(0, 1))

    return stretched(observation, low, high), back


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
