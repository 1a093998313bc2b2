"""The verdict is silent where there is nothing to hear, and speaks where PSNR is silent."""

import dataclasses
import json

import numpy as np
import numpy.typing as npt
import pytest
import torch
from sklearn.datasets import load_digits

from gradveil.metrics import (
    PSNR,
    SSIM,
    Comparison,
    Identification,
    Metric,
    Verdict,
    correlation,
    draw_decoys,
    identify,
    judge,
    null_guesses,
    other_of_class,
    worst_case,
)
from gradveil.streams import Streams

VICTIMS = 16
Array = npt.NDArray[np.float64]


def ranks_of_chance(rng: np.random.Generator, *shape: int, first: float = 1 / 1001) -> Array:
    """Draw ranks among 1,000 decoys that are 0 with the given probability."""
    return np.where(rng.random(shape) < first, 0.0, rng.integers(1, 1001, size=shape))


def audit_of_nothing(rng: np.random.Generator, *, draws: int, first: float = 1 / 1001) -> Verdict:
    """Judge an attack whose ranks and scores come from where those of the nulls come from."""
    identification = Identification(
        ranks=ranks_of_chance(rng, VICTIMS, first=first),
        null_ranks={"other-of-class": ranks_of_chance(rng, draws, VICTIMS, first=first)},
        decoys=1000,
    )
    comparisons = []
    for metric in ("PSNR", "SSIM"):
        constants = rng.normal(12, 1.5, VICTIMS)
        nulls = {
            "grey": constants - 1,
            "own-mean": constants,
            "other-of-class": constants + rng.gumbel(size=(draws, VICTIMS)),
        }
        comparisons.append(Comparison(metric=metric, scores=constants + rng.gumbel(size=VICTIMS), null_scores=nulls))
    return judge(identification, comparisons)


def test_fires_for_about_one_in_a_hundred_audits_of_nothing_per_test() -> None:
    rng = np.random.default_rng(0)
    rate = np.mean([audit_of_nothing(rng, draws=100).leaks for _ in range(1000)])
    assert 0.005 < rate < 0.035


def test_fires_no_more_often_with_few_null_draws_or_known_labels() -> None:
    rng = np.random.default_rng(0)
    assert np.mean([audit_of_nothing(rng, draws=1).leaks for _ in range(1000)]) < 0.03
    assert np.mean([audit_of_nothing(rng, draws=20, first=0.02).leaks for _ in range(1000)]) < 0.045


def test_reports_a_clear_leak_below_the_psnr_of_grey() -> None:
    rng = np.random.default_rng(0)
    scores, grey = rng.normal(10.4, 2.5, 100), rng.normal(12.0, 1.5, 100)
    ranks = np.where(np.arange(100) < 50, 0.0, ranks_of_chance(rng, 100, first=0))
    nulls = {"grey": grey, "own-mean": grey + 1.5, "other-of-class": grey + rng.normal(-2, 2.5, size=(20, 100))}
    null_ranks = {"other-of-class": ranks_of_chance(rng, 20, 100), "random-gradient": ranks_of_chance(rng, 100)}
    verdict = judge(
        Identification(ranks=ranks, null_ranks=null_ranks, decoys=1000),
        [Comparison(metric="PSNR", unit="dB", scores=scores, null_scores=nulls)],
    )
    assert scores.mean() < grey.mean()
    assert verdict.leaks
    assert verdict.sentence.startswith("LEAKS: 50 of 100 private images are the nearest of 1,001 candidates")
    assert verdict.identified > 10 * verdict.threshold


def digits_verdict(attack_of: torch.Tensor, data: torch.Tensor, labels: torch.Tensor) -> tuple[Verdict, float]:
    """Judge guesses for the first 16 digits; also return the mean PSNR beyond grey."""
    truth, streams = data[:VICTIMS, None], Streams(seed=0, purpose="null").bind(VICTIMS)
    references, classes = data[VICTIMS:], labels[VICTIMS:]
    decoys = draw_decoys(references, streams=streams)
    nulls = null_guesses(
        truth, labels[:VICTIMS, None], reference_inputs=references, reference_labels=classes, streams=streams
    )
    others = [
        other_of_class(
            truth,
            labels[:VICTIMS, None],
            reference_inputs=references,
            reference_labels=classes,
            streams=streams.fork(str(draw)),
        )
        for draw in range(20)
    ]

    def compare(metric: Metric) -> Comparison:
        scores = {name: metric(guess, truth).double().numpy() for name, guess in nulls.items()}
        scores["other-of-class"] = np.stack([metric(guess, truth).double().numpy() for guess in others])
        return Comparison(metric=metric.title, scores=metric(attack_of, truth).double().numpy(), null_scores=scores)

    null_ranks = np.stack([identify(guess, truth, decoys, view=correlation).double().numpy() for guess in others])
    identification = Identification(
        ranks=identify(attack_of, truth, decoys, view=correlation).double().numpy(),
        null_ranks={"other-of-class": null_ranks},
        decoys=len(decoys),
    )
    comparisons = [compare(PSNR()), compare(SSIM())]
    beyond_grey = float((comparisons[0].scores - comparisons[0].null_scores["grey"]).mean())
    return judge(identification, comparisons), beyond_grey


def test_tells_pale_but_plain_digits_from_noise_from_other_digits() -> None:
    bunch, generator = load_digits(), torch.Generator().manual_seed(0)
    data, labels = torch.from_numpy(bunch.images).float()[:, None] / 16, torch.from_numpy(bunch.target)
    noise = torch.rand(VICTIMS, 1, 1, 8, 8, generator=generator)
    pale = torch.cat([0.7 + 0.3 * data[: VICTIMS // 2, None], noise[VICTIMS // 2 :]])

    verdict, beyond_grey = digits_verdict(pale, data, labels)
    assert beyond_grey < 0
    assert verdict.leaks
    assert verdict.identified >= VICTIMS // 2
    assert not digits_verdict(noise, data, labels)[0].leaks
    assert not digits_verdict(data[100 : 100 + VICTIMS, None], data, labels)[0].leaks


def test_a_flat_guess_that_beats_other_images_is_no_leak() -> None:
    rng = np.random.default_rng(0)
    constants = rng.normal(13, 1, VICTIMS)
    nulls = {"own-mean": constants, "other-of-class": constants - 5 + 0.1 * rng.normal(size=(100, VICTIMS))}
    case = worst_case(Comparison(metric="PSNR", scores=constants - 0.5, null_scores=nulls))
    assert case.margin == pytest.approx(-0.5)
    assert case.chance == 0
    assert not case.exceeds


def test_the_sign_follows_the_direction_of_the_metric() -> None:
    rng = np.random.default_rng(0)
    scores, nulls = rng.random(VICTIMS), {"grey": rng.random(VICTIMS), "other-of-class": rng.random((100, VICTIMS))}
    upward = worst_case(Comparison(metric="SSIM", scores=scores, null_scores=nulls))
    mirrored = {name: -values for name, values in nulls.items()}
    downward = Comparison(metric="LPIPS", higher_is_better=False, scores=-scores, null_scores=mirrored)
    assert dataclasses.replace(worst_case(downward), metric="SSIM") == upward


def test_pairs_each_sample_with_its_own_best_constant() -> None:
    nulls = {
        "grey": np.array([10.0, 20.0]),
        "mean-image": np.array([12.0, 11.0]),
        "other-of-class": np.zeros((200, 2)),
    }
    case = worst_case(Comparison(metric="PSNR", scores=np.array([15.0, 19.0]), null_scores=nulls))
    assert case.margin == 3.0


def test_a_single_victim_can_leak_by_identification_alone() -> None:
    nulls = {"grey": np.array([12.0]), "other-of-class": np.array([9.0])}
    comparison = Comparison(metric="PSNR", unit="dB", scores=np.array([30.0]), null_scores=nulls)
    identified = Identification(ranks=np.array([0.0]), null_ranks={"other-of-class": np.array([7.0])}, decoys=1000)
    verdict = judge(identified, [comparison])
    assert verdict.sentence == (
        "LEAKS: 1 of 1 private image is the nearest of 1,001 candidates to its reconstruction; chance gives at most 0."
    )
    assert "cannot decide" in judge(None, [comparison]).sentence


def test_null_guesses_that_are_identified_raise_the_bar() -> None:
    ranks = np.array([0.0] * 4 + [9.0] * 12)
    assert judge(Identification(ranks=ranks, null_ranks={}, decoys=1000)).leaks
    assert not judge(Identification(ranks=ranks, null_ranks={"random-gradient": ranks}, decoys=1000)).leaks
    assert judge(Identification(ranks=ranks, null_ranks={"own-mean": ranks}, decoys=1000)).leaks


def test_a_leak_by_the_worst_case_alone_says_so() -> None:
    nulls = {"grey": np.full(VICTIMS, 0.1), "other-of-class": np.linspace(0, 0.2, 1600).reshape(100, VICTIMS)}
    scores = np.full(VICTIMS, 0.1)
    scores[3] = 0.9
    verdict = judge(
        Identification(ranks=np.full(VICTIMS, 5.0), null_ranks={}, decoys=99),
        [Comparison(metric="SSIM", scores=scores, null_scores=nulls)],
    )
    assert verdict.sentence == (
        "LEAKS: the best of 16 reconstructions is 0.80 above the best constant picture in SSIM; "
        "chance gives at most 0.10."
    )
    assert verdict.reasons == (verdict.sentence.removeprefix("LEAKS: ").removesuffix("."),)


def test_never_calls_an_update_safe() -> None:
    verdict = audit_of_nothing(np.random.default_rng(1), draws=20)
    assert not verdict.leaks
    assert verdict.sentence.startswith("no leak shown by this attack: ")
    assert "safe" not in verdict.sentence
    assert len(verdict.reasons) == 3


def test_a_verdict_goes_into_a_record() -> None:
    verdict = audit_of_nothing(np.random.default_rng(1), draws=20)
    assert json.loads(json.dumps(dataclasses.asdict(verdict)))["total"] == VICTIMS


def test_says_what_a_verdict_needs() -> None:
    with pytest.raises(ValueError, match="identification or at least 1 comparison"):
        judge(None)
    with pytest.raises(ValueError, match="constant and of a varying null guess, got grey"):
        worst_case(Comparison(metric="SSIM", scores=np.zeros(1), null_scores={"grey": np.zeros(1)}))
