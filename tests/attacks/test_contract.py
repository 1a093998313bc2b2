"""What every attack promises; a new attack is one new row."""

import copy
import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gradveil.attacks import DLG, Attack, InvertingGradients, attacks
from gradveil.client import observe
from gradveil.defenses import GaussianNoise, Pruning
from gradveil.engine import Runtime
from gradveil.errors import KnowledgeError
from gradveil.metrics import PSNR
from gradveil.models import build
from gradveil.streams import Streams
from gradveil.types import Batch, Knowledge, Observation, Paper


@dataclass(frozen=True)
class Row:
    """An attack, what it is granted, and how well it must do on a tiny batch."""

    attack: Attack
    knowledge: Knowledge
    least_db: float
    batch_size: int = 1


ROWS = {
    "dlg": Row(DLG(steps=12, restarts=2), Knowledge.NOTHING, 40.0),
    "dlg, labels known, pattern": Row(DLG(steps=12, start="pattern", tile=4, restarts=2), Knowledge.LABELS, 40.0),
    "inverting-gradients": Row(InvertingGradients(steps=160, tv=1e-5), Knowledge.LABELS, 24.0),
    "inverting-gradients, labels read": Row(InvertingGradients(steps=160, tv=1e-5), Knowledge.NOTHING, 24.0),
    "inverting-gradients, batch of 2": Row(InvertingGradients(steps=200, tv=1e-5), Knowledge.LABELS, 15.0, batch_size=2),
}


def private(batch_size: int, victims: int = 3) -> Batch:
    streams = Streams(seed=7, purpose="test").bind(victims)
    coarse = streams.uniform("images", (batch_size, 1, 4, 4))
    images = coarse.repeat_interleave(2, 3).repeat_interleave(2, 4)
    return Batch(images, streams.integers("labels", 10, (batch_size,)))


def network() -> nn.Module:
    return build("lenet", input_shape=(1, 8, 8), num_classes=10, seed=3)


def see(row: Row, victims: int = 3) -> Observation:
    return observe(private(row.batch_size, victims), network(), F.cross_entropy, knowledge=row.knowledge)


def psnr(guess: Tensor, truth: Tensor) -> Tensor:
    return PSNR()(guess, truth)


every_row = pytest.mark.parametrize("row", ROWS.values(), ids=ROWS.keys())


def test_every_attack_has_a_row() -> None:
    assert {attacks.name_of(row.attack) for row in ROWS.values()} == set(attacks.names())


@every_row
def test_reconstructs_a_tiny_batch(row: Row) -> None:
    guess = row.attack(see(row), streams=Streams(seed=0), runtime=Runtime(chunk=3))
    truth = private(row.batch_size).inputs
    best = torch.maximum(psnr(guess.inputs, truth).mean(1), psnr(guess.inputs.flip(1), truth).mean(1))
    assert best.median() >= row.least_db


@every_row
def test_repeats_its_bits_from_the_same_seed(row: Row) -> None:
    short = dataclasses.replace(row.attack, steps=3)
    first, second = (short(see(row), streams=Streams(seed=5), runtime=Runtime(chunk=3)) for _ in range(2))
    assert torch.equal(first.inputs, second.inputs)
    assert not torch.equal(first.inputs, short(see(row), streams=Streams(seed=6), runtime=Runtime(chunk=3)).inputs)


@every_row
def test_a_stack_gives_what_each_victim_alone_gives(row: Row) -> None:
    short, seen = dataclasses.replace(row.attack, steps=3), in_float64(see(row))
    together = short(seen, streams=Streams(seed=0), runtime=Runtime(chunk=3))
    alone = short(seen, streams=Streams(seed=0), runtime=Runtime(chunk=1))
    torch.testing.assert_close(together.inputs, alone.inputs, rtol=0, atol=1e-9)


@every_row
def test_leaves_model_update_and_random_state_alone(row: Row) -> None:
    seen, state = see(row), torch.get_rng_state()
    model, update = copy.deepcopy(seen.model.state_dict()), [tensor.clone() for tensor in seen.update]
    dataclasses.replace(row.attack, steps=2)(seen, streams=Streams(seed=0), runtime=Runtime(chunk=3))
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(model[name], tensor) for name, tensor in seen.model.state_dict().items())
    assert all(torch.equal(before, after) for before, after in zip(update, seen.update, strict=True))
    assert all(parameter.requires_grad for parameter in seen.model.parameters())


@every_row
def test_guesses_pixels_of_the_right_shape(row: Row) -> None:
    guess = dataclasses.replace(row.attack, steps=2)(see(row), streams=Streams(seed=0), runtime=Runtime(chunk=3))
    assert guess.inputs.shape == private(row.batch_size).inputs.shape
    assert bool(((guess.inputs >= 0) & (guess.inputs <= 1)).all())
    assert guess.objective.shape == guess.diverged.shape == guess.steps.shape == (3,)


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
    short = dataclasses.replace(row.attack, steps=3)
    guess = short(dataclasses.replace(seen, update=broken), streams=Streams(seed=0), runtime=Runtime(chunk=3))
    healthy = short(seen, streams=Streams(seed=0), runtime=Runtime(chunk=3))
    assert guess.diverged.tolist() == [False, True, False]
    assert torch.equal(guess.inputs[[0, 2]], healthy.inputs[[0, 2]])


def test_who_knows_of_pruning_matches_the_surviving_entries() -> None:
    batch = private(1, victims=6)
    scores: dict[Knowledge, float] = {}
    for knowledge in (Knowledge.LABELS, Knowledge.LABELS | Knowledge.DEFENSES):
        defenses = [Pruning(fraction=0.9)]
        seen = observe(batch, network(), F.cross_entropy, defenses=defenses, knowledge=knowledge)
        guess = InvertingGradients(steps=200, tv=1e-5)(seen, streams=Streams(seed=0), runtime=Runtime(chunk=6))
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
    [lambda: DLG(steps=0), lambda: DLG(lr=0), lambda: InvertingGradients(steps=0), lambda: InvertingGradients(tv=-1)],
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
