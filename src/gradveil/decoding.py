"""The audit of encoded data: encode a private set, share, recover, decode, and score beside the null lines.

A defense that encodes images once more at every step gives an adversary many encodings of the same images. A decoder
joins them. Here, as in `auditing`, the truth meets the guess.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from torch import Tensor

from gradveil._encoded import EncodedSet, encode, known_encodings, recover
from gradveil._scoring import Reference, identification, score
from gradveil.attacks import Attack, Decoder, Decoding, Encodings
from gradveil.auditing import Judging
from gradveil.client import Client
from gradveil.engine import Runtime
from gradveil.errors import DataError
from gradveil.metrics import align, arrange
from gradveil.record import Identification, Scores
from gradveil.streams import Streams
from gradveil.types import Auxiliary, Batch, Knowledge


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoded:
    """The result of decoding.

    Args:
        decoder: that was run.
        decoding: what it returned.
        guess: (V, P, C, H, W) in the order of the private images.
        truth: (V, P, C, H, W).
        scores: by metric; `private` of the images, `protected` of the encodings that the decoder was given.
        identification: by view.
        recovered: whether the encodings came from gradients.
        seconds: by stage.
    """

    decoder: Decoder
    decoding: Decoding
    guess: Tensor
    truth: Tensor
    scores: Mapping[str, Scores]
    identification: Mapping[str, Identification]
    recovered: bool = False
    seconds: Mapping[str, float] = field(default_factory=dict)

    @property
    def oracle(self) -> bool:
        """Whether the decoder knew what no adversary knows: an upper bound, not to be used for a verdict."""
        return self.decoder.oracle


def audit_decoding(
    batch: Batch,
    client: Client,
    *,
    decoder: Decoder,
    attack: Attack | None = None,
    rounds: int = 1,
    knowledge: Knowledge = Knowledge.NOTHING,
    auxiliary: Auxiliary | None = None,
    judging: Judging | None = None,
    seed: int = 0,
    runtime: Runtime | None = None,
) -> Decoded:
    """Encode private sets, recover the encodings from gradients or take the true ones, decode, and score.

    Args:
        batch: private sets (V, P, C, H, W) in [0, 1] and labels; each is a group that is decoded together.
        client: who trains; its data defenses encode, its others act on what leaves.
        decoder: the second stage.
        attack: the first stage, on the gradient of every encoding by itself; None gives the decoder the true ones.
        rounds: how often every set is encoded.
        knowledge: granted to both stages; labels are those trained on, encoding is what the oracle decoder needs.
        auxiliary: public images, and the extractor of an obscuring defense.
        judging: metrics, and the reference for decoys and null guesses.
        seed: of all randomness.
        runtime: of the attack and the decoder.

    Example:
        >>> import torch
        >>> from gradveil.attacks import decoders
        >>> from gradveil.defenses import Mixup
        >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 3))
        >>> client = Client(model=model, loss=torch.nn.functional.cross_entropy, defenses=(Mixup(k=2),))
        >>> batch = Batch(torch.rand(1, 5, 1, 4, 4), torch.tensor([[0, 1, 2, 1, 0]]))
        >>> oracle = decoders.build("decode-oracle:flipped=no")
        >>> result = audit_decoding(batch, client, decoder=oracle, rounds=3, knowledge=Knowledge.ENCODING)
        >>> result.oracle, min(result.scores["psnr"].private[0]) > 40
        (True, True)
    """
    runtime, clock = runtime or Runtime(precision="float32"), _Clock()
    made = encode(batch, client, rounds=rounds, seed=seed)
    encodings = known_encodings(made, knowledge=knowledge, auxiliary=auxiliary)
    clock.note("client")
    if attack is not None:
        encodings = recover(made, encodings, client, attack, seed=seed, runtime=runtime)
        clock.note("attack")
    decoding = decoder(encodings, streams=Streams(seed=seed, purpose="attack"), runtime=runtime.named("decode"))
    clock.note("decode")
    judged = judge_decoding(
        made, encodings, decoder, decoding, judging=judging or Judging(), seed=seed, runtime=runtime
    )
    clock.note("judge")
    return replace(judged, recovered=attack is not None, seconds=clock.seconds)


def judge_decoding(
    made: EncodedSet,
    encodings: Encodings,
    decoder: Decoder,
    decoding: Decoding,
    *,
    judging: Judging,
    seed: int,
    runtime: Runtime,
) -> Decoded:
    """Bring decoded images into the order of the private ones, and score them beside the null lines."""
    truth, reference = made.batch.inputs, judging.reference
    nulls = _null_guesses(decoder, made, encodings, reference=reference, seed=seed, runtime=runtime)
    guess = in_order(decoding.images, truth, decoder=decoder)
    given, true = made.unit(encodings.images), made.unit(made.protected.inputs)
    return Decoded(
        decoder=decoder,
        decoding=decoding,
        guess=guess,
        truth=truth,
        scores=score(judging.metrics, guess, guess_of_seen=given, truth=truth, seen=true, nulls=nulls),
        identification=identification(
            guess,
            truth=truth,
            nulls=nulls,
            reference=reference,
            decoys=judging.decoys,
            extractor=judging.extractor,
            streams=Streams(seed=seed, purpose="null").bind(len(truth)),
        ),
    )


def in_order(images: Tensor, truth: Tensor, *, decoder: Decoder) -> Tensor:
    """Put decoded images in the order of the private ones (V, P, C, H, W).

    Who is in which mixture is what a decoder of mixtures finds out, and its images have no order. Where every encoding
    is one private image, or the decoder is told whose each is, the order is known: looking for a better one would find
    resemblance that nobody decoded. Of several encodings of one image the first counts.
    """
    if decoder.joint and not decoder.oracle:
        return arrange(images, align(images, truth)).to(truth)
    return images[:, : truth.shape[1]].to(truth)


@dataclass(slots=True)
class _Clock:
    """Notes how long each stage took."""

    seconds: dict[str, float] = field(default_factory=dict)
    last: float = field(default_factory=time.monotonic)

    def note(self, stage: str) -> None:
        now = time.monotonic()
        self.seconds[stage], self.last = now - self.last, now


def _null_guesses(
    decoder: Decoder,
    made: EncodedSet,
    encodings: Encodings,
    *,
    reference: Reference | None,
    seed: int,
    runtime: Runtime,
) -> dict[str, Tensor]:
    """Make guesses that know nothing of the private images, the last of them by decoding noise."""
    if reference is None:
        return {}
    truth, labels = made.batch.inputs, made.batch.labels
    classes = labels.argmax(2) if labels.ndim == 3 else labels
    streams = Streams(seed=seed, purpose="null").bind(len(truth))
    nulls = reference.null_guesses(truth, classes, draws=1, streams=streams)
    decoded = _noise_decoded(decoder, encodings, seed=seed, runtime=runtime)
    return nulls if decoded is None else {**nulls, "random-encodings": in_order(decoded, truth[:1], decoder=decoder)}


def _noise_decoded(decoder: Decoder, encodings: Encodings, *, seed: int, runtime: Runtime) -> Tensor | None:
    """Decode noise of the same mean and deviation in the place of the first group; None where that gives nothing."""
    first = encodings.images[:1]
    drawn = Streams(seed=seed, purpose="random-encodings").bind(1).normal("images", first.shape[1:], like=first)
    noise = first.mean() + first.std() * drawn
    labels, weights = (None if value is None else value[:1] for value in (encodings.labels, encodings.weights))
    try:
        found = decoder(
            replace(encodings, images=noise, labels=labels, weights=weights),
            streams=Streams(seed=seed, purpose="null-attack"),
            runtime=runtime.named("null"),
        )
    except DataError:
        return None  # noise need not fall into as many clusters as there are images
    return found.images
