"""Encode, share, recover, decode, score: the two stages joined."""

import copy
from dataclasses import fields, replace
from typing import ClassVar, final

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from typing_extensions import override

from gradveil import Reference
from gradveil._encoded import EncodedSet, encode, known_encodings
from gradveil.attacks import Attack, Decoder, Decoding, Encodings, InvertingGradients, decoders
from gradveil.attacks._decode_range import in_own_range, stretched
from gradveil.auditing import Judging
from gradveil.client import Client, step
from gradveil.data import load
from gradveil.decoding import Decoded, audit_decoding
from gradveil.defenses import Defense, GaussianNoise, InstaHide, Loda, Mixup
from gradveil.engine import Runtime, find_normalization, normalized, stacked_gradients
from gradveil.errors import DataError, KnowledgeError
from gradveil.models import build
from gradveil.obscuring import Extractor
from gradveil.streams import Streams
from gradveil.types import Auxiliary, Batch, Card, Knowledge, Observation, Paper, Reconstruction

DIGITS = load("digits")
ORACLE = Knowledge.ENCODING | Knowledge.LABELS


def private(images: int = 6, victims: int = 1) -> Batch:
    chosen = range(40, 40 + victims * images)
    inputs = DIGITS.train.inputs(chosen).unflatten(0, (victims, images))
    return Batch(inputs, DIGITS.train.labels[list(chosen)].view(victims, images))


def network() -> nn.Module:
    plain = build("lenet", input_shape=(1, 8, 8), num_classes=10, seed=5)
    return normalized(plain, DIGITS.mean, DIGITS.std)


def reference() -> Reference:
    return Reference(DIGITS.test.inputs(range(60)), DIGITS.test.labels[:60])


def decoded(
    defense: Defense, decoder: Decoder, *, attack: Attack | None = None, rounds: int = 4, images: int = 6
) -> Decoded:
    return audit_decoding(
        private(images),
        Client(model=network(), loss=F.cross_entropy, defenses=(defense,)),
        decoder=decoder,
        attack=attack,
        rounds=rounds,
        knowledge=ORACLE,
        judging=Judging(reference=reference()),
        runtime=Runtime(chunk=64, precision="float32"),
    )


def mean_psnr(result: Decoded) -> float:
    return float(torch.tensor(result.scores["psnr"].private).mean())


def test_true_mixtures_are_decoded_and_stand_beside_the_null_lines() -> None:
    result = decoded(Mixup(k=2), decoders.build("decode-oracle:flipped=no"))
    assert result.oracle
    assert not result.recovered
    assert mean_psnr(result) > 40
    nulls = result.scores["psnr"].nulls
    assert {"random-encodings", "other-of-class"} <= set(nulls)
    assert all(float(torch.tensor(values).mean()) < 20 for values in nulls.values())
    assert max(result.identification["pixels"].ranks[0]) == 0
    assert result.guess.shape == private().inputs.shape
    assert set(result.seconds) == {"client", "decode", "judge"}


def test_encodings_with_flipped_signs_keep_their_own_range() -> None:
    defense = InstaHide(k=2, mean=DIGITS.mean)
    made = encode(private(20), Client(model=network(), loss=F.cross_entropy, defenses=(defense,)), rounds=20)
    seen = made.protected.inputs
    assert float(seen.min()) < -0.1
    assert bool((made.unit(seen) >= 0).all())
    assert bool((made.unit(seen) <= 1).all())
    result = decoded(defense, decoders.build("decode-oracle"), images=20, rounds=20)
    assert mean_psnr(result) > 28


def test_gradient_recovered_mixtures_are_decoded() -> None:
    attack = InvertingGradients(steps=120, tv=1e-6)
    result = decoded(Mixup(k=2), decoders.build("decode-oracle:flipped=no"), attack=attack, rounds=3, images=3)
    assert result.recovered
    assert torch.tensor(result.scores["psnr"].protected).shape == (1, 9)
    assert float(torch.tensor(result.scores["psnr"].protected).median()) > 22
    assert mean_psnr(result) > 20
    assert "attack" in result.seconds


def test_flipped_encodings_are_recovered_from_gradients_beyond_the_range_of_pixels() -> None:
    defense, attack = InstaHide(k=1, mean=DIGITS.mean), InvertingGradients(steps=120, tv=1e-6)
    made = encode(private(3), Client(model=network(), loss=F.cross_entropy, defenses=(defense,)), rounds=1)
    within = made.unit(made.protected.inputs.clamp(0, 1))
    clamped = -10 * (within - made.unit(made.protected.inputs)).square().flatten(2).mean(2).log10()
    result = decoded(defense, decoders.build("decode-oracle"), attack=attack, rounds=1, images=3)
    found = torch.tensor(result.scores["psnr"].protected)
    assert float(found.median()) > float(clamped.max()) + 3


def test_stretching_changes_what_the_network_eats_and_nothing_else() -> None:
    client = Client(model=network().double(), loss=F.cross_entropy)
    batch = Batch(private(3, 2).inputs.double(), private(3, 2).labels)
    seen = step(batch, client, streams=Streams(purpose="client")).observation
    low, high = torch.tensor([-0.5]), torch.tensor([1.25])
    wide = stretched(seen, low, high)
    unit = (batch.inputs + 0.5) / 1.75
    torch.testing.assert_close(in_own_range(unit, low, high), batch.inputs)
    for found, update in zip(
        stacked_gradients(wide.model, F.cross_entropy, unit, batch.labels), seen.update, strict=True
    ):
        torch.testing.assert_close(found, update)
    standardized = find_normalization(wide.model).standardize(unit)
    torch.testing.assert_close(standardized, find_normalization(seen.model).standardize(batch.inputs))
    plain = stretched(replace(seen, model=copy.deepcopy(nn.Sequential(nn.Flatten()))), low, high)
    torch.testing.assert_close(plain.model(unit[0]), batch.inputs[0].flatten(1))


def test_only_what_is_granted_reaches_the_decoder() -> None:
    client = Client(model=network(), loss=F.cross_entropy, defenses=(Mixup(k=2),))
    made = encode(private(), client, rounds=2)
    nothing = known_encodings(made, auxiliary=Auxiliary(inputs=DIGITS.test.inputs(range(4))))
    assert (nothing.labels, nothing.weights, nothing.auxiliary) == (None, None, None)
    everything = known_encodings(made, knowledge=ORACLE)
    assert everything.labels is not None
    assert everything.weights is not None
    torch.testing.assert_close(
        torch.einsum("vnp,vp...->vn...", everything.weights, made.batch.inputs), made.protected.inputs
    )
    with pytest.raises(KnowledgeError, match="needs encoding"):
        decoders.build("decode-oracle")(nothing, streams=Streams())


@pytest.mark.parametrize("needs", [Knowledge.AUXILIARY, Knowledge.ENCODING])
def test_a_decoder_beside_an_oracle_is_not_told_what_that_is_told(needs: Knowledge) -> None:
    seen: list[Encodings] = []

    @final
    class Spy(Decoder):
        paper: ClassVar[Paper] = Paper("", "", 2020, "")
        requires: ClassVar[Knowledge] = needs

        @override
        def decode(self, encodings: Encodings, *, streams: Streams, runtime: Runtime) -> Decoding:
            seen.append(encodings)
            return Decoding(images=encodings.images, objective=torch.zeros(1))

    client = Client(model=network(), loss=F.cross_entropy, defenses=(Mixup(k=2),))
    given = known_encodings(encode(private(), client, rounds=2), knowledge=ORACLE | Knowledge.AUXILIARY)
    decoder = Spy()
    decoder(given, streams=Streams())
    (told,) = seen
    assert torch.equal(told.images, given.images)
    assert told.labels is given.labels
    assert (told.weights is not None, Knowledge.ENCODING in told.knowledge) == (decoder.oracle, decoder.oracle)
    assert given.weights is not None


def test_the_attack_is_not_told_the_encoding_or_who_is_in_it() -> None:
    seen: list[Observation] = []

    @final
    class Spy(Attack):
        paper: ClassVar[Paper] = Paper("", "", 2020, "")

        @override
        def run(self, observation: Observation, *, streams: Streams, runtime: Runtime) -> Reconstruction:
            seen.append(observation)
            grey = torch.full((observation.victims, *observation.input_shape), 0.5)
            zeros = torch.zeros(observation.victims)
            return Reconstruction(inputs=grey, objective=zeros, diverged=zeros.bool(), steps=zeros.long())

    result = decoded(Mixup(k=2), decoders.build("decode-oracle:flipped=no"), attack=Spy(), rounds=2)
    (observation,) = seen
    assert observation.victims == 12
    assert observation.input_shape == (1, 1, 8, 8)
    assert observation.knowledge == Knowledge.LABELS
    assert observation.labels is not None
    assert observation.labels.shape == (12, 1, 10)
    assert mean_psnr(result) < 20


def test_update_defenses_act_on_every_shared_encoding() -> None:
    attack, decoder = InvertingGradients(steps=60, tv=1e-6), decoders.build("decode-oracle:flipped=no")
    batch = private(3)
    results = [
        audit_decoding(
            batch,
            Client(model=network(), loss=F.cross_entropy, defenses=(Mixup(k=2), GaussianNoise(std=std))),
            decoder=decoder,
            attack=attack,
            rounds=2,
            knowledge=ORACLE,
            runtime=Runtime(chunk=64),
        )
        for std in (0.0, 1.0)
    ]
    clean, noisy = (float(torch.tensor(r.scores["psnr"].protected).mean()) for r in results)
    assert clean > noisy + 5


def test_obscured_images_are_decoded_with_their_extractor() -> None:
    defense = Loda(steps=5, extractor=Extractor("tiny", nn.Sequential(nn.Conv2d(1, 3, 3, padding=1))))
    features = defense.features(private().inputs[0])
    result = audit_decoding(
        private(),
        Client(model=network(), loss=F.cross_entropy, defenses=(defense,)),
        decoder=decoders.build("decode-loda:steps=5"),
        knowledge=Knowledge.AUXILIARY,
        auxiliary=Auxiliary(extractor=features),
    )
    assert not result.oracle
    assert result.guess.shape == private().inputs.shape


@pytest.mark.parametrize(("together", "rounds"), [(False, 1), (False, 3), (True, 1)])
def test_only_images_of_no_known_order_are_brought_into_the_best_one(together: bool, rounds: int) -> None:
    @final
    class Swapped(Decoder):
        paper: ClassVar[Paper] = Paper("", "", 2020, "")
        joint: ClassVar[bool] = together

        @override
        def decode(self, encodings: Encodings, *, streams: Streams, runtime: Runtime) -> Decoding:
            first = encodings.images[:, :6].flip(1)
            others = encodings.images[:, 6:]
            return Decoding(images=torch.cat([first, others], 1), objective=torch.zeros(len(first)))

    result = decoded(Mixup(k=1), Swapped(), rounds=rounds)
    wanted = private().inputs if together else private().inputs.flip(1)
    torch.testing.assert_close(result.guess, wanted)
    assert (mean_psnr(result) > 40) == together


@pytest.mark.parametrize("name", decoders.names())
def test_every_decoder_says_who_it_is(name: str) -> None:
    decoder = decoders.build(name)
    assert decoders.build(decoders.describe(decoder)) == decoder
    assert isinstance(decoder.paper, Paper)
    assert all(getattr(decoder.card, field.name) for field in fields(Card))
    assert decoder.oracle == (name == "decode-oracle")


def test_says_what_is_missing() -> None:
    client = Client(model=network(), loss=F.cross_entropy)
    with pytest.raises(DataError, match="give one such as mixup"):
        encode(private(), client, rounds=1)
    with pytest.raises(DataError, match="rounds must be at least 1"):
        encode(private(), replace(client, defenses=(Mixup(k=2),)), rounds=0)
    with pytest.raises(DataError, match="needs as many, got 3"):
        encode(private(3), replace(client, defenses=(Mixup(k=4),)), rounds=1)


def test_the_weights_of_an_encoded_set_add_up_what_repeats() -> None:
    client = Client(model=network(), loss=F.cross_entropy, defenses=(Mixup(k=2), Mixup(k=3)))
    made: EncodedSet = encode(private(4), client, rounds=1)
    weights: Tensor = made.weights()
    torch.testing.assert_close(weights.sum(2), torch.ones(1, 4))
    torch.testing.assert_close(torch.einsum("vnp,vp...->vn...", weights, made.batch.inputs), made.protected.inputs)
