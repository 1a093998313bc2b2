"""The adversary who knows the transformation policy."""

import dataclasses
from functools import cache

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gradveil.attacks import Attack, InvertingGradients, PolicyAware
from gradveil.attacks._matching import Plan
from gradveil.attacks._policy_lens import Lens, largest_shifts, shift_lens, translate, variant_lens
from gradveil.attacks._policy_search import search
from gradveil.client import Client, Step, step
from gradveil.defenses import GaussianNoise, RandomPolicy, TransformPolicy
from gradveil.engine import Runtime, normalized
from gradveil.errors import KnowledgeError, SpecError
from gradveil.metrics import PSNR
from gradveil.streams import Streams
from gradveil.transforms import Variants, transform_smoothly
from gradveil.types import Batch, Knowledge, Reconstruction

SIZE, VICTIMS = 12, 6
INFORMED = Knowledge.LABELS | Knowledge.DEFENSES


def network(seed: int) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Conv2d(3, 6, 5, padding=2, stride=2),
            nn.Tanh(),
            nn.AvgPool2d(2),
            nn.Flatten(),
            nn.Linear(6 * (SIZE // 4) ** 2, 10),
        )


def private(seed: int, *, size: int = 1, victims: int = VICTIMS) -> Batch:
    """Bright smooth images, beside which the black that a translation moves in stands out."""
    streams = Streams(seed=seed, purpose="test").bind(victims)
    coarse = 0.4 + 0.6 * streams.uniform("images", (size, 3, 4, 4))
    inputs = F.interpolate(coarse.flatten(0, 1), SIZE, mode="bilinear").unflatten(0, (victims, size))
    return Batch(inputs, streams.integers("labels", 10, (size,)))


def taken(policy: str, *, seed: int = 0, size: int = 1, crop: bool = False, victims: int = VICTIMS) -> Step:
    defense = TransformPolicy(policy=policy, crop_and_flip=crop)
    client = Client(model=network(seed), loss=F.cross_entropy, defenses=(defense,))
    streams = Streams(seed=seed, purpose="client")
    return step(private(seed, size=size, victims=victims), client, streams=streams, knowledge=INFORMED)


def guess(attack: Attack, seen: Step) -> Reconstruction:
    runtime = Runtime(precision="float32", chunk=seen.observation.victims)
    return attack(seen.observation, streams=Streams(seed=0), runtime=runtime)


def score(found: Tensor | None, truth: Tensor) -> float:
    assert found is not None
    return float(PSNR()(found, truth).mean())


def by_grid_sample(images: Tensor, shifts: Tensor) -> Tensor:
    """Shift images (N, C, H, W) with torch's own sampling."""
    matrices = torch.eye(2, 3, dtype=images.dtype).repeat(len(images), 1, 1)
    matrices = torch.cat([matrices[:, :, :2], shifts[:, :, None]], 2)
    grid = F.affine_grid(matrices, list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, mode="bilinear", padding_mode="zeros", align_corners=False)


def random_images(count: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    images = torch.rand(count, 3, 5, 7, generator=generator, dtype=torch.float64, requires_grad=True)
    shifts = 2.4 * torch.rand(count, 2, generator=generator, dtype=torch.float64) - 1.2
    return images, shifts.requires_grad_()


def test_shifts_as_torchs_bilinear_sampling_does_and_has_its_slopes() -> None:
    images, shifts = random_images(9)
    ours, theirs = translate(images, shifts), by_grid_sample(images, shifts)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)
    weights = torch.linspace(-1, 1, ours.numel(), dtype=torch.float64).view_as(ours)
    for left, right in zip(
        torch.autograd.grad((ours * weights).sum(), (images, shifts)),
        torch.autograd.grad((theirs * weights).sum(), (images, shifts)),
        strict=True,
    ):
        torch.testing.assert_close(left, right, rtol=1e-9, atol=1e-12)


def test_a_shift_at_whole_pixels_has_the_mean_slope_of_its_two_sides() -> None:
    images, _ = random_images(2)
    slopes = []
    for offset in (0.0, 1e-7, -1e-7):
        shifts = torch.tensor([[offset, 0.2], [2 / 7 + offset, 0.2]], dtype=torch.float64, requires_grad=True)
        weights = torch.linspace(0, 1, 7, dtype=torch.float64)
        (slope,) = torch.autograd.grad((weights * translate(images, shifts)[:, 0, 1:3]).sum(), shifts)
        slopes.append(slope[:, 0])
    torch.testing.assert_close(slopes[0], (slopes[1] + slopes[2]) / 2, rtol=1e-5, atol=1e-6)


def literal_objective(seen: Step, lens: Lens, images: Tensor, shifts: Tensor, *, tv: float, victim: int) -> float:
    """Compute the published objective of one victim: the cosine through autograd, and total variation by loops."""
    model, labels = seen.observation.model, seen.observation.labels
    assert labels is not None
    image = images[victim]
    shift = shifts[victim]
    mean = lens.fill == "mean"
    viewed = by_grid_sample(image, shift) * 0.25 + 0.5 if mean else by_grid_sample(image * 0.25 + 0.5, shift)
    gradients = torch.autograd.grad(F.cross_entropy(model(viewed), labels[victim]), list(model.parameters()))
    trial = torch.cat([g.flatten() for g in gradients])
    target = torch.cat([u[victim].flatten() for u in seen.observation.update])
    cosine = trial @ target / (trial.norm() * target.norm())
    down = [(image[..., y + 1, :] - image[..., y, :]).abs() for y in range(SIZE - 1)]
    across = [(image[..., x + 1] - image[..., x]).abs() for x in range(SIZE - 1)]
    variation = torch.stack(down).mean() + torch.stack(across).mean()
    return float((1 - cosine + tv * variation).detach())


@pytest.mark.parametrize("fill", ["mean", "black"])
@pytest.mark.parametrize("size", [1, 2])
def test_its_objective_is_the_literal_one(fill: str, size: int) -> None:
    model = normalized(network(0).double(), mean=[0.5] * 3, std=[0.25] * 3)
    batch = private(0, size=size, victims=2)
    client = Client(model=model, loss=F.cross_entropy, defenses=(TransformPolicy(policy="3-1-7"),))
    seen = step(
        dataclasses.replace(batch, inputs=batch.inputs.double()),
        client,
        streams=Streams(seed=0, purpose="client"),
        knowledge=INFORMED,
    )
    lens = shift_lens(seen.observation, TransformPolicy(policy="3-1-7"), fill=fill, limits=None)  # type: ignore[arg-type]
    generator = torch.Generator().manual_seed(1)
    images = torch.randn(2, size, 3, SIZE, SIZE, generator=generator, dtype=torch.float64)
    shifts = 0.1 + 0.1 * torch.rand(2, size, 2, generator=generator, dtype=torch.float64)
    found = search(
        seen.observation,
        lens,
        Plan(tv=0.3, steps=1),
        images=images,
        shifts=shifts,
        runtime=Runtime(precision="float32", trace=True),
    )
    expected = [literal_objective(seen, lens, images, shifts, tv=0.3, victim=v) for v in range(2)]
    torch.testing.assert_close(found.trace[:, 0], torch.tensor(expected, dtype=torch.float64), rtol=1e-9, atol=0)


def test_keeps_shift_and_image_within_their_limits() -> None:
    seen = taken("3-1-7", victims=2)
    lens = shift_lens(seen.observation, TransformPolicy(policy="3-1-7"), fill="mean", limits=(0.5, 0.15))
    images, shifts = torch.zeros(2, 1, 3, SIZE, SIZE) + 0.3, torch.zeros(2, 1, 2)
    plan = Plan(lr=0.1, steps=40, signed=True, boxed=True)
    found = search(seen.observation, lens, plan, images=images, shifts=shifts, runtime=Runtime(precision="float32"))
    assert bool((found.values[1].abs() <= torch.tensor([0.5, 0.15]) + 1e-6).all())
    assert bool(((found.values[0] >= 0) & (found.values[0] <= 1)).all())
    assert float(found.values[1].abs().max()) > 0.01


@pytest.mark.parametrize(
    ("policy", "limits"),
    [("3-1-7", (1.1, 0.2)), ("43-18-18", (0.4, 0.4)), ("3-1-7+43-18-18", (1.1, 0.4))],
)
def test_allows_the_shifts_that_were_published(policy: str, limits: tuple[float, float]) -> None:
    assert largest_shifts(TransformPolicy(policy=policy), (32, 32)) == limits


def test_allows_other_policies_what_they_can_do() -> None:
    plain = largest_shifts(TransformPolicy(policy="21-3", crop_and_flip=False), (32, 32))
    assert plain == pytest.approx((2 * (0.251762 + 0.453172), 0.0), abs=1e-5)
    cropped = largest_shifts(TransformPolicy(policy="7"), (32, 16))
    assert cropped == pytest.approx((0.5, 2 * 0.100705 + 0.25), abs=1e-5)
    assert largest_shifts(RandomPolicy(seed=1, crop_and_flip=False), (32, 32)) == (0, 0)


@cache
def translated() -> Step:
    return taken("7", seed=5)


def test_a_learned_shift_finds_the_private_image_better_than_an_attack_without() -> None:
    seen = translated()
    plain, aware = (
        guess(attack, seen)
        for attack in (
            InvertingGradients(steps=120, tv=0.1, start="zeros"),
            PolicyAware(steps=120, tv=0.1, start="zeros"),
        )
    )
    truth = seen.evidence.batch.inputs
    assert score(aware.inputs, truth) > score(plain.inputs, truth) + 1.5
    assert score(aware.protected, seen.evidence.protected.inputs) > score(plain.inputs, seen.evidence.protected.inputs)
    black_below = seen.evidence.protected.inputs[:, 0, :, -1].sum((1, 2)) == 0
    down = aware.details["shift"][:, 0, 1]
    moved = down.abs() > 0.1
    assert int(moved.sum()) >= VICTIMS // 2
    assert torch.equal(down[moved] > 0, black_below[moved])


def test_trying_all_variants_finds_signs_and_images() -> None:
    seen = taken("21-24", seed=6)
    plain = guess(InvertingGradients(steps=120, tv=0.03), seen)
    aware = guess(PolicyAware(search="variants", steps=120, tv=0.03, screen=30), seen)
    truth, made = seen.evidence.batch.inputs, seen.evidence.protected.inputs
    assert score(aware.inputs, truth) > score(plain.inputs, truth) + 3
    assert score(aware.protected, made) > score(plain.inputs, made) + 1
    right = made[:, 0, :, :, -1].sum((1, 2)) == 0
    assert torch.equal(aware.details["signs"][:, 0] > 0, right)
    assert aware.details["operations"].tolist() == [[21, 24]] * VICTIMS


def test_tells_the_policies_of_a_hybrid_apart() -> None:
    seen = taken("21+24", seed=7)
    aware = guess(PolicyAware(search="variants", steps=80, tv=0.03, screen=30), seen)
    across = seen.evidence.protected.inputs[:, 0, :, 2:-2, [0, -1]].sum((1, 2)).amin(1) == 0
    assert 0 < int(across.sum()) < VICTIMS
    assert torch.equal(aware.details["operations"][:, 0] == 21, across)


def test_restarts_begin_at_other_places_of_the_crop_and_the_best_is_kept() -> None:
    seen = taken("28", seed=8, crop=True, victims=3)
    settings = {"search": "variants", "steps": 60, "tv": 0.1, "start": "zeros"}
    without, once, often = (
        guess(PolicyAware(**settings, crop=crop, restarts=restarts), seen)  # type: ignore[arg-type]
        for crop, restarts in ((False, 1), (True, 1), (True, 6))
    )
    assert bool((without.details["shift"] == 0).all())
    assert float(often.details["shift"].abs().max()) > 1.5 * 2 / SIZE
    assert float(often.details["shift"].abs().max()) <= 2 * 4 / SIZE + 1e-6
    assert bool((often.objective <= once.objective).all())


@pytest.mark.parametrize("policy", ["11-37-9", "2-6-12", "8-1-14", "0-15"])
def test_sees_images_through_any_operation(policy: str) -> None:
    seen, defense = taken(policy, victims=2).observation, TransformPolicy(policy=policy, crop_and_flip=False)
    numbers = torch.tensor([0, len(defense.variants().codes) - 1])
    lens = variant_lens(seen, defense, numbers, crop=True)
    images = private(1, victims=2).inputs.requires_grad_()
    shown = lens.see(images, torch.zeros(2, 1, 2))
    codes, signs = defense.variants()
    expected = transform_smoothly(images[:, 0], Variants(codes[numbers], signs[numbers]))
    torch.testing.assert_close(shown[:, 0], expected, rtol=0, atol=1e-6)
    (slope,) = torch.autograd.grad(shown.square().sum(), images)
    assert bool((slope != 0).flatten(1).any(1).all())


def test_shifts_every_image_of_a_batch_on_its_own() -> None:
    seen = taken("21", seed=9, size=2, victims=2)
    found = guess(PolicyAware(steps=10, tv=0.1), seen)
    assert found.details["shift"].shape == (2, 2, 2)
    assert found.inputs.shape == (2, 2, 3, SIZE, SIZE)


def test_refuses_to_try_variants_of_a_batch_in_one_sentence() -> None:
    with pytest.raises(SpecError, match="one image, but each victim has 2; use search=shift or a batch size of 1"):
        guess(PolicyAware(search="variants", steps=3), taken("21", size=2))


def test_refuses_defenses_without_a_policy_in_one_sentence() -> None:
    client = Client(model=network(0), loss=F.cross_entropy, defenses=(GaussianNoise(),))
    seen = step(private(0), client, streams=Streams(seed=0, purpose="client"), knowledge=INFORMED)
    with pytest.raises(KnowledgeError, match="the known defenses are: GaussianNoise; use it against transform-policy"):
        guess(PolicyAware(steps=3), seen)


@pytest.mark.parametrize(
    "settings", [{"limits": (1.0,)}, {"limits": (-1.0, 0.0)}, {"shift_rate": 0.0}, {"kept": 0}, {"screen": -1}]
)
def test_refuses_settings_that_make_no_sense(settings: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="must be"):
        PolicyAware(**settings)  # type: ignore[arg-type]
