"""The weight and the steps of `decode-loda`, searched as an adversary can: on public images it obscures itself."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product

from gradveil._encoded import encode, known_encodings
from gradveil.attacks import decoders
from gradveil.attacks._decoders.decode_loda import DecodeLoda
from gradveil.client import Client
from gradveil.engine import Runtime
from gradveil.errors import KnowledgeError
from gradveil.metrics import PSNR, correlation, identify
from gradveil.streams import Streams
from gradveil.types import Auxiliary, Batch, Knowledge

WEIGHTS, STEPS = (0.0, 1.0, 5.0, 10.0, 20.0), (50, 100, 200, 400)
"""That the paper searched; the weight of the known defense is tried beside them."""
ADAM_LR = 0.02
"""Of Adam, for features so strong that the published descent overshoots in its first step and stays grey."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderTrial:
    """How one setting did.

    Args:
        decoder: spec string.
        rank: mean over the images, of the true one among other public ones by correlation; 0 is the first.
        psnr: mean over the images, in decibels.
    """

    decoder: str
    rank: float
    psnr: float


def loda_settings(decoder: DecodeLoda, *, c: float) -> tuple[DecodeLoda, ...]:
    """List a decoder with every weight and number of steps of the search, and with Adam, which does not overshoot."""
    weights = dict.fromkeys((*WEIGHTS, c))
    own = [replace(decoder, weight=weight, steps=steps) for weight, steps in product(weights, STEPS)]
    adam = replace(decoder, steps=STEPS[-1], optimizer="adam", lr=ADAM_LR)
    return tuple(dict.fromkeys((*own, *(replace(adam, weight=weight) for weight in weights))))


def search_decoder(
    settings: Sequence[DecodeLoda],
    client: Client,
    auxiliary: Auxiliary,
    *,
    images: int = 8,
    seed: int = 0,
    runtime: Runtime | None = None,
) -> tuple[DecodeLoda, tuple[DecoderTrial, ...]]:
    """Return the setting that decodes public images best, which the adversary obscures as the known client does.

    Args:
        settings: to try.
        client: whose data defenses are known.
        auxiliary: public images, and the extractor of the defense; the first images are obscured, the others are
            what a decoded one is told apart from.
        images: to obscure.
        seed: of obscuring.
        runtime: precision and progress.
    """
    public = auxiliary.inputs
    if public is None or len(public) < 2 * images:
        have = 0 if public is None else len(public)
        raise KnowledgeError(f"the search needs at least {2 * images} public images, got {have}; grant auxiliary")
    runtime = (runtime or Runtime(precision="float32")).named("search")
    truth = public[None, :images]
    made = encode(Batch(truth, truth.new_zeros(1, images).long()), client, rounds=1, seed=seed)
    seen = known_encodings(made, knowledge=Knowledge.AUXILIARY, auxiliary=auxiliary)
    trials = []
    for number, setting in enumerate(settings):
        streams = Streams(seed=seed, purpose="search")
        found = setting(seen, streams=streams, runtime=replace(runtime, store=None, name=f"search-{number}")).images
        ranks = identify(found, truth, public[images:], view=correlation)
        psnr = float(PSNR()(found, truth).mean())
        trials.append(DecoderTrial(decoder=decoders.describe(setting), rank=float(ranks.mean()), psnr=psnr))
    best = min(range(len(trials)), key=lambda place: (trials[place].rank, -trials[place].psnr))
    return settings[best], tuple(trials)
