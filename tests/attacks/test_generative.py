import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from typing_extensions import override

from gradveil import Reference
from gradveil.attacks import Generative
from gradveil.attacks._evolution import Score, Strategy, evolve
from gradveil.attacks._latents import LatentSpace, RampedAdam, unlikeliness
from gradveil.attacks._reapplied import keep_largest, reapplied
from gradveil.auditing import audit
from gradveil.client import observe
from gradveil.defenses import Clipping, Defense, GaussianNoise, Pruning, Sign, Soteria, TransformPolicy
from gradveil.engine import Minimum, Runtime
from gradveil.errors import DataError, KnowledgeError
from gradveil.metrics import PSNR
from gradveil.models import build
from gradveil.storage import TensorFolder
from gradveil.streams import Streams
from gradveil.types import Auxiliary, Batch, Gradients, Knowledge, Observation

GRANTED = Knowledge.AUXILIARY | Knowledge.LABELS
SHORT = Generative(steps=55, population=12, objective="relative", weight=1e-5)


class Tiles(nn.Module):
    """Makes every image of 4×4 tiles, and no other."""

    latent_size = 16

    @override
    def forward(self, latents: Tensor) -> Tensor:
        return latents.sigmoid().view(-1, 1, 4, 4).repeat_interleave(2, 2).repeat_interleave(2, 3)


class ToldTiles(Tiles):
    """Lightens its tiles by the class it is told."""

    num_classes = 10

    @override
    def forward(self, latents: Tensor, labels: Tensor | None = None) -> Tensor:
        assert labels is not None
        return (super().forward(latents) + labels.view(-1, 1, 1, 1) / 10) / 2


def network() -> nn.Module:
    return build("lenet", input_shape=(1, 8, 8), num_classes=10, seed=5)


def on_the_range(victims: int = 2, *, seed: int = 21, dtype: torch.dtype = torch.float32) -> Batch:
    streams = Streams(seed=seed, purpose="test").bind(victims)
    latents = streams.normal("latents", (16,)).to(dtype)
    return Batch(Tiles()(latents)[:, None], streams.integers("labels", 10, (1,)))


def see(
    batch: Batch,
    defenses: Sequence[Defense] = (),
    *,
    knowledge: Knowledge = GRANTED,
    generator: nn.Module | None = None,
    model: nn.Module | None = None,
) -> Observation:
    seen = observe(batch, model or network(), F.cross_entropy, defenses=defenses, knowledge=knowledge)
    return dataclasses.replace(seen, auxiliary=Auxiliary(generator=generator or Tiles()))


def psnr(attack: Generative, seen: Observation, batch: Batch) -> Tensor:
    guess = attack(seen, streams=Streams(seed=0), runtime=Runtime(chunk=batch.victims))
    return PSNR()(guess.inputs, batch.inputs).flatten()


def search(
    score: Score, start: Tensor, *, generations: int, population: int = 12, runtime: Runtime | None = None
) -> Minimum:
    return evolve(
        score,
        start,
        sigma=0.7,
        population=population,
        generations=generations,
        streams=Streams(seed=4).bind(len(start)),
        runtime=runtime or Runtime(),
    )


def ellipsoid(goal: Tensor, turn: Tensor, *, worst: float = 1e4) -> Score:
    """Return a turned quadratic whose axes differ by a factor."""
    size = goal.shape[1]
    scales = torch.logspace(0, float(np.log10(worst)), size, dtype=goal.dtype)
    return lambda x: (((x - goal[:, None]) @ turn).square() * scales).sum(2)


def turned(size: int) -> Tensor:
    basis: Tensor = torch.linalg.qr(Streams(seed=2).bind(1).normal("turn", (size, size)).double()[0]).Q
    return basis


def test_evolution_finds_the_optimum_of_a_turned_ellipsoid() -> None:
    goal = Streams(seed=1).bind(3).normal("goal", (6,)).double()
    found = search(ellipsoid(goal, turned(6)), torch.zeros(3, 6).double(), generations=300)
    torch.testing.assert_close(found.values[0], goal, rtol=0, atol=1e-5)
    assert not found.diverged.any()


def test_evolution_learns_the_covariance() -> None:
    # With the covariance held at the identity the same search has not found the optimum by far.
    goal = Streams(seed=1).bind(1).normal("goal", (6,)).double()
    adapted = search(ellipsoid(goal, turned(6)), torch.zeros(1, 6).double(), generations=200).objective
    held = _without_covariance(ellipsoid(goal, turned(6)), 6, generations=200)
    assert float(adapted) < 1e-3 * held


def _without_covariance(score: Score, size: int, *, generations: int) -> float:
    """Adapt the step size alone, in the obvious way."""
    strategy = Strategy.of(size, 12)
    mean, path, sigma, best = torch.zeros(size).double(), torch.zeros(size).double(), 0.7, np.inf
    draws = Streams(seed=4).bind(1).normal("held", (generations, 12, size))[0].double()
    weights = torch.tensor(strategy.weights).double()[:, None]
    for drawn in draws:
        scores = score((mean + sigma * drawn)[None])[0]
        best = min(best, float(scores.min()))
        step = (weights * drawn[scores.argsort()[:6]]).sum(0)
        mean, rate = mean + sigma * step, strategy.path_rate
        path = (1 - rate) * path + (rate * (2 - rate) * strategy.mass) ** 0.5 * step
        sigma *= float(torch.exp(rate / strategy.damping * (path.norm() / strategy.chi - 1)))
    return best


def test_evolution_follows_the_textbook_generation_by_generation() -> None:
    goal = Streams(seed=3).bind(1).normal("goal", (5,)).double()
    score = ellipsoid(goal, turned(5), worst=100)
    found = search(score, torch.zeros(1, 5).double(), generations=25, runtime=Runtime(trace=True))
    torch.testing.assert_close(found.trace[0], _textbook(score, 5, generations=25), rtol=1e-6, atol=1e-12)


def _textbook(score: Score, size: int, *, generations: int) -> Tensor:
    """Run CMA-ES with one search, one sum at a time, in numpy."""
    s = Strategy.of(size, 12)
    draws = torch.cat(
        [Streams(seed=4).bind(1).normal(f"generations-{b}", (16, 12, size))[0] for b in range(2)]
    ).double()
    mean, covariance, sigma = np.zeros(size), np.eye(size), 0.7
    path, long_path, lowest = np.zeros(size), np.zeros(size), []
    for number in range(generations):
        factor = np.linalg.cholesky(covariance)
        steps = np.stack([factor @ row for row in draws[number].numpy()])
        scores = score(torch.from_numpy(mean + sigma * steps)[None])[0].numpy()
        lowest.append(float(scores.min()))
        order = np.argsort(scores)[: len(s.weights)]
        step = sum(w * steps[i] for w, i in zip(s.weights, order, strict=True))
        white = np.linalg.solve(factor, step)
        mean = mean + sigma * step
        path = (1 - s.path_rate) * path + np.sqrt(s.path_rate * (2 - s.path_rate) * s.mass) * white
        length = np.linalg.norm(path)
        short = length / np.sqrt(1 - (1 - s.path_rate) ** (2 * number + 2)) < (1.4 + 2 / (size + 1)) * s.chi
        long_path = (1 - s.long_rate) * long_path + short * np.sqrt(s.long_rate * (2 - s.long_rate) * s.mass) * step
        missing = 0 if short else s.long_rate * (2 - s.long_rate)
        many = sum(w * np.outer(steps[i], steps[i]) for w, i in zip(s.weights, order, strict=True))
        covariance = (
            (1 - s.rank_one - s.rank_many) * covariance
            + s.rank_one * (np.outer(long_path, long_path) + missing * covariance)
            + s.rank_many * many
        )
        sigma *= np.exp(s.path_rate / s.damping * (length / s.chi - 1))
    return torch.tensor(lowest, dtype=torch.float64)


def test_a_search_in_a_stack_is_the_search_alone() -> None:
    goal = Streams(seed=1).bind(4).normal("goal", (5,)).double()
    together = search(ellipsoid(goal, turned(5)), torch.zeros(4, 5).double(), generations=40)
    for victim in (0, 3):
        alone = evolve(
            ellipsoid(goal[victim : victim + 1], turned(5)),
            torch.zeros(1, 5).double(),
            sigma=0.7,
            population=12,
            generations=40,
            streams=Streams(seed=4).bind(4).select([victim]),
            runtime=Runtime(),
        )
        torch.testing.assert_close(alone.values[0][0], together.values[0][victim], rtol=0, atol=1e-10)


def test_an_interrupted_search_goes_on_to_the_same_end(tmp_path: Path) -> None:
    goal = Streams(seed=1).bind(2).normal("goal", (4,)).double()
    score, start, calls = ellipsoid(goal, turned(4)), torch.zeros(2, 4).double(), [0]

    def stopping(candidates: Tensor) -> Tensor:
        calls[0] += 1
        if calls[0] == 24:
            raise KeyboardInterrupt
        return score(candidates)

    runtime = Runtime(store=TensorFolder(tmp_path), save_every=0.0)
    with pytest.raises(KeyboardInterrupt):
        search(stopping, start, generations=40, runtime=runtime)
    calls[0] = 100
    assert torch.equal(
        search(stopping, start, generations=40, runtime=runtime).values[0],
        search(score, start, generations=40).values[0],
    )
    assert calls[0] == 100 + 20 + 1  # the last 20 generations and the mean


def test_a_search_without_a_finite_objective_ends_and_leaves_the_others_alone() -> None:
    goal = Streams(seed=1).bind(2).normal("goal", (4,)).double()
    score = ellipsoid(goal, turned(4))
    broken = search(lambda x: score(x) * torch.tensor([[1.0], [torch.nan]]), torch.zeros(2, 4).double(), generations=9)
    assert broken.diverged.tolist() == [False, True]
    assert broken.steps.tolist() == [9, 0]
    assert torch.equal(broken.values[0][0], search(score, torch.zeros(2, 4).double(), generations=9).values[0][0])
    assert bool(torch.isfinite(broken.values[0]).all())


@pytest.mark.parametrize("attack", [SHORT, dataclasses.replace(SHORT, optimizer="adam", steps=70)], ids=["cma", "adam"])
def test_recovers_an_image_on_the_range_and_fails_when_the_match_is_turned_around(attack: Generative) -> None:
    batch = on_the_range(seed=31)
    seen = see(batch)
    around = dataclasses.replace(seen, update=tuple(-tensor for tensor in seen.update))
    right, wrong = psnr(attack, seen, batch), psnr(attack, around, batch)
    assert float(right.mean()) > 20
    assert float(wrong.max()) < 14


def test_reads_the_label_and_tells_it_to_the_generator() -> None:
    batch = on_the_range()
    told = Batch(ToldTiles()(torch.zeros(2, 16), batch.labels[:, 0])[:, None], batch.labels)
    attack = dataclasses.replace(SHORT, optimizer="adam", steps=40)
    seen = see(told, knowledge=Knowledge.AUXILIARY, generator=ToldTiles())
    guess = attack(seen, streams=Streams(seed=0))
    assert guess.labels is not None
    assert torch.equal(guess.labels, batch.labels)
    assert float(PSNR()(guess.inputs, told.inputs).min()) > 22


@pytest.mark.parametrize("knowledge", [GRANTED, GRANTED | Knowledge.DEFENSES], ids=["estimated", "known"])
@pytest.mark.parametrize("defense", [Pruning(fraction=0.9), Clipping(norm=0.05)], ids=["pruning", "clipping"])
def test_applying_the_defense_again_pays(defense: Defense, knowledge: Knowledge) -> None:
    batch = on_the_range(3, seed=22)
    seen = see(batch, [defense], knowledge=knowledge)
    attack = dataclasses.replace(SHORT, optimizer="adam", steps=70, objective="l2", weight=0.0)
    blind = dataclasses.replace(seen, defenses=None)
    ignored = psnr(dataclasses.replace(attack, defense="ignored"), blind, batch)
    assert float(psnr(attack, seen, batch).mean()) > float(ignored.mean()) + 2


def test_signs_fall_to_the_search_without_gradients() -> None:
    batch = on_the_range(2, seed=23)
    seen = see(batch, [Sign()], knowledge=GRANTED | Knowledge.DEFENSES)
    assert float(psnr(dataclasses.replace(SHORT, steps=60), seen, batch).mean()) > 16


def tensors(*shapes: tuple[int, ...], victims: int = 3) -> Gradients:
    streams = Streams(seed=6, purpose="test").bind(victims)
    return tuple(streams.normal(str(i), shape).double() for i, shape in enumerate(shapes))


@pytest.mark.parametrize("defense", [Pruning(fraction=0.7), Clipping(norm=0.5)], ids=["pruning", "clipping"])
@pytest.mark.parametrize("known", [True, False])
def test_the_right_trial_becomes_the_update(defense: Pruning | Clipping, known: bool) -> None:
    clean, streams = tensors((4, 5), (2, 3, 3, 3), (6,)), Streams(seed=0).bind(3)
    update = defense.apply(clean, streams=streams)
    seen = dataclasses.replace(see(on_the_range(3)), update=update, defenses=(defense,) if known else None)
    for found, expected in zip(reapplied(seen, streams=streams)(clean), update, strict=True):
        torch.testing.assert_close(found, expected)


def test_columns_that_soteria_emptied_stay_empty() -> None:
    batch = on_the_range(2)
    seen = see(batch, [Soteria(fraction=0.5)])
    clean = see(batch).update
    for found, expected in zip(reapplied(seen, streams=Streams().bind(2))(clean), seen.update, strict=True):
        torch.testing.assert_close(found == 0, expected == 0)


def test_noise_is_not_drawn_again() -> None:
    clean, streams = tensors((4, 5)), Streams(seed=0).bind(3)
    seen = dataclasses.replace(see(on_the_range(3)), update=clean, defenses=(GaussianNoise(std=0.1),))
    assert torch.equal(reapplied(seen, streams=streams)(clean)[0], clean[0])


def test_a_known_policy_is_applied_to_the_images() -> None:
    batch = on_the_range(2, seed=24)
    defense = TransformPolicy(policy="4")
    seen = see(batch, [defense], knowledge=GRANTED | Knowledge.DEFENSES)
    guess = dataclasses.replace(SHORT, optimizer="adam", steps=2)(seen, streams=Streams(seed=0))
    assert guess.protected is not None
    torch.testing.assert_close(guess.protected, defense.forward(guess.inputs))


def test_every_victim_keeps_as_many_entries_as_its_update_has() -> None:
    (tensor,) = tensors((3, 4), victims=2)
    kept = keep_largest(tensor, torch.tensor([5, 12]))
    assert (kept != 0).flatten(1).sum(1).tolist() == [5, 12]
    assert float(kept[0][kept[0] != 0].abs().min()) >= float(tensor[0][kept[0] == 0].abs().max())


def test_restarts_keep_the_latents_of_the_best_search() -> None:
    batch, attack = on_the_range(2, seed=25), dataclasses.replace(SHORT, steps=8, restarts=3)
    guess = attack(see(batch), streams=Streams(seed=0))
    first = dataclasses.replace(attack, restarts=1)(see(batch), streams=Streams(seed=0))
    assert bool((guess.objective <= first.objective).all())
    torch.testing.assert_close(Tiles()(guess.details["latents"].flatten(0, 1)), guess.inputs.flatten(0, 1))


def test_the_audit_shows_the_same_attack_on_a_random_gradient() -> None:
    batch, public = on_the_range(3, seed=26), on_the_range(12, seed=27)
    result = audit(
        batch,
        network(),
        F.cross_entropy,
        attack=SHORT,
        knowledge=GRANTED,
        auxiliary=Auxiliary(generator=Tiles()),
        reference=Reference(public.inputs[:, 0], public.labels[:, 0]),
        metrics=[PSNR()],
    )
    scores = result.scores["psnr"]
    control = torch.tensor(scores.nulls["random-gradient"])
    assert control.shape == (3, 1)
    assert float(torch.tensor(scores.private).mean()) > float(control.mean()) + 8


def test_refuses_without_a_fitting_generator() -> None:
    seen = see(on_the_range())
    with pytest.raises(KnowledgeError, match="needs a generator to search in"):
        SHORT(dataclasses.replace(seen, auxiliary=Auxiliary()), streams=Streams())
    with pytest.raises(KnowledgeError, match="attribute latent_size"):
        SHORT(dataclasses.replace(seen, auxiliary=Auxiliary(generator=nn.Flatten())), streams=Streams())
    large = nn.Sequential(Tiles(), nn.Upsample(scale_factor=2))
    large.latent_size = 16  # type: ignore[assignment]
    with pytest.raises(DataError, match=r"must be \(1, 8, 8\) like the client's, got \(1, 16, 16\)"):
        SHORT(dataclasses.replace(seen, auxiliary=Auxiliary(generator=large)), streams=Streams())
    other = ToldTiles()
    other.num_classes = 3
    with pytest.raises(DataError, match="told one of 3 classes"):
        SHORT(dataclasses.replace(seen, auxiliary=Auxiliary(generator=other)), streams=Streams())


def test_the_generator_given_stays_as_it_is() -> None:
    given = nn.Sequential(nn.Linear(16, 16), Tiles())
    given.latent_size = 16  # type: ignore[assignment]
    space = LatentSpace.of(dataclasses.replace(see(on_the_range()), auxiliary=Auxiliary(generator=given)))
    assert given.training
    assert not space.generator.training
    assert all(parameter.requires_grad for parameter in given.parameters())


def test_divergence_is_that_of_a_normal_distribution() -> None:
    latents = 0.5 + 2 * Streams(seed=8).bind(1).normal("latents", (1, 40_000)).double()
    normal, standard = torch.distributions.Normal(0.5, 2.0), torch.distributions.Normal(0.0, 1.0)
    expected = torch.distributions.kl_divergence(normal, standard)
    torch.testing.assert_close(unlikeliness(latents, "kl").float(), expected[None], rtol=0.03, atol=0)
    torch.testing.assert_close(unlikeliness(latents, "norm"), latents.square().mean()[None] / 2)


def test_the_ramp_starts_low_and_ends_at_zero() -> None:
    moved, steps = [], 40
    value, optimizer = [torch.zeros(1, 1)], RampedAdam(lr=0.1, steps=steps)
    state = optimizer.start(value)
    for _ in range(steps):
        before = value[0].clone()
        optimizer.move(
            value, [torch.ones(1, 1)], torch.ones(1), state=state, rate=torch.ones(()), active=torch.ones(1).bool()
        )
        moved.append(float((value[0] - before).abs()))
    assert moved[0] == pytest.approx(0.05, rel=1e-3)
    assert moved[10] == pytest.approx(0.1, rel=1e-3) == moved[25]
    assert moved[-1] == pytest.approx(0, abs=1e-6)
