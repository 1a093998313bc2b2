"""What every attack promises; a new attack is one new row."""

import copy
import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import ClassVar

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from typing_extensions import override

from gradveil.attacks import (
    DLG,
    IDLG,
    RGAP,
    SPEAR,
    ActiveAttack,
    Analytic,
    Attack,
    BayesOptimal,
    ExtraImage,
    Fishing,
    Generative,
    GradientMatching,
    Imprint,
    InvertingGradients,
    LodaAware,
    PolicyAware,
    SeeThroughGradients,
    SurrogateHead,
    TrapWeights,
    attacks,
)
from gradveil.client import observe
from gradveil.defenses import DCS2, SPN, Defense, GaussianNoise, Pruning, TransformPolicy
from gradveil.engine import Runtime
from gradveil.errors import KnowledgeError
from gradveil.metrics import PSNR, align, arrange
from gradveil.models import build
from gradveil.streams import Streams
from gradveil.types import Auxiliary, Batch, Knowledge, Observation, Paper, Reconstruction


@dataclass(frozen=True, eq=False)
class Row:
    """An attack, what it is granted, and how well it must do on a tiny batch.

    Args:
        attack: to test.
        knowledge: granted to it.
        least_db: mean PSNR that the median victim must lose.
        batch_size: images of a victim.
        network: that the victims train; a malicious server changes it first.
        brief: settings that make the attack short, where its strength is not the point.
        draws: whether the attack's guess depends on its randomness.
        auxiliary: public material that the adversary is given.
        defenses: of the victims.
        seed: of the private batch; where the bound was set on other batches, one that was not looked at.
    """

    attack: Attack
    knowledge: Knowledge
    least_db: float
    batch_size: int = 1
    network: str = "lenet"
    brief: Mapping[str, int] = field(default_factory=lambda: {"steps": 3})
    draws: bool = True
    auxiliary: Auxiliary | None = None
    defenses: tuple[Defense, ...] = ()
    seed: int = 7

    @property
    def short(self) -> Attack:
        """The attack with few steps."""
        return dataclasses.replace(self.attack, **self.brief)  # type: ignore[type-var]


class Tiles(nn.Module):
    """A generator of every image of 4×4 tiles."""

    latent_size = 16

    @override
    def forward(self, latents: Tensor) -> Tensor:
        return latents.sigmoid().view(-1, 1, 4, 4).repeat_interleave(2, 2).repeat_interleave(2, 3)


def features() -> nn.Module:
    """A map of images to features, twice as many as pixels."""
    convolution = nn.utils.skip_init(nn.Conv2d, 1, 2, 1, bias=False)
    nn.init.constant_(convolution.weight, 0.8)
    return nn.Sequential(convolution, nn.Flatten())


TWO = {"steps": 2}  # of 20 iterations each

ROWS = {
    "dlg": Row(DLG(steps=8, restarts=2), Knowledge.NOTHING, 40.0, brief=TWO),
    "dlg, labels known, pattern": Row(
        DLG(steps=8, start="pattern", tile=4, restarts=2), Knowledge.LABELS, 40.0, brief=TWO
    ),
    "inverting-gradients": Row(InvertingGradients(steps=100, tv=1e-5), Knowledge.LABELS, 24.0),
    "inverting-gradients, labels read": Row(InvertingGradients(steps=100, tv=1e-5), Knowledge.NOTHING, 24.0),
    "inverting-gradients, batch of 2": Row(
        InvertingGradients(steps=140, tv=1e-5), Knowledge.LABELS, 15.0, batch_size=2
    ),
    "gradient-matching": Row(
        GradientMatching(steps=100, tv=1e-5, layers=("first-2",), weights="linear"), Knowledge.LABELS, 40.0, seed=4201
    ),
    "gradient-matching:lbfgs-l2": Row(
        GradientMatching(preset="lbfgs-l2", lr=1.0, tv=1e-9, steps=8, labels="idlg"),
        Knowledge.NOTHING,
        40.0,
        brief=TWO,
    ),
    "analytic": Row(Analytic(), Knowledge.NOTHING, 60.0, network="mlp:hidden=16", brief={}, draws=False),
    "see-through-gradients": Row(
        SeeThroughGradients(steps=100, objective="cosine", match=1.0, tv=1e-5, bn=0.0, signed=True, restarts=2),
        Knowledge.NOTHING,
        24.0,
    ),
    "fishing": Row(Fishing(target=3, steps=100, tv=1e-5), Knowledge.NOTHING, 16.0, batch_size=3),
    "r-gap": Row(RGAP(), Knowledge.NOTHING, 60.0, brief={}, draws=False),
    "bayes-optimal": Row(BayesOptimal(steps=100, tv=1e-5), Knowledge.LABELS | Knowledge.DEFENSES, 24.0),
    "spear": Row(
        SPEAR(draws=256),
        Knowledge.NOTHING,
        60.0,
        batch_size=3,
        network="mlp:hidden=48",
        brief={"rounds": 1, "draws": 4},
    ),
    "imprint": Row(Imprint(bins=64), Knowledge.NOTHING, 60.0, batch_size=3, brief={}, draws=False),
    "imprint, views": Row(
        Imprint(bins=12, views=3), Knowledge.NOTHING, 60.0, batch_size=4, brief={}, draws=False, seed=4207
    ),
    "trap-weights": Row(
        TrapWeights(), Knowledge.NOTHING, 60.0, batch_size=3, network="mlp:hidden=64", brief={}, draws=False
    ),
    "generative": Row(
        Generative(steps=60, population=12, objective="relative", weight=1e-5),
        Knowledge.AUXILIARY,
        22.0,
        auxiliary=Auxiliary(generator=Tiles()),
    ),
    "generative, adam": Row(
        Generative(optimizer="adam", steps=80, objective="relative", weight=1e-5),
        Knowledge.AUXILIARY | Knowledge.LABELS,
        24.0,
        auxiliary=Auxiliary(generator=Tiles()),
    ),
    "surrogate-head": Row(SurrogateHead(steps=100), Knowledge.DEFENSES, 30.0, defenses=(SPN(alpha2=0.2, bits=16),)),
    "extra-image": Row(
        ExtraImage(steps=200),
        Knowledge.DEFENSES | Knowledge.LABELS,
        11.5,
        seed=4202,
        batch_size=2,
        defenses=(DCS2(steps=40, fraction=0.5),),
    ),
    "loda-aware": Row(
        LodaAware(first=90, steps=60, lr=0.06, tv=1e-5, c=0.2),
        Knowledge.DEFENSES,
        25.0,
        seed=4203,
        brief={"first": 3, "steps": 3},
        auxiliary=Auxiliary(extractor=features()),
    ),
    "idlg": Row(IDLG(steps=8, restarts=2), Knowledge.NOTHING, 40.0, brief=TWO),
    "policy-aware": Row(
        PolicyAware(steps=100, tv=1e-4, fill="black", limits=(0.0, 0.25), restarts=6),
        Knowledge.DEFENSES | Knowledge.LABELS,
        20.0,
        seed=4206,
        defenses=(TransformPolicy(policy="7", crop_and_flip=False),),
    ),
    "policy-aware, variants": Row(
        PolicyAware(search="variants", steps=100, tv=1e-3, screen=20),
        Knowledge.DEFENSES,
        19.0,
        seed=4205,
        brief={"steps": 3, "screen": 2},
        defenses=(TransformPolicy(policy="7", crop_and_flip=False),),
    ),
}


def private(batch_size: int, victims: int = 3, seed: int = 7) -> Batch:
    streams = Streams(seed=seed, purpose="test").bind(victims)
    return Batch(images("images", batch_size, streams), streams.integers("labels", 10, (batch_size,)))


def public() -> Auxiliary:
    return Auxiliary(inputs=images("public", 500, Streams(seed=8, purpose="test").bind(1))[0])


def images(name: str, count: int, streams: Streams) -> Tensor:
    coarse = streams.uniform(name, (count, 1, 4, 4))
    return coarse.repeat_interleave(2, 3).repeat_interleave(2, 4)


def network(name: str = "lenet") -> nn.Module:
    return build(name, input_shape=(1, 8, 8), num_classes=10, seed=3)


@cache
def see(row: Row) -> Observation:
    """Return what the adversary of a row sees; every test gets the same object, which no attack may change."""
    model = network(row.network)
    if isinstance(row.attack, ActiveAttack):
        shape = (row.batch_size, 1, 8, 8)
        model = row.attack.poison(model, input_shape=shape, auxiliary=public(), streams=Streams(seed=0))
    batch = private(row.batch_size, seed=row.seed)
    seen = observe(batch, model, F.cross_entropy, defenses=row.defenses, knowledge=row.knowledge)
    return dataclasses.replace(seen, auxiliary=row.auxiliary)


def psnr(guess: Tensor, truth: Tensor) -> Tensor:
    return PSNR()(guess, truth)


@cache
def brief_guess(row: Row) -> Reconstruction:
    """Return what the short attack of a row guesses from seed 0."""
    return row.short(see(row), streams=Streams(seed=0), runtime=Runtime(chunk=3))


every_row = pytest.mark.parametrize("row", ROWS.values(), ids=ROWS.keys())


def test_every_attack_has_a_row() -> None:
    assert {attacks.name_of(row.attack) for row in ROWS.values()} == set(attacks.names())


@every_row
def test_reconstructs_a_tiny_batch(row: Row) -> None:
    guess = row.attack(see(row), streams=Streams(seed=0), runtime=Runtime(chunk=3))
    truth = private(row.batch_size, seed=row.seed).inputs
    ordered = arrange(guess.inputs, align(guess.inputs, truth))
    assert psnr(ordered, truth).mean(1).median() >= row.least_db


@every_row
def test_repeats_its_bits_from_the_same_seed(row: Row) -> None:
    first = brief_guess(row)
    again, other = (row.short(see(row), streams=Streams(seed=seed), runtime=Runtime(chunk=3)) for seed in (0, 1))
    assert torch.equal(first.inputs, again.inputs)
    assert torch.equal(first.inputs, other.inputs) != row.draws


@every_row
def test_a_stack_gives_what_each_victim_alone_gives(row: Row) -> None:
    short, seen = row.short, in_float64(see(row))
    together = short(seen, streams=Streams(seed=0), runtime=Runtime(chunk=3))
    alone = short(seen, streams=Streams(seed=0), runtime=Runtime(chunk=1))
    torch.testing.assert_close(together.inputs, alone.inputs, rtol=0, atol=1e-9)


@every_row
def test_leaves_model_update_and_random_state_alone(row: Row) -> None:
    seen, state = see(row), torch.get_rng_state()
    model, update = copy.deepcopy(seen.model.state_dict()), [tensor.clone() for tensor in seen.update]
    row.short(seen, streams=Streams(seed=0), runtime=Runtime(chunk=3))
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(model[name], tensor) for name, tensor in seen.model.state_dict().items())
    assert all(torch.equal(before, after) for before, after in zip(update, seen.update, strict=True))
    assert all(parameter.requires_grad for parameter in seen.model.parameters())


@every_row
def test_guesses_pixels_of_the_right_shape(row: Row) -> None:
    guess = brief_guess(row)
    assert guess.inputs.shape == private(row.batch_size).inputs.shape
    assert bool(((guess.inputs >= 0) & (guess.inputs <= 1)).all())
    assert guess.objective.shape == guess.diverged.shape == guess.steps.shape == (3,)


@dataclass(frozen=True)
class Needy(Attack):
    """An attack that never gets to run."""

    requires: ClassVar[Knowledge] = Knowledge.BUFFERS | Knowledge.LABELS

    @override
    def run(self, observation: Observation, *, streams: Streams, runtime: Runtime) -> Reconstruction:
        raise AssertionError("ran without its knowledge")


def test_names_the_knowledge_that_is_missing() -> None:
    seen = observe(private(1), network(), F.cross_entropy, knowledge=Knowledge.LABELS)
    with pytest.raises(KnowledgeError, match="Needy needs buffers, but the adversary knows labels; grant it"):
        Needy()(seen, streams=Streams(seed=0))


@every_row
def test_refuses_to_run_without_its_knowledge(row: Row) -> None:
    if not row.attack.requires:
        pytest.skip("needs nothing")
    seen = dataclasses.replace(see(row), knowledge=Knowledge.NOTHING)
    with pytest.raises(KnowledgeError, match="needs"):
        row.attack(seen, streams=Streams(seed=0))


@every_row
def test_rebuilds_from_its_fields_and_names_its_paper(row: Row) -> None:
    assert attacks.build(attacks.describe(row.attack)) == row.attack
    assert isinstance(row.attack.paper, Paper)
    assert row.attack.threat in set("ABCDEFGH")


@every_row
def test_survives_a_victim_whose_update_is_not_finite(row: Row) -> None:
    seen = see(row)
    broken = tuple(tensor.index_fill(0, torch.tensor([1]), torch.nan) for tensor in seen.update)
    guess = row.short(dataclasses.replace(seen, update=broken), streams=Streams(seed=0), runtime=Runtime(chunk=3))
    assert guess.diverged.tolist() == [False, True, False]
    assert torch.equal(guess.inputs[[0, 2]], brief_guess(row).inputs[[0, 2]])


@pytest.mark.parametrize("name", ["policy-aware", "policy-aware, variants"])
def test_what_policy_aware_sees_through_stops_an_attack_that_does_not_know_it(name: str) -> None:
    row = ROWS[name]
    assert isinstance(row.attack, PolicyAware)
    plain = InvertingGradients(steps=row.attack.steps, tv=row.attack.tv)
    guess = plain(see(row), streams=Streams(seed=0), runtime=Runtime(chunk=3))
    assert psnr(guess.inputs, private(1, seed=row.seed).inputs).max() <= row.least_db - 4


def test_who_knows_of_pruning_matches_the_surviving_entries() -> None:
    batch = private(1, victims=6)
    scores: dict[Knowledge, float] = {}
    for knowledge in (Knowledge.LABELS, Knowledge.LABELS | Knowledge.DEFENSES):
        defenses = [Pruning(fraction=0.9)]
        seen = observe(batch, network(), F.cross_entropy, defenses=defenses, knowledge=knowledge)
        guess = InvertingGradients(steps=120, tv=1e-5)(seen, streams=Streams(seed=0), runtime=Runtime(chunk=6))
        scores[knowledge] = float(psnr(guess.inputs, batch.inputs).mean())
    assert scores[Knowledge.LABELS | Knowledge.DEFENSES] > scores[Knowledge.LABELS] + 1


def test_noise_makes_the_guess_worse() -> None:
    batch = private(1)
    guesses = [
        InvertingGradients(steps=120)(
            observe(batch, network(), F.cross_entropy, defenses=[GaussianNoise(std=std)], knowledge=Knowledge.LABELS),
            streams=Streams(seed=0),
            runtime=Runtime(chunk=3),
        )
        for std in (0.0, 1.0)
    ]
    clean, noisy = (float(psnr(guess.inputs, batch.inputs).mean()) for guess in guesses)
    assert clean > noisy + 5


@pytest.mark.parametrize(
    "make",
    [
        lambda: DLG(steps=0),
        lambda: DLG(lr=0),
        lambda: Analytic(rows=0),
        lambda: BayesOptimal(steps=0),
        lambda: Fishing(target=-1),
        lambda: Fishing(sharpness=0),
        lambda: SeeThroughGradients(bn=-1),
        lambda: BayesOptimal(prior=-1),
        lambda: SPEAR(rounds=0),
        lambda: SPEAR(tolerance=0),
        lambda: Imprint(bins=1),
        lambda: Imprint(gain=0),
        lambda: Imprint(views=0),
        lambda: Imprint(bins=5, views=3),
        lambda: Imprint(source="gaussian", views=2),
        lambda: TrapWeights(scale=2),
        lambda: IDLG(restarts=0),
        lambda: InvertingGradients(steps=0),
        lambda: InvertingGradients(tv=-1),
        lambda: Generative(population=3),
        lambda: Generative(steps=0),
        lambda: Generative(sigma=0),
        lambda: SurrogateHead(tv=-1),
        lambda: ExtraImage(extra=0),
        lambda: LodaAware(first=0),
        lambda: LodaAware(c=-1),
        lambda: GradientMatching(median=-1),
        lambda: GradientMatching(preset="lbfgs-l3"),  # type: ignore[arg-type]
    ],
)
def test_refuses_settings_that_make_no_sense(make: Callable[[], Attack]) -> None:
    with pytest.raises(ValueError, match="must be"):
        make()


def in_float64(observation: Observation) -> Observation:
    return dataclasses.replace(
        observation,
        model=copy.deepcopy(observation.model).double(),
        update=tuple(tensor.double() for tensor in observation.update),
    )
