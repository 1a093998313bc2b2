"""Tuning on simulated victims: what it may use, what it chooses, and what it writes down."""

import dataclasses
import json
from functools import cache

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from gradveil._tuning_space import default_space, settings_of
from gradveil._tuning_victims import nearness, ranks, scores, simulate
from gradveil.attacks import DLG, IDLG, SPEAR, Attack, GradientMatching, InvertingGradients, PolicyAware
from gradveil.client import observe
from gradveil.defenses import Defense, GaussianNoise, Pruning
from gradveil.engine import Runtime
from gradveil.errors import DataError, GradVeilError, KnowledgeError, SpecError
from gradveil.metrics import PSNR
from gradveil.models import build
from gradveil.streams import Streams
from gradveil.tuning import Search, tune
from gradveil.types import Auxiliary, Batch, Knowledge, LocalTraining, Observation, Reconstruction

GRANTED = Knowledge.LABELS | Knowledge.AUXILIARY
STREAMS = Streams(seed=4, purpose="attack")
RUNTIME = Runtime(chunk=64)
GRID = [{"lr": (0.1, 1e-6), "tv": (1e-5, 10.0)}]
"""One good setting, one that does not move, and two that see nothing but smoothness."""


def images(name: str, count: int) -> Batch:
    streams = Streams(seed=11, purpose="test").bind(count)
    coarse = streams.uniform(name, (1, 1, 4, 4))
    return Batch(coarse.repeat_interleave(2, 3).repeat_interleave(2, 4), streams.integers(name, 10, (1,)))


@cache
def network() -> nn.Module:
    return build("lenet", input_shape=(1, 8, 8), num_classes=10, seed=5)


@cache
def public() -> Auxiliary:
    some = images("public", 24)
    return Auxiliary(inputs=some.inputs[:, 0], labels=some.labels[:, 0])


def see(
    knowledge: Knowledge = GRANTED, defenses: tuple[Defense, ...] = (), local: LocalTraining | None = None
) -> Observation:
    return observe(
        images("private", 2), network(), F.cross_entropy, defenses=defenses, knowledge=knowledge, local=local
    )


def attack(steps: int = 30) -> InvertingGradients:
    return InvertingGradients(steps=steps, tv=1.0)


@cache
def searched() -> tuple[InvertingGradients, Search]:
    return tune(
        attack(), see(), auxiliary=public(), space=GRID, victims=3, rule="psnr", streams=STREAMS, runtime=RUNTIME
    )


def test_the_best_setting_is_chosen_and_every_one_is_kept() -> None:
    tuned, search = searched()
    assert (tuned.lr, tuned.tv, tuned.steps) == (0.1, 1e-5, 30)
    assert search.chosen == "inverting-gradients:steps=30,tv=1e-05"
    assert search.trials[0].setting == search.attack == "inverting-gradients:steps=30,tv=1"
    assert len({trial.setting for trial in search.trials}) == 5
    assert max(search.trials, key=lambda trial: trial.psnr).setting == search.chosen
    assert (search.victims, search.public, search.seed) == (3, 24, 4)


def test_the_observed_update_plays_no_part() -> None:
    seen = see()
    nothing = dataclasses.replace(seen, update=tuple(torch.full_like(tensor, 7.0) for tensor in seen.update))
    other = tune(
        attack(), nothing, auxiliary=public(), space=GRID, victims=3, rule="psnr", streams=STREAMS, runtime=RUNTIME
    )
    assert other == searched()


def test_scores_are_those_of_each_setting_alone_on_the_simulated_truth() -> None:
    made = simulate(see(), public(), victims=3, streams=STREAMS.fork("tuning"))
    for setting, trial in zip(settings_of(attack(), GRID, limit=9, streams=STREAMS), searched()[1].trials, strict=True):
        guess = setting(made.observation, streams=STREAMS.fork("tuning").fork("attack"), runtime=RUNTIME)
        each = PSNR()(guess.inputs, made.evidence.batch.inputs)[:, 0].double()
        assert trial.psnr == pytest.approx(float(each.mean()), abs=1e-2)
        assert trial.error == pytest.approx(float(each.std()) / 3**0.5, abs=1e-2)


def test_simulated_victims_are_public_images_none_twice() -> None:
    made, known = simulate(see(), public(), victims=24, streams=STREAMS), public()
    assert known.inputs is not None
    assert known.labels is not None
    distances = torch.cdist(made.evidence.batch.inputs.flatten(1), known.inputs.flatten(1))
    nearest = distances.argmin(1)
    assert distances.amin(1).max() < 1e-6
    assert sorted(nearest.tolist()) == list(range(24))
    assert torch.equal(made.evidence.batch.labels[:, 0], known.labels[nearest])
    assert made.observation.labels is not None
    assert simulate(see(Knowledge.AUXILIARY), known, victims=2, streams=STREAMS).observation.labels is None


def test_known_defenses_and_local_training_are_simulated_and_unknown_ones_are_not() -> None:
    defenses, local = (Pruning(fraction=0.9),), LocalTraining(steps=2, lr=0.1, shares="difference")
    everything = GRANTED | Knowledge.DEFENSES | Knowledge.LOCAL_TRAINING
    knowing = simulate(see(everything, defenses, local), public(), victims=2, streams=STREAMS)
    guessing = simulate(see(GRANTED, defenses, local), public(), victims=2, streams=STREAMS)
    assert knowing.observation.local == local
    assert guessing.observation.local is None
    zeros = [float((made.observation.update[0] == 0).float().mean()) for made in (knowing, guessing)]
    assert zeros[0] > 0.5
    assert zeros[1] == 0.0


def test_simulated_clients_draw_noise_of_their_own() -> None:
    granted = GRANTED | Knowledge.DEFENSES
    seen = see(granted, (GaussianNoise(std=1.0),))
    first, again, other = (
        simulate(seen, public(), victims=2, streams=Streams(seed=seed)).observation.update[0] for seed in (0, 0, 1)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_models_that_differ_are_taken_in_turn() -> None:
    seen = see()
    weights = {"fc.bias": torch.stack([torch.zeros(10), torch.ones(10) * torch.arange(10)])}
    varied = dataclasses.replace(seen, parameters=weights)
    assert "fc.bias" in seen.names
    parameters = simulate(varied, public(), victims=3, streams=STREAMS).observation.parameters
    assert parameters is not None
    assert torch.equal(parameters["fc.bias"], weights["fc.bias"][[0, 1, 0]])


def test_halving_runs_shorter_rounds_and_drops_the_worse_half() -> None:
    tuned, search = tune(
        attack(16), see(), auxiliary=public(), space=GRID, victims=2, halvings=2, streams=STREAMS, runtime=RUNTIME
    )
    rounds = [[trial.setting for trial in search.trials if trial.round == turn] for turn in range(3)]
    assert [len(settings) for settings in rounds] == [5, 3, 2]
    assert all("steps=4," in setting for setting in rounds[0])
    assert all("steps=16," in setting for setting in rounds[2])
    assert (tuned.lr, tuned.tv, tuned.steps) == (0.1, 1e-5, 16)


def test_identification_decides_unless_another_rule_is_given() -> None:
    settings = {"auxiliary": public(), "space": GRID, "victims": 3, "streams": STREAMS, "runtime": RUNTIME}
    _, search = tune(attack(), see(), **settings)  # type: ignore[arg-type]
    best = max(search.trials, key=lambda trial: (trial.nearness, trial.psnr))
    assert (search.rule, search.chosen) == ("identification", best.setting)
    assert best.identified == 1.0
    assert search.trials[0].identified < 1.0
    assert [trial.psnr for trial in search.trials] == [trial.psnr for trial in searched()[1].trials]


def test_grey_wins_by_psnr_and_loses_by_identification() -> None:
    made = simulate(see(), public(), victims=8, streams=STREAMS)
    truth, flags = made.evidence.batch.inputs, torch.zeros(8, dtype=torch.bool)
    noise = Streams(seed=1, purpose="test").bind(8).normal("noise", truth.shape[1:])
    guesses = {
        name: Reconstruction(inputs=inputs, objective=torch.zeros(8), diverged=flags, steps=flags.long())
        for name, inputs in {"grey": torch.full_like(truth, 0.5), "noisy": (truth + 0.5 * noise).clamp(0, 1)}.items()
    }
    psnr = {name: float(scores(guess, made).mean()) for name, guess in guesses.items()}
    near = {
        name: float(nearness(ranks(guess, made, public(), streams=STREAMS), public()).mean())
        for name, guess in guesses.items()
    }
    assert psnr["grey"] > psnr["noisy"] + 1
    assert near["noisy"] > near["grey"] + 0.3


def test_nearness_tells_ranks_apart_that_are_not_the_first() -> None:
    found = nearness(torch.tensor([0.0, 1.0, 5.0, 24.0]), public())
    assert torch.equal(found, found.sort(descending=True).values)
    torch.testing.assert_close(found[[0, 3]], torch.tensor([1.0, 0.0]))


def test_a_short_search_gives_the_chosen_attack_its_own_steps_back() -> None:
    tuned, search = tune(
        attack(500), see(), auxiliary=public(), space=GRID, victims=2, steps=9, streams=STREAMS, runtime=RUNTIME
    )
    assert (tuned.steps, search.steps) == (500, 9)
    assert search.attack == "inverting-gradients:steps=500,tv=1"
    assert search.chosen.startswith("inverting-gradients:steps=500")
    assert all("steps=9" in trial.setting for trial in search.trials)
    assert len(search.trials) == 5


def test_perfect_guesses_score_highest_whatever_their_order() -> None:
    streams = Streams(seed=2, purpose="test").bind(2)
    batch = Batch(streams.uniform("images", (3, 1, 8, 8)), streams.integers("labels", 10, (3,)))
    seen = observe(batch, network(), F.cross_entropy, knowledge=GRANTED)
    made = simulate(seen, public(), victims=2, streams=STREAMS)
    flags = torch.zeros(2, dtype=torch.bool)
    guess = Reconstruction(
        inputs=made.evidence.batch.inputs.flip(1), objective=torch.zeros(2), diverged=flags, steps=flags.long()
    )
    assert scores(guess, made).tolist() == [140.0, 140.0]
    assert ranks(guess, made, public(), streams=STREAMS).tolist() == [[0.0] * 3] * 2


@pytest.mark.parametrize("one", [InvertingGradients(), GradientMatching(), DLG(), IDLG(), PolicyAware()], ids=str)
def test_every_attack_of_the_family_has_a_space(one: Attack) -> None:
    settings = settings_of(one, default_space(one), limit=1000, streams=STREAMS)
    assert settings[0] == one
    assert len(set(settings)) == len(settings) >= 10
    few = settings_of(one, default_space(one), limit=5, streams=STREAMS)
    assert len(few) == 6
    assert set(few) <= set(settings)
    assert few != settings_of(one, default_space(one), limit=5, streams=Streams(seed=9))


def test_polishing_takes_a_quarter_of_the_steps_that_the_attack_has() -> None:
    one = InvertingGradients(steps=200)
    settings = settings_of(one, default_space(one), limit=1000, streams=STREAMS)
    assert {setting.polish for setting in settings} == {0, 50}


def test_an_attack_with_nothing_to_tune_stays_as_it_is() -> None:
    assert settings_of(SPEAR(), default_space(SPEAR()), limit=5, streams=STREAMS) == [SPEAR()]


def test_attacks_that_share_no_stack_are_tuned_one_setting_after_the_other() -> None:
    tuned, search = tune(
        DLG(steps=2),
        see(),
        auxiliary=public(),
        space=[{"history": (2, 3), "inner": (4, 5)}],
        victims=2,
        streams=STREAMS,
        runtime=RUNTIME,
    )
    assert len(search.trials) == 5
    assert isinstance(tuned, DLG)


def test_a_search_survives_being_written_down() -> None:
    _, search = searched()
    assert Search.from_dict(json.loads(json.dumps(dataclasses.asdict(search)))) == search


def test_without_auxiliary_knowledge_it_refuses() -> None:
    with pytest.raises(KnowledgeError, match=r"tuning inverting-gradients needs auxiliary images, but .* knows labels"):
        tune(attack(), see(Knowledge.LABELS), auxiliary=public(), streams=STREAMS)
    with pytest.raises(KnowledgeError, match="but auxiliary holds none; give some"):
        tune(attack(), see(), streams=STREAMS)


@pytest.mark.parametrize(
    ("error", "match", "known", "space", "victims"),
    [
        (DataError, "need 100 public images, got 24", public(), GRID, 100),
        (DataError, "with labels", Auxiliary(inputs=torch.zeros(9, 1, 8, 8)), GRID, 2),
        (DataError, "victims' shape", Auxiliary(inputs=torch.zeros(9, 3, 8, 8), labels=torch.zeros(9)), GRID, 2),
        (GradVeilError, "no setting of inverting-gradients called 'tw'", public(), [{"tw": (1,)}], 2),
        (SpecError, "lr must be above 0", public(), [{"lr": (-1.0,)}], 2),
        (SpecError, "victims of tuning must be at least 2, got 1", public(), GRID, 1),
    ],
)
def test_mistakes_are_answered_in_a_sentence(
    error: type[Exception], match: str, known: Auxiliary, space: list[dict[str, tuple[object, ...]]], victims: int
) -> None:
    with pytest.raises(error, match=match):
        tune(attack(2), see(), auxiliary=known, space=space, victims=victims, streams=STREAMS)
