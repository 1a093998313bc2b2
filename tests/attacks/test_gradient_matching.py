"""Objectives, layers, filters and rules of gradient matching, each against a slow or literal reference."""

import itertools
import math
import statistics
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from scipy.ndimage import median_filter as scipy_median_filter
from torch import Tensor, nn

from gradveil.attacks import GradientMatching, attacks
from gradveil.attacks._filtered import Filtered, median_filter
from gradveil.attacks._layers import layer_weights
from gradveil.attacks._objectives import Objective, distance_to
from gradveil.attacks._priors import ImageSpace, Start, Variation, enlarge, opponents, total_variation
from gradveil.attacks._restarts import join_pixels, join_registered, keep_best, pixel_mean, pixel_median
from gradveil.attacks.gradient_matching import PRESETS, Preset
from gradveil.client import observe
from gradveil.defenses import Pruning
from gradveil.engine import Adam, Runtime, Variable, minimize
from gradveil.errors import UnknownNameError
from gradveil.metrics import PSNR
from gradveil.models import build
from gradveil.streams import Streams
from gradveil.types import Batch, Gradients, Knowledge, Observation, Reconstruction

SHAPES = ((2, 3, 4), (5,), (3, 2))


def update(name: str, victims: int = 2) -> Gradients:
    streams = Streams(seed=0, purpose="test").bind(victims)
    return tuple(streams.normal(f"{name}/{i}", shape).double() for i, shape in enumerate(SHAPES))


def private(victims: int = 3) -> Batch:
    streams = Streams(seed=7, purpose="test").bind(victims)
    coarse = streams.uniform("images", (1, 1, 4, 4))
    return Batch(coarse.repeat_interleave(2, 3).repeat_interleave(2, 4), streams.integers("labels", 10, (1,)))


def network() -> nn.Module:
    return build("lenet", input_shape=(1, 8, 8), num_classes=10, seed=3)


def see(knowledge: Knowledge = Knowledge.LABELS, fraction: float = 0.0) -> Observation:
    defenses = [Pruning(fraction=fraction)] if fraction else []
    return observe(private(), network(), F.cross_entropy, defenses=defenses, knowledge=knowledge)


def cosine(a: Tensor, b: Tensor) -> float:
    return float(F.cosine_similarity(a.flatten(), b.flatten(), dim=0))


def literal(objective: Objective, trial: list[Tensor], target: list[Tensor], weights: list[float]) -> float:
    """Compute one victim's distance as the definition says."""
    pairs = list(zip(weights, trial, target, strict=True))
    if objective == "l2":
        return sum(w * float((a - b).square().sum()) for w, a, b in pairs)
    if objective == "l1":
        return sum(w * float((a - b).abs().sum()) for w, a, b in pairs)
    if objective == "layer-cosine":
        return sum(w * (1 - cosine(a, b)) for w, a, b in pairs) / sum(weights)
    if objective == "row-cosine":
        rows = [(w, r, s) for w, a, b in pairs for r, s in (zip(a, b, strict=True) if a.ndim > 1 else [(a, b)])]
        return sum(w * (1 - cosine(r, s)) for w, r, s in rows) / sum(w for w, _, _ in rows)
    if objective == "masked-cosine":
        pairs = [(w, a * (b != 0), b) for w, a, b in pairs]
    first = torch.cat([w**0.5 * a.flatten() for w, a, _ in pairs])
    return 1 - cosine(first, torch.cat([w**0.5 * b.flatten() for w, _, b in pairs]))


@pytest.mark.parametrize("objective", ["cosine", "l2", "l1", "layer-cosine", "row-cosine", "masked-cosine"])
@pytest.mark.parametrize("weights", [None, (1.0, 0.0, 0.25)])
def test_distances_are_what_their_definitions_say(objective: Objective, weights: tuple[float, ...] | None) -> None:
    trial, target = update("trial"), tuple(t * (t > -0.5) for t in update("target"))
    stacked = None if weights is None else torch.tensor([weights, weights], dtype=torch.double)
    found = distance_to(target, objective, weights=stacked)(trial)
    for victim in range(2):
        one, other = [t[victim] for t in trial], [t[victim] for t in target]
        assert float(found[victim]) == pytest.approx(literal(objective, one, other, list(weights or (1, 1, 1))))


@pytest.mark.parametrize("objective", ["layer-cosine", "row-cosine", "cosine"])
def test_a_trial_of_zeros_has_a_finite_slope(objective: Objective) -> None:
    trial = tuple(torch.zeros(2, *shape, dtype=torch.double, requires_grad=True) for shape in SHAPES)
    distance_to(update("target"), objective)(trial).sum().backward()
    assert all(t.grad is not None and bool(torch.isfinite(t.grad).all()) for t in trial)


def test_layers_are_chosen_by_place_size_and_name() -> None:
    seen = see()
    count, names = len(seen.names), seen.names
    assert layer_weights(seen, (), "equal") is None

    def ones(*layers: str) -> list[list[str]]:
        weights = layer_weights(seen, layers, "equal")
        assert weights is not None
        return [[n for n, w in zip(names, row, strict=True) if w] for row in weights.tolist()]

    assert ones("first-2") == [list(names[:2])] * 3
    assert ones("last-3") == [list(names[-3:])] * 3
    assert ones("conv2") == [["conv2.weight", "conv2.bias"]] * 3
    assert ones("not-fc") == [[n for n in names if not n.startswith("fc")]] * 3
    for victim, chosen in enumerate(ones("top-2")):
        norms = {name: float(tensor[victim].norm()) for name, tensor in zip(names, seen.update, strict=True)}
        assert set(chosen) == set(sorted(norms, key=lambda n: -norms[n])[:2])
    linear, exponential = layer_weights(seen, (), "linear"), layer_weights(seen, (), "exponential")
    assert linear is not None
    assert exponential is not None
    assert linear[0].tolist() == pytest.approx([(count - i) / count for i in range(count)])
    softmax = torch.arange(count, 0, -1.0).softmax(0)
    torch.testing.assert_close(exponential[1], softmax / softmax[0])


def test_an_unknown_layer_is_named() -> None:
    with pytest.raises(UnknownNameError, match=r"conv9.*did you mean"):
        GradientMatching(steps=1, layers=("conv9",))(see(), streams=Streams())


def test_the_median_filter_is_that_of_scipy() -> None:
    images = Streams(seed=1, purpose="test").bind(2).uniform("images", (2, 3, 5, 6))
    expected = torch.stack(
        [torch.from_numpy(scipy_median_filter(i, 3, mode="mirror")) for i in images.reshape(-1, 5, 6).numpy()]
    )
    assert torch.equal(median_filter(images), expected.view_as(images))


def test_filters_every_so_many_moves_and_leaves_who_has_stopped() -> None:
    start = Streams(seed=1, purpose="test").bind(2).uniform("images", (1, 1, 4, 4))
    optimizer = Filtered(Adam(lr=1e-9), 2)
    values = [start.clone()]
    state, active = optimizer.start(values), torch.tensor([True, False])
    for _ in range(2):
        assert torch.allclose(values[0], start, atol=1e-6)
        optimizer.move(values, [start], torch.zeros(2), state=state, rate=torch.ones(()), active=active)
    torch.testing.assert_close(values[0][0], median_filter(start)[0])
    torch.testing.assert_close(values[0][1], start[1])
    assert minimize(lambda v: v[0].sum((1, 2, 3, 4)), [Variable(start=start)], optimizer=optimizer, steps=3).values


def restarted() -> Reconstruction:
    images = torch.arange(6.0).view(6, 1, 1, 1, 1) / 10
    objective = torch.tensor([3.0, 1.0, 2.0, torch.inf, 5.0, 4.0])
    return Reconstruction(
        inputs=images,
        objective=objective,
        diverged=objective.isinf(),
        steps=torch.arange(6),
        labels=torch.arange(6)[:, None],
    )


def test_restarts_are_chosen_by_score_or_joined_by_pixel() -> None:
    guess = restarted()
    assert keep_best(guess, 3).steps.tolist() == [1, 5]
    by_score = keep_best(guess, 3, score=torch.tensor([1.0, 2, 3, 0, 1, 2]))
    assert by_score.steps.tolist() == [0, 4]  # the fourth found nothing
    assert join_pixels(guess, 3, pixel_mean).inputs.flatten().tolist() == pytest.approx([0.1, 0.45])
    assert join_pixels(guess, 3, pixel_median).inputs.flatten().tolist() == pytest.approx([0.1, 0.4])
    nothing = replace(guess, objective=torch.full((6,), torch.inf))
    assert bool(torch.isfinite(join_pixels(nothing, 3, pixel_mean).inputs).all())


@pytest.mark.parametrize("choice", ["loss", "tv", "pixel-mean", "pixel-median"])
def test_every_rule_of_choice_looks_at_all_restarts(choice: str) -> None:
    attack = attacks.build(f"gradient-matching:steps=2,restarts=3,tv=1e-2,choice={choice}")
    one = attacks.build("gradient-matching:steps=2,restarts=1,tv=1e-2")
    many, alone = (a(see(), streams=Streams(seed=1), runtime=Runtime(chunk=3)) for a in (attack, one))
    assert many.inputs.shape == alone.inputs.shape
    assert not torch.equal(many.inputs, alone.inputs)


def test_the_presets_are_those_of_the_paper() -> None:
    rows = {
        name: (p.signed, p.boxed, p.objective, p.optimizer, p.lr, p.restarts, p.steps, p.tv, p.start, p.decay)
        for name, p in PRESETS.items()
    }
    assert rows == {
        "adam-cosine": (True, True, "cosine", "adam", 0.1, 1, 4800, 1e-4, "normal", True),
        "adam-l1": (True, True, "l1", "adam", 0.1, 1, 4800, 1e-4, "normal", True),
        "adam-l2": (True, True, "l2", "adam", 0.1, 1, 4800, 1e-4, "normal", True),
        "sgd-cosine": (True, True, "cosine", "sgd", 0.01, 1, 4800, 1e-4, "normal", True),
        "lbfgs-cosine": (True, True, "cosine", "lbfgs", 1e-4, 16, 300, 1e-4, "normal", False),
        "lbfgs-l2": (False, False, "l2", "lbfgs", 1e-4, 2, 50, 1e-3, "normal", False),
    }


def test_a_field_overrides_its_preset_and_the_rest_stays() -> None:
    attack = attacks.build("gradient-matching:lbfgs-l2,tv=0,boxed=true")
    assert isinstance(attack, GradientMatching)
    assert attack.plan() == replace(PRESETS["lbfgs-l2"], tv=0.0, boxed=True)


@pytest.mark.parametrize(
    ("preset", "settings", "least_db"),
    [
        ("adam-l1", "tv=0", 19),
        ("adam-l2", "tv=0", 19),
        ("sgd-cosine", "lr=0.03,tv=1e-5", 17),
        ("lbfgs-cosine", "signed=false,lr=1,steps=6,tv=0,restarts=2", 19),
    ],
)
def test_every_preset_finds_the_images_when_given_time(preset: Preset, settings: str, least_db: float) -> None:
    steps = "" if "steps" in settings else ",steps=80"
    attack = attacks.build(f"gradient-matching:{preset},{settings}{steps}")
    guess = attack(see(), streams=Streams(seed=0), runtime=Runtime(chunk=3))
    assert PSNR()(guess.inputs, private().inputs).median() >= least_db


def test_masking_exact_zeros_is_what_knowing_of_pruning_gives() -> None:
    runtime = Runtime(chunk=3)
    guessing = GradientMatching(steps=5, objective="masked-cosine")(
        see(fraction=0.8), streams=Streams(seed=0), runtime=runtime
    )
    known = see(Knowledge.LABELS | Knowledge.DEFENSES, fraction=0.8)
    knowing = GradientMatching(steps=5)(known, streams=Streams(seed=0), runtime=runtime)
    torch.testing.assert_close(guessing.inputs, knowing.inputs)


def test_leaving_a_layer_out_ignores_whatever_is_in_it() -> None:
    seen, attack = see(), GradientMatching(steps=4, layers=("not-fc",))
    spoiled = tuple(t * 0 + 7 if n.startswith("fc") else t for n, t in zip(seen.names, seen.update, strict=True))
    first, second = (
        attack(replace(seen, update=u), streams=Streams(seed=0), runtime=Runtime(chunk=3))
        for u in (seen.update, spoiled)
    )
    assert torch.equal(first.inputs, second.inputs)


def test_balanced_weights_give_every_parameter_the_same_say() -> None:
    seen = see()
    weights = layer_weights(seen, (), "balanced")
    assert weights is not None
    largest = torch.stack([tensor.flatten(1).norm(dim=1) for tensor in seen.update]).amax(0)
    for number, tensor in enumerate(seen.update):
        share = weights[:, number] * tensor.flatten(1).square().sum(1)
        torch.testing.assert_close(share, largest.square(), rtol=1e-4, atol=0)
    silent = replace(seen, update=(seen.update[0] * 0, *seen.update[1:]))
    muted = layer_weights(silent, (), "balanced")
    assert muted is not None
    assert bool((muted[:, 0] == 0).all())
    assert bool(torch.isfinite(muted).all())


def slow_variation(image: Tensor, kind: Variation) -> float:
    """Compute the variation of one (C, H, W) image pixel by pixel."""
    channels, height, width = image.shape
    down: list[float] = []
    right: list[float] = []
    lengths: list[float] = []
    for c, h, w in itertools.product(range(channels), range(height), range(width)):
        below = float(image[c, h + 1, w] - image[c, h, w]) if h + 1 < height else 0.0
        beside = float(image[c, h, w + 1] - image[c, h, w]) if w + 1 < width else 0.0
        down += [below] if h + 1 < height else []
        right += [beside] if w + 1 < width else []
        lengths.append(math.sqrt(below**2 + beside**2 + 1e-8))

    def cost(difference: float) -> float:
        if kind == "squared":
            return difference**2
        if kind == "huber":
            return difference**2 / 0.2 if abs(difference) < 0.1 else abs(difference) - 0.05
        return abs(difference)

    if kind == "isotropic":
        return statistics.fmean(lengths)
    return statistics.fmean(map(cost, down)) + statistics.fmean(map(cost, right))


@pytest.mark.parametrize("kind", ["anisotropic", "isotropic", "squared", "huber"])
def test_total_variation_is_what_its_definition_says(kind: Variation) -> None:
    images = Streams(seed=1, purpose="test").bind(2).uniform("images", (1, 3, 4, 5)).double() * 0.4
    found = total_variation(images, kind)
    for victim in range(2):
        assert float(found[victim]) == pytest.approx(slow_variation(images[victim, 0], kind), rel=1e-9)
    flat = torch.zeros(1, 1, 3, 4, 4, requires_grad=True)
    total_variation(flat, kind).sum().backward()
    assert flat.grad is not None
    assert bool((flat.grad == 0).all())


def test_opponents_are_the_differences_of_colours() -> None:
    images = Streams(seed=1, purpose="test").bind(2).uniform("images", (1, 3, 2, 2))
    red, green, blue = (images[:, :, c] for c in range(3))
    assert torch.equal(opponents(images)[:, :, :3], images)
    assert torch.equal(opponents(images)[:, :, 3:], torch.stack([red - green, red - blue, green - blue], 2))
    assert opponents(images[:, :, :1]).shape == (2, 1, 1, 2, 2)


def test_enlarging_is_linear_interpolation() -> None:
    images = Streams(seed=1, purpose="test").bind(2).uniform("images", (1, 3, 4, 5)).double()
    expected = F.interpolate(images[:, 0], size=(8, 9), mode="bilinear", align_corners=False)
    torch.testing.assert_close(enlarge(images, (8, 9))[:, 0], expected)


def test_registration_undoes_shifts_and_mirrors_between_restarts() -> None:
    image = Streams(seed=2, purpose="test").bind(2).uniform("images", (1, 3, 8, 8))
    restarts = torch.stack([image, image.roll((1, -2), (3, 4)), image.flip(4).roll(2, 4)], 1).flatten(0, 1)
    guess = Reconstruction(
        inputs=restarts,
        objective=torch.tensor([1.0, 2.0, 3.0, 2.0, 1.0, torch.inf]),
        diverged=torch.zeros(6, dtype=torch.bool),
        steps=torch.arange(6),
        details={"number": torch.arange(6)},
    )
    for average in (pixel_mean, pixel_median):
        joined = join_registered(guess, 3, average)
        torch.testing.assert_close(joined.inputs[0], image[0])
        torch.testing.assert_close(joined.inputs[1], image[1].roll((1, -2), (2, 3)))  # where the best restart has it
        assert joined.details["number"].tolist() == [0, 4]
    assert not torch.allclose(join_pixels(guess, 3, pixel_mean).inputs[0], image[0], atol=0.1)


def test_the_prior_on_the_mean_pulls_colours_to_those_of_the_data_set() -> None:
    seen = see()
    far = [
        abs(float(attacks.build(f"inverting-gradients:steps=40,mean={mean}")(
            seen, streams=Streams(seed=0), runtime=Runtime(chunk=3)
        ).inputs.mean((1, 2, 3, 4)).abs().mean()))
        for mean in (0, 100)
    ]  # fmt: skip
    # This network is not normalized, so that its standardized mean of 0 is black.
    assert far[1] < 0.5 * far[0]


def test_coarse_steps_count_and_the_rest_is_taken_in_full_size() -> None:
    seen, tasks = see(), list[tuple[str, int]]()
    runtime = Runtime(chunk=3, progress=lambda task, _done, total: tasks.append((task, total)))
    attack = attacks.build("inverting-gradients:steps=90,tv=1e-5,coarse=2")
    guess = attack(seen, streams=Streams(seed=0), runtime=runtime)
    assert set(tasks) == {("attack/0-3/coarse", 30), ("attack/0-3", 60)}
    # These images are 2×2 blocks, which the coarse search can find already.
    assert PSNR()(guess.inputs, private().inputs).median() >= 24


@pytest.mark.parametrize("knowledge", [Knowledge.LABELS, Knowledge.NOTHING])
def test_polishing_goes_on_from_the_joined_guess(knowledge: Knowledge) -> None:
    seen = see(knowledge)
    joined = GradientMatching(steps=60, restarts=3, choice="pixel-mean")
    rough, still, finer = (replace(joined, polish=polish)(seen, streams=Streams(seed=4)) for polish in (0, 1, 60))
    assert 0 < float((still.inputs - rough.inputs).abs().max()) < 0.02  # a hundredth of a standardized pixel
    assert bool((finer.objective < still.objective).all())
    assert finer.steps.tolist() == [60] * 3


@pytest.mark.parametrize("start", ["normal", "uniform", "zeros", "pattern", "smooth"])
def test_starts_have_the_shape_of_the_images(start: Start) -> None:
    space, streams = ImageSpace.of(see()), Streams(seed=3).bind(3)
    images = space.start(start, streams, tile=3)
    assert images.shape == (3, 1, 1, 8, 8)
    assert torch.equal(images[1:2], space.start(start, streams.select([1]), tile=3))
    if start == "smooth":
        assert float(total_variation(images).mean()) < 0.5 * float(
            total_variation(space.start("normal", streams)).mean()
        )
