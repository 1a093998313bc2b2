import itertools
import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from gradveil.attacks._decode_classes import count_images, map_by_class, share_by_class, tell_apart, worth_comparing
from gradveil.attacks._decode_clusters import _flow, affinity, assign, coefficients, grow_clusters, pick_clusters
from gradveil.attacks._decode_magnitudes import Magnitudes, lift
from gradveil.attacks._decode_refinement import Mixtures, refine
from gradveil.attacks._decode_regression import least_squares, public_share
from gradveil.attacks._decode_signs import fix_signs
from gradveil.attacks._decoders.decode_mixing import DecodeMixing
from gradveil.attacks._decoders.decode_oracle import DecodeOracle
from gradveil.attacks._decoding import Encodings
from gradveil.data import Dataset, load
from gradveil.defenses import InstaHide, Mixup
from gradveil.engine import Runtime
from gradveil.errors import DataError, KnowledgeError
from gradveil.metrics import align, arrange
from gradveil.storage import TensorFolder
from gradveil.streams import Streams
from gradveil.types import Auxiliary, Batch, Knowledge, Protected, Reconstruction

DIGITS = load("digits")
ATTACK = Streams(seed=0, purpose="attack")


def encoded(
    defense: Mixup | InstaHide, data: Dataset = DIGITS, *, images: int, rounds: int, victims: int = 1
) -> tuple[Tensor, Encodings]:
    """Let every client mix its images several times, and return the images and what an oracle knows."""
    private = data.train.inputs(range(victims * images), dtype=torch.float64).unflatten(0, (victims, images))
    batch = Protected.unchanged(Batch(private, data.train.labels[: victims * images].view(victims, images)))
    streams = Streams(seed=1, purpose="client").bind(victims)
    pool = data.train.inputs(range(300, 400), dtype=torch.float64)
    seen = [defense.protect(batch, pool=pool, streams=streams.fork(f"step-{n}")) for n in range(rounds)]
    empty = torch.zeros(victims, images, images).double()
    return private, Encodings(
        images=torch.cat([s.inputs for s in seen], 1),
        labels=torch.cat([s.labels for s in seen], 1),
        weights=torch.cat([empty.scatter(2, s.origin, s.weights) for s in seen], 1),
        mean=defense.mean if isinstance(defense, InstaHide) else (),
        knowledge=Knowledge.ENCODING,
    )


def psnr(guess: Tensor, truth: Tensor) -> Tensor:
    return -10 * (guess - truth).square().flatten(2).mean(2).clamp_min(1e-12).log10()


@pytest.mark.parametrize("k", [4, 6])
def test_mixup_falls_to_the_oracle(k: int) -> None:
    private, seen = encoded(Mixup(k=k, classes=10), images=12, rounds=3, victims=2)
    found = DecodeOracle(flipped="no")(seen, streams=ATTACK)
    assert float(psnr(found.images, private).min()) > 28
    assert float(found.objective.max()) < 1e-12


@pytest.mark.parametrize("k", [4, 6])
def test_instahide_falls_to_the_oracle_once_the_sign_of_every_pixel_is_found(k: int) -> None:
    private, seen = encoded(InstaHide(k=k, classes=10, mean=DIGITS.mean), images=20, rounds=20)
    assert float(psnr(DecodeOracle()(seen, streams=ATTACK).images, private).min()) > 28
    assert float(psnr(DecodeOracle(signs="open")(seen, streams=ATTACK).images, private).mean()) < 15


def test_images_of_a_public_set_are_noise_around_their_mean_to_the_oracle() -> None:
    defense = Mixup(k=4, classes=10, from_pool=2)
    found = {}
    for rounds in (8, 64):
        private, seen = encoded(defense, images=10, rounds=rounds)
        found[rounds] = float(psnr(DecodeOracle(flipped="no")(seen, streams=ATTACK).images, private).min())
    assert found[8] > 18
    assert found[64] > found[8] + 6


def test_what_public_images_add_to_squared_magnitudes_is_taken_out() -> None:
    draw = Streams(purpose="test").bind(1)
    weights = draw.uniform("weights", (600, 4)).double()
    weights = weights / weights.sum(2, keepdim=True) * draw.uniform("shares", (600, 1)).double()
    images, public = draw.normal("images", (4, 30)).double(), draw.normal("public", (600, 30)).double()
    magnitudes = (weights @ images + public_share(weights) * public).abs()
    found = lift(weights, magnitudes)
    assert float((found.abs() - images.abs()).abs().mean()) < 0.155


def test_the_published_regression_stops_at_wrong_signs() -> None:
    private, seen = encoded(InstaHide(k=4, classes=10, mean=DIGITS.mean), images=8, rounds=8)
    published = DecodeOracle(solver="adam", steps=200, lr=0.05, signs="open")(seen, streams=ATTACK)
    assert float(psnr(published.images, private).mean()) < 15


def test_signs_protect_nothing_in_plain_pixels() -> None:
    private, seen = encoded(InstaHide(k=4, classes=10), images=8, rounds=2)
    plain = replace(seen, images=seen.images.abs())
    assert float(psnr(DecodeOracle(flipped="no")(plain, streams=ATTACK).images, private).min()) > 28


def test_decoding_bears_some_noise() -> None:
    private, seen = encoded(InstaHide(k=4, classes=10, mean=DIGITS.mean), images=20, rounds=20)
    noise = 0.01 * Streams(purpose="test").bind(1).normal("noise", seen.images.shape[1:]).double()
    found = DecodeOracle()(replace(seen, images=seen.images + noise), streams=ATTACK)
    assert float(psnr(found.images, private).mean()) > 28


def test_a_group_is_decoded_as_if_it_were_alone() -> None:
    _, seen = encoded(InstaHide(k=3, classes=10, mean=DIGITS.mean), images=6, rounds=8, victims=3)
    together = DecodeOracle()(seen, streams=ATTACK)
    assert seen.weights is not None
    alone = DecodeOracle()(
        replace(seen, images=seen.images[1:2], labels=None, weights=seen.weights[1:2]), streams=ATTACK
    )
    torch.testing.assert_close(alone.images[0], together.images[1])


def test_least_squares_is_that_of_torch() -> None:
    streams = Streams(purpose="test").bind(2)
    weights, mixtures = streams.uniform("weights", (9, 4)).double(), streams.uniform("mixtures", (9, 5)).double()
    torch.testing.assert_close(least_squares(weights, mixtures), torch.linalg.lstsq(weights, mixtures).solution)


def test_signs_of_colour_images_are_found_from_neighbours() -> None:
    grid = torch.linspace(0, 3, 6)
    waves = torch.stack(
        [torch.sin(a + grid[:, None]) * torch.cos(b + grid) for a, b in itertools.product((0, 1, 2), (0, 1))]
    )
    images = 0.4 * torch.stack([waves, 0.9 * waves, waves], 1)[None].double()  # (1, 6, 3, 6, 6) around 1/2
    flips = Streams(purpose="test").bind(1).integers("flips", 2, (1, 3, 6, 6)) * 2 - 1
    center = torch.full((3, 1, 1), 0.5).double()
    found = fix_signs(images * flips, center)
    # Around 1/2 the range says nothing, so that one sign of the whole group stays open.
    assert torch.equal(found, images) or torch.equal(found, -images)


def refined(weights: Tensor, seen: Tensor, *, k: int, rounds: int) -> Tensor:
    mixtures = Mixtures(seen=seen, k=k, flipped=False)
    return refine(weights, mixtures, rounds=rounds, streams=ATTACK.bind(1), runtime=Runtime())


def ideal_scores(weights: Tensor) -> Tensor:
    """Score pairs by the number of images they share, as a perfect network would."""
    inside = (weights > 0).double()
    return 4 * (inside @ inside.T) - 2


def test_clusters_assignment_and_labels_give_the_mixing_back() -> None:
    _, seen = encoded(Mixup(k=2, classes=10), images=8, rounds=10)
    assert seen.weights is not None
    assert seen.labels is not None
    truth = seen.weights[0]
    decoder = DecodeMixing(images=8, k=2, flipped="no")
    one_class = seen.labels[0].sum(1, keepdim=True)  # which tells no images apart
    for labels in (seen.labels[0], one_class):
        found = decoder.mapping(lambda _: ideal_scores(truth), labels, streams=ATTACK.bind(1))
        overlap = (found > 0).double().T @ (truth > 0).double()
        match = overlap.argmax(1)
        assert sorted(match.tolist()) == list(range(8))
        assert float(overlap.amax(1).sum() / (truth > 0).sum()) > 0.9
        torch.testing.assert_close(found.sum(1), torch.ones(len(truth)).double())


def matched(guess: Tensor, truth: Tensor) -> Tensor:
    """Score every private image against the guess that fits it best over all, since a decoder knows no order."""
    return psnr(arrange(guess, align(guess, truth)), truth)


def test_mixup_falls_without_any_knowledge_of_the_mixing() -> None:
    private, seen = encoded(Mixup(k=2, classes=10), images=8, rounds=16)
    public = Auxiliary(inputs=DIGITS.train.inputs(range(400, 1400), dtype=torch.float64))
    blind = replace(seen, labels=None, weights=None, knowledge=Knowledge.AUXILIARY, auxiliary=public)
    decoder = DecodeMixing(images=8, k=2, flipped="no", train_steps=80, pairs=64, width=8, lr=4e-3, refinements=15)
    found = decoder(replace(blind, images=blind.images.float()), streams=ATTACK)
    assert float(matched(found.images.double(), private).mean()) > 28
    quick = replace(decoder, train_steps=2, refinements=1)
    first, second = (quick(replace(blind, images=blind.images.float()), streams=ATTACK) for _ in range(2))
    assert torch.equal(first.images, second.images)


@pytest.mark.parametrize(("part", "at"), [("similarity-1", 5), ("refinement-0", 2)])
def test_an_interrupted_decoding_goes_on_to_the_same_end(part: str, at: int, tmp_path: Path) -> None:
    _, seen = encoded(Mixup(k=2, classes=10), images=4, rounds=6, victims=2)
    public = Auxiliary(inputs=DIGITS.train.inputs(range(400, 500)))
    granted = replace(seen, images=seen.images.float(), weights=None, knowledge=Knowledge.AUXILIARY, auxiliary=public)
    decoder = DecodeMixing(images=4, k=2, flipped="no", train_steps=8, pairs=8, width=4, refinements=6)
    told: list[tuple[str, int]] = []

    def interrupt(name: str, done: int, total: int) -> None:
        told.append((name, done))
        if (name, done) == (f"attack/{part}", at):
            raise KeyboardInterrupt

    stopping = Runtime(precision="float32", store=TensorFolder(tmp_path), save_every=0.0, progress=interrupt)
    with pytest.raises(KeyboardInterrupt):
        decoder(granted, streams=ATTACK, runtime=stopping)
    begun = len(told)
    found = decoder(granted, streams=ATTACK, runtime=replace(stopping, progress=lambda *to: told.append(to[:2])))
    assert told[begun] == (f"attack/{part}", at)  # told, but not kept yet when it was interrupted
    assert torch.equal(found.images, decoder(granted, streams=ATTACK).images)


def test_mixtures_with_public_images_are_taken_apart_without_knowing_which() -> None:
    private, seen = encoded(Mixup(k=3, classes=10, from_pool=1), images=8, rounds=24)
    public = Auxiliary(inputs=DIGITS.train.inputs(range(400, 1400)))
    assert seen.labels is not None
    assert seen.weights is not None
    labels = seen.labels.float()
    granted = Encodings(images=seen.images.float(), labels=labels, knowledge=Knowledge.AUXILIARY, auxiliary=public)
    decoder = DecodeMixing(images=8, k=2, flipped="no", train_steps=80, pairs=64, width=8, lr=4e-3, refinements=15)
    found = replace(decoder, from_pool=1)(granted, streams=ATTACK)
    assert found.weights is not None
    torch.testing.assert_close(found.weights.sum(2), labels.sum(2), atol=1e-4, rtol=0)
    assert float(matched(found.images.double(), private).mean()) > 18
    scores = ideal_scores(seen.weights[0])
    unlabelled = replace(decoder, from_pool=1).mapping(lambda _: scores, None, streams=ATTACK.bind(1))
    torch.testing.assert_close(unlabelled.sum(1), torch.full((len(unlabelled),), 2 / 3).double())


def test_refinement_mends_a_wrong_assignment() -> None:
    _, seen = encoded(Mixup(k=2, classes=10), images=6, rounds=12)
    assert seen.weights is not None
    truth = seen.weights[0]
    wrong = truth.clone()
    wrong[::6] = wrong[::6].roll(1, 1)
    mended = refined(wrong, seen.images[0], k=2, rounds=15)
    assert float((mended - truth).abs().max()) < 0.02 < float((wrong - truth).abs().max())


def test_refinement_finds_an_image_that_no_cluster_stood_for() -> None:
    private, seen = encoded(Mixup(k=3, classes=10), images=10, rounds=30)
    assert seen.weights is not None
    pixels, chosen = seen.images[0].flatten(1), seen.weights[0] > 0
    lost = torch.cat([chosen[:, :9], chosen[:, :1]], 1).double()
    begun = lost / lost.sum(1, keepdim=True).clamp_min(1)

    def worst(rounds: int) -> float:
        found = refined(begun, seen.images[0], k=3, rounds=rounds)
        images = least_squares(found[None], pixels[None]).view(1, 10, *private.shape[2:])
        return float(matched(images.clamp(0, 1), private).min())

    assert worst(2) < 20
    assert worst(40) > 40


def test_refinement_keeps_the_best_fit_and_stops_where_no_better_one_comes() -> None:
    _, seen = encoded(Mixup(k=2, classes=10), images=6, rounds=12)
    assert seen.weights is not None
    truth = seen.weights[0]
    turns = []

    def counted(gains: Tensor, *, k: int) -> Tensor:
        turns.append(k)
        return assign(gains, k=k)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gradveil.attacks._decode_refinement.assign", counted)
        found = refined(truth, seen.images[0], k=2, rounds=200)
    torch.testing.assert_close(found, truth, atol=1e-6, rtol=0)
    assert len(turns) < 60


def test_labels_divide_images_among_classes() -> None:
    assert count_images(torch.tensor([[0.5, 0.26, 0.24, 0.0]]), 4).tolist() == [2, 1, 1, 0]
    assert count_images(torch.tensor([[1.0, 0.0]]), 3).tolist() == [3, 0]


def test_classes_tell_images_apart_however_faint_some_of_them_are() -> None:
    _, seen = encoded(InstaHide(k=6, classes=10, mean=DIGITS.mean), images=20, rounds=3)
    assert seen.labels is not None
    assert float((seen.labels[0] > 0.01).sum(1).double().mean()) < 4
    assert tell_apart(seen.labels[0], k=6)
    assert not tell_apart(seen.labels[0][:, :5] + seen.labels[0][:, 5:], k=8)


def test_encodings_that_hold_the_same_image_of_a_class_form_a_group() -> None:
    """Three images of class 0 and one of class 1; scores tell, with noise, who shares an image."""
    draw = Streams(purpose="test").bind(1)
    chosen = torch.arange(60) % 3
    share = 0.6 + 0.3 * draw.uniform("share", (60,))[0]
    truth = torch.cat([share[:, None] * torch.nn.functional.one_hot(chosen, 3), 1 - share[:, None]], 1)
    labels = torch.stack([share, 1 - share], 1)
    same = (chosen[:, None] == chosen).float()
    noise = draw.normal("noise", (60, 60))[0]
    found = map_by_class(2 * same - 1 + noise + noise.T, labels, images=4)
    order = (found.T @ truth).argmax(1)
    assert sorted(order.tolist()) == [0, 1, 2, 3]
    torch.testing.assert_close(found, truth[:, order])
    assert bool(worth_comparing(labels)[0, 1])
    assert not bool(worth_comparing(torch.eye(2)).any())


def test_what_is_too_faint_to_be_told_is_divided_evenly() -> None:
    labels = torch.tensor([[0.95, 0.05]] * 8 + [[0.05, 0.95]] * 8)
    found = map_by_class(torch.zeros(16, 16), labels, images=4)
    assert found[:8, 2:].tolist() == [[pytest.approx(0.025)] * 2] * 8
    assert found[8:, :2].tolist() == [[pytest.approx(0.025)] * 2] * 8
    torch.testing.assert_close(found.sum(1), torch.ones(16))


def test_shares_by_class_keep_one_image_of_every_class_and_k_of_all() -> None:
    shares = torch.tensor([[0.3, 0.2, 0.1, 0.0], [0.4, 0.3, 0.0, 0.2]])
    labels = torch.tensor([[0.6, 0.4, 0.0], [0.7, 0.0, 0.3]])
    found = share_by_class(shares, labels, torch.tensor([0, 0, 1, 2]), k=3)
    torch.testing.assert_close(found[0], torch.tensor([0.36, 0.24, 0.4, 0.0]))
    torch.testing.assert_close(found[1], torch.tensor([0.4, 0.3, 0.0, 0.3]))
    assert share_by_class(shares, labels, torch.tensor([0, 0, 1, 2]), k=2)[0, 1] == 0


def smooth(images: int, size: int) -> Tensor:
    """Return (1, images, 3, size, size), waves that no pixel is like in all of them."""
    grid, draw = torch.linspace(0, 3, size).double(), Streams(purpose="test").bind(1)
    turn = 6 * draw.uniform("turn", (images, 3, 2, 1, 1)).double()
    return torch.sin(turn[:, :, :, 0] + grid[:, None]) * torch.cos(turn[:, :, :, 1] + grid)


def test_pixels_find_their_signs_from_neighbours_with_few_encodings() -> None:
    """Twenty images in 100 mixtures: fewer than the 210 products that the lifted problem has to solve for."""
    truth, draw = smooth(20, 8), Streams(purpose="test").bind(1)
    weights = draw.uniform("weights", (100, 20)).double().pow(8)
    weights = weights / weights.sum(2, keepdim=True)
    seen = (weights @ truth.flatten(2)).unflatten(2, truth.shape[2:])
    problem = Magnitudes.of(weights, seen * draw.normal("signs", seen.shape[1:]).double().sign())
    found = problem.solve(streams=ATTACK.bind(1), steps=100)
    assert float((found.abs() - truth.flatten(2).abs()).abs().max()) < 1e-6
    alone = problem.improve(draw.normal("start", (20, 192)).double(), sweeps=0, steps=100)
    assert float(problem.misfits(alone).max()) > 1e-4


def test_no_sweep_makes_any_pixel_fit_worse() -> None:
    _, seen = encoded(InstaHide(k=3, classes=10, mean=DIGITS.mean), images=8, rounds=6)
    assert seen.weights is not None
    problem = Magnitudes.of(seen.weights, seen.centered())
    start = Streams(purpose="test").bind(1).normal("start", (8, 64)).double()
    misfits = [problem.misfits(problem.improve(start, sweeps=sweeps, steps=0)) for sweeps in range(4)]
    for before, after in itertools.pairwise(misfits):
        assert bool((after <= before + 1e-12).all())


def test_instahide_falls_to_who_knows_its_labels_and_nothing_of_its_mixing() -> None:
    private, seen = encoded(InstaHide(k=2, classes=10, mean=DIGITS.mean), images=12, rounds=16)
    assert seen.labels is not None
    public = Auxiliary(inputs=DIGITS.train.inputs(range(400, 1400)))
    blind = replace(
        seen,
        images=seen.images.float(),
        labels=seen.labels.float(),
        weights=None,
        knowledge=Knowledge.AUXILIARY,
        auxiliary=public,
    )
    decoder = DecodeMixing(images=12, k=2, train_steps=80, pairs=64, width=8, lr=4e-3, refinements=20, steps=100)
    found = decoder(blind, streams=ATTACK)
    scores = matched(found.images.double(), private)
    assert float(scores.median()) > 28
    unlabelled = decoder(replace(blind, labels=None), streams=ATTACK)
    assert float(matched(unlabelled.images.double(), private).median()) < float(scores.median()) - 5


def test_assignment_is_the_best_of_all() -> None:
    gains = Streams(purpose="test").bind(1).normal("gains", (4, 4))[0]
    found = assign(gains, k=2, slack=1.0)
    rows = [torch.tensor(row) for row in itertools.product((0.0, 1.0), repeat=4) if sum(row) == 2]
    every = [torch.stack(choice) for choice in itertools.product(rows, repeat=4)]
    fair = [choice for choice in every if bool((choice.sum(0) == 2).all())]
    assert float((gains * found).sum()) == pytest.approx(max(float((gains * choice).sum()) for choice in fair))
    assert found.sum(1).tolist() == [2] * 4


def test_assignment_asks_for_a_flow_only_where_choices_collide(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def counted(gains: Tensor, **bounds: int) -> Tensor:
        asked.append(bounds)
        return _flow(gains, **bounds)

    monkeypatch.setattr("gradveil.attacks._decode_clusters._flow", counted)
    for seed in range(4):
        gains = Streams(seed=seed, purpose="test").bind(1).normal("gains", (30, 5))[0]
        assert torch.equal(assign(gains, k=2, slack=2.0), _flow(gains, k=2, least=6, most=24))
    assert asked == []
    gains[:, 0] += 9
    assert assign(gains, k=2, slack=1.5).sum(0)[0] == 18
    assert asked == [{"k": 2, "least": 8, "most": 18}]


def test_shares_sum_to_what_the_label_gives_even_where_a_class_was_mistaken() -> None:
    chosen = torch.tensor([[True, True], [True, False], [False, True], [False, True]])
    labels = torch.tensor([[0.5, 0.0, 0.5], [0.0, 0.3, 0.5], [0.0, 0.0, 1.0], [0.9, 0.1, 0.0]])
    found = coefficients(chosen, labels, k=2)
    torch.testing.assert_close(found.sum(1), labels.sum(1))
    assert bool((found[~chosen] == 0).all())


def test_shares_are_equal_without_labels_and_split_within_a_class() -> None:
    # Images 0 and 1 are of class 0, image 2 of class 1, image 3 of class 2.
    shares = torch.tensor([[0.5, 0.5, 0, 0], [0.6, 0, 0.4, 0], [0, 0.7, 0.3, 0], [0, 0, 0.5, 0.5], [0.2, 0, 0, 0.8]])
    labels = shares @ torch.tensor([[1.0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1]])
    torch.testing.assert_close(coefficients(shares > 0, labels, k=2), shares)
    assert coefficients(shares > 0, None, k=2)[1].tolist() == [0.5, 0.0, 0.5, 0.0]


def test_clusters_hold_the_encodings_that_share_an_image() -> None:
    scores = torch.block_diag(*(torch.ones(4, 4) for _ in range(3))) * 2 - 1
    scores.fill_diagonal_(0)
    masks = pick_clusters(grow_clusters(scores, size=4, streams=ATTACK.bind(1)), scores, count=3)
    assert sorted(mask[:12].view(3, 4).any(1).sum().item() for mask in masks) == [1, 1, 1]
    assert affinity(masks, scores).amax(1).tolist() == [1.0] * 12
    with pytest.raises(DataError, match="ask for fewer images"):
        pick_clusters(grow_clusters(scores, size=4, streams=ATTACK.bind(1))[:2], scores, count=3)


def test_says_what_is_missing() -> None:
    _, seen = encoded(Mixup(k=2, classes=10), images=4, rounds=2)
    blind = replace(seen, weights=None, knowledge=Knowledge.NOTHING)
    with pytest.raises(KnowledgeError, match="needs encoding"):
        DecodeOracle()(blind, streams=ATTACK)
    with pytest.raises(KnowledgeError, match="grant it"):
        replace(seen, knowledge=Knowledge.NOTHING)
    granted = replace(blind, knowledge=Knowledge.AUXILIARY)
    with pytest.raises(DataError, match="at least 4 public images, got 0"):
        DecodeMixing(images=4, k=2)(granted, streams=ATTACK)
    other = replace(granted, auxiliary=Auxiliary(inputs=torch.zeros(9, 1, 9, 9)))
    with pytest.raises(DataError, match="resize them"):
        DecodeMixing(images=4, k=2)(other, streams=ATTACK)
    with pytest.raises(DataError, match="like images"):
        replace(seen, labels=torch.zeros(1, 3, 10))
    with pytest.raises(DataError, match="images=9 are looked for in fewer encodings, 8"):
        DecodeMixing(images=9, k=2)(granted, streams=ATTACK)
    with pytest.raises(DataError, match=r"floating-point, got torch\.uint8"):
        replace(seen, images=seen.images.byte())
    with pytest.raises(DataError, match="encodings must be finite"):
        DecodeOracle(flipped="no")(replace(seen, images=seen.images * torch.nan), streams=ATTACK)
    with pytest.raises(DataError, match="one number per channel, 1, got 3"):
        replace(seen, mean=(0.4, 0.5, 0.5))
    with pytest.raises(ValueError, match="at least k=4"):
        DecodeMixing(images=3, k=4)


def test_guesses_of_several_steps_are_one_group() -> None:
    guess = Reconstruction(
        inputs=torch.zeros(2, 3, 1, 4, 4),
        labels=torch.full((2, 3, 5), 0.2),
        objective=torch.zeros(2),
        diverged=torch.zeros(2, dtype=torch.bool),
        steps=torch.zeros(2, dtype=torch.long),
    )
    joined = Encodings.joined([guess, guess])
    assert joined.images.shape == (1, 12, 1, 4, 4)
    assert joined.labels is not None
    assert joined.labels.shape == (1, 12, 5)
    assert Encodings.joined([guess, replace(guess, labels=torch.zeros(2, 3, dtype=torch.long))]).labels is None


@pytest.mark.slow
@pytest.mark.skipif("GRADVEIL_DATA" not in os.environ, reason="needs CIFAR-10 in GRADVEIL_DATA")
def test_instahide_of_cifar_images_falls_to_the_oracle() -> None:
    data = load("cifar10")
    private, seen = encoded(InstaHide(k=4, classes=10, mean=data.mean), data, images=20, rounds=20)
    assert float(psnr(DecodeOracle()(seen, streams=ATTACK).images, private).min()) > 28
