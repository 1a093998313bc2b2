import dataclasses
import math
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gradveil.attacks import InvertingGradients, LodaAware
from gradveil.attacks._decode_stationarity import condition, stationarity
from gradveil.attacks._decoders.decode_loda import DecodeLoda
from gradveil.attacks._decoding import Encodings
from gradveil.client import observe
from gradveil.data import Dataset, load
from gradveil.defenses import Loda, defenses
from gradveil.engine import Runtime, normalized
from gradveil.errors import DataError, KnowledgeError, UnknownNameError, UnsupportedModelError
from gradveil.models import build, checkpoints
from gradveil.models.checkpoints import CheckpointError
from gradveil.models.training import Training, train
from gradveil.obscuring import (
    Descent,
    Extractor,
    LayerFeatures,
    Study,
    TrainedExtractor,
    bound,
    gradient,
    layer_set,
    load_extractor,
    objective,
    obscure,
    obscure_and_measure,
    obscure_images,
    obscure_split,
    save_extractor,
    sheet,
    study_architectures,
    study_weights,
    train_extractor,
)
from gradveil.spec import build_defenses
from gradveil.storage import TensorFolder
from gradveil.streams import Streams
from gradveil.types import Auxiliary, Batch, Knowledge, Protected

DIGITS = load("digits")


def private(count: int = 6, *, dtype: torch.dtype = torch.float64) -> Tensor:
    return DIGITS.train.inputs(range(count), dtype=dtype)


def pool() -> Tensor:
    return DIGITS.train.inputs(range(100, 140), dtype=torch.float64)


def network(*, inplace: bool = False) -> nn.Module:
    with torch.random.fork_rng([]):
        torch.default_generator.manual_seed(0)
        layers = [
            nn.Conv2d(1, 4, 3, padding=1),
            nn.BatchNorm2d(4),
            nn.ReLU(inplace),
            nn.Conv2d(4, 4, 3),
            nn.ReLU(inplace),
        ]
        return nn.Sequential(*layers, nn.Flatten(), nn.Linear(144, 5)).double()


def test_the_gradient_of_the_objective_is_that_of_autograd() -> None:
    images, hidden, features = pool()[:4].requires_grad_(), private(4), LayerFeatures(network(), ("0", "3", "6"))
    (expected,) = torch.autograd.grad(objective(images, hidden, features, c=0.7).sum(), images)
    found = gradient(images.detach(), hidden, features(hidden), features, c=0.7)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def test_descent_takes_the_steps_of_the_objective_s_gradient() -> None:
    hidden, start, features = private(4), pool()[:4], LayerFeatures(network(), ("0", "3", "6"))
    images = start.clone()
    for _ in range(5):
        slope = gradient(images, hidden, features(hidden), features, c=0.7)
        images = (images - 0.3 * slope / slope.flatten(1).norm(dim=1).view(-1, 1, 1, 1)).clamp(0, 1)
    before = start.clone()
    found = obscure(hidden, start, features, Descent(c=0.7, steps=5, lr=0.3))
    torch.testing.assert_close(found, images, rtol=0, atol=1e-7)
    assert torch.equal(start, before)


def test_the_objective_is_that_of_equation_four() -> None:
    model, (image, hidden) = network().eval(), private(2)
    first, hidden_first = model[0](image[None]), model[0](hidden[None])  # type: ignore[index]
    aligned = (model[:4](image[None]) - model[:4](hidden[None])).square().sum()  # type: ignore[index]
    by_hand = (first - hidden_first).square().sum() + aligned - 3 * (image - hidden).square().sum()
    found = objective(image[None], hidden[None], LayerFeatures(model, ("0", "3")), c=3)
    torch.testing.assert_close(found[0], by_hand)


def test_an_image_comes_out_the_same_in_any_stack() -> None:
    defense, images = Loda(steps=20, extractor=Extractor("tiny", network())), private(7)
    together = obscure_images(images, defense, pool=pool(), seed=3)
    for order in ([4, 2], [6], [0, 1, 3, 5]):
        alone = obscure_images(images[order], defense, pool=pool(), seed=3, runtime=Runtime(chunk=1))
        torch.testing.assert_close(alone, together[order], rtol=0, atol=1e-9)
    assert not torch.allclose(together, obscure_images(images, defense, pool=pool(), seed=4), atol=1e-2)


@pytest.mark.parametrize("variant", ["loda1", "loda2", "loda3"])
def test_the_objective_falls_and_images_stay_in_range(variant: Literal["loda1", "loda2", "loda3"]) -> None:
    defense = dataclasses.replace(Loda(steps=30), variant=variant)
    images, features = private(8), defense.features(private(1))
    begin = obscure_images(images, dataclasses.replace(defense, steps=0), pool=pool())
    end = obscure_images(images, defense, pool=pool())
    c = defense.descent.c
    assert bool((objective(end, images, features, c=c) < objective(begin, images, features, c=c)).all())
    assert float(end.min()) >= 0
    assert float(end.max()) <= 1
    assert all(any(torch.equal(image, public) for public in pool()) for image in begin)


@pytest.mark.parametrize("variant", ["loda1", "loda2", "loda3"])
def test_obscured_images_look_different_with_the_extractor_for_trials(
    variant: Literal["loda1", "loda2", "loda3"], caplog: pytest.LogCaptureFixture
) -> None:
    found = obscure_images(private(12), Loda(steps=60, variant=variant), pool=pool())
    decibels = -10 * (found - private(12)).square().flatten(1).mean(1).log10()
    assert float(decibels.mean()) < 11
    assert not caplog.records


def test_says_so_where_the_private_image_comes_back(caplog: pytest.LogCaptureFixture) -> None:
    found = obscure_images(private(), Loda(steps=80, c=0.0, layers=("0",)), pool=pool())
    assert float((found - private()).square().mean()) < 0.01
    assert "6 of 6 images are hardly obscured" in caplog.text


def test_a_step_has_the_length_of_the_learning_rate() -> None:
    defense = Loda(steps=1, lr=1e-3)
    inner = 0.25 + 0.5 * pool()
    begin = obscure_images(private(), dataclasses.replace(defense, steps=0), pool=inner)
    moved = (obscure_images(private(), defense, pool=inner) - begin).flatten(1).norm(dim=1)
    torch.testing.assert_close(moved, torch.full((6,), 1e-3).double(), rtol=1e-5, atol=0)


def test_the_defense_obscures_what_the_data_set_function_obscures() -> None:
    defense = Loda(steps=5)
    data = Protected.unchanged(Batch(private().view(3, 2, 1, 8, 8), torch.zeros(3, 2, dtype=torch.long)))
    streams = Streams(seed=9, purpose="client").bind(3)
    seen = defense.protect(data, pool=pool(), streams=streams)
    torch.testing.assert_close(seen.inputs.flatten(0, 1), obscure_images(private(), defense, pool=pool(), seed=9))
    again = defense.protect(data, pool=pool(), streams=streams.fork("step-7"))
    assert torch.equal(seen.inputs, again.inputs)  # once per private set, not anew at every step
    assert torch.equal(seen.origin, data.origin)
    assert not seen.inputs.requires_grad


def test_layer_sets_of_a_resnet18_are_those_of_paper_and_program() -> None:
    model = build("resnet18", input_shape=(3, 32, 32), num_classes=10)
    names = [path for path, module in model.named_modules() if isinstance(module, nn.Conv2d)]
    assert len(names) == 20
    first = ("conv1", "layer1.0.conv1", "layer1.0.conv2", "layer1.1.conv1", "layer1.1.conv2")
    assert layer_set(model, "loda1", "paper") == layer_set(model, "loda1", "program") == first
    assert layer_set(model, "loda2", "paper") == tuple(names)
    assert layer_set(model, "loda2", "program") == tuple(n for n in names if not n.startswith("layer4"))
    assert layer_set(model, "loda3", "paper") == (*names[-5:], "fc")
    assert layer_set(model, "loda3", "program") == (
        *(n for n in names if n.startswith("layer2")),
        "layer4",
        "fc:input",
    )


def test_features_are_the_outputs_of_the_layers_also_beside_activations_in_place() -> None:
    images, plain = private(3), network().eval()
    expected = torch.cat([plain[0](images).flatten(1), plain[:4](images).flatten(1), plain[:6](images)], 1)  # type: ignore[index]
    for inplace in (False, True):
        features = LayerFeatures(network(inplace=inplace).train(), ("0", "3", "6:input"))
        torch.testing.assert_close(features.train()(images), expected)
    assert not any(p.requires_grad for p in features.parameters())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in features.modules())


def test_an_interrupted_run_goes_on_and_a_repeated_one_only_reads(tmp_path: Path) -> None:
    stacks: list[int] = []

    def stop_after_two(_task: str, done: int, _total: int) -> None:
        stacks.append(done)
        if len(stacks) == 2:
            raise KeyboardInterrupt

    defense, runtime = Loda(steps=4), Runtime(chunk=2, store=TensorFolder(tmp_path))
    expected = obscure_images(private(), defense, pool=pool())
    with pytest.raises(KeyboardInterrupt):
        obscure_images(private(), defense, pool=pool(), runtime=dataclasses.replace(runtime, progress=stop_after_two))
    kept = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    assert len(kept) == 2
    for _ in range(2):
        found = obscure_images(private(), defense, pool=pool(), runtime=runtime)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-9)
    assert len(list(tmp_path.iterdir())) == 3
    assert all(path.stat().st_mtime_ns == when for path, when in kept.items())


def test_what_is_kept_belongs_to_its_settings(tmp_path: Path) -> None:
    runtime = Runtime(store=TensorFolder(tmp_path))
    trained = Extractor("tiny", network())
    smooth = Extractor(
        "tiny", nn.Sequential(*(nn.Tanh() if isinstance(m, nn.ReLU) else m for m in network().children()))
    )
    others = [Loda(steps=2), Loda(steps=2, c=19.0), Loda(steps=3), Loda(steps=2, extractor=trained)]
    others += [Loda(steps=2, extractor=smooth), Loda(steps=2, lr=0.2), Loda(steps=2, layers=("0",))]
    for defense in others:
        obscure_images(private(), defense, pool=pool(), runtime=runtime)
    obscure_images(private(), others[0], pool=pool(), seed=1, runtime=runtime)
    obscure_images(private(), others[0], pool=pool()[1:], runtime=runtime)
    assert len(list(tmp_path.iterdir())) == len(others) + 2


def few(count: int = 64) -> Dataset:
    return dataclasses.replace(DIGITS, train=DIGITS.train.select(range(count)), test=DIGITS.test.select(range(16)))


def tiny_extractor() -> TrainedExtractor:
    return train_extractor(few(), architecture="lenet", training=Training(epochs=1, batch_size=32))


def test_an_extractor_is_trained_on_a_public_set_and_obscures_a_split() -> None:
    extractor = tiny_extractor().extractor
    assert extractor.name == "lenet-digits"
    defense = Loda(steps=2, extractor=extractor)
    assert "extractor=lenet-digits" in defenses.describe(defense)
    split = obscure_split(DIGITS.train.select(range(5)), defense, pool=pool())
    assert torch.equal(split.labels, DIGITS.train.labels[:5])
    assert not torch.equal(split.images, DIGITS.train.images[:5])


def test_a_spec_string_names_the_checkpoint_of_the_extractor(tmp_path: Path) -> None:
    trained, path = tiny_extractor(), tmp_path / "extractor.safetensors"
    save_extractor(trained, path)
    (defense,) = build_defenses(f"loda:extractor={path},steps=2,layers=conv1+conv2")
    assert isinstance(defense, Loda)
    direct = Loda(steps=2, layers=("conv1", "conv2"), extractor=trained.extractor)
    images = private(3, dtype=torch.float32)
    assert torch.equal(obscure_images(images, defense, pool=None), obscure_images(images, direct, pool=None))
    again = build_defenses(defenses.describe(defense))[0]
    assert again == defense
    assert str(path) in defenses.describe(defense)
    assert "Conv2d" not in repr(defense)


def test_says_what_is_wrong_with_an_extractor(tmp_path: Path) -> None:
    path = tmp_path / "extractor.safetensors"
    save_extractor(tiny_extractor(), path)
    unbound = defenses.build(f"loda:extractor={path}")
    assert isinstance(unbound, Loda)
    with pytest.raises(DataError, match=r"is not loaded; pass the defense through obscuring\.bound"):
        unbound.features(private())
    with pytest.raises(DataError, match=r"images have 3 channels, the extractor .* takes 1"):
        bound(unbound).features(torch.zeros(1, 3, 8, 8))
    with pytest.raises(CheckpointError, match="there is no checkpoint"):
        build_defenses("loda:extractor=nowhere.safetensors")
    checkpoints.save(nn.Linear(1, 1), tmp_path / "other.safetensors", about={})
    with pytest.raises(CheckpointError, match="holds no extractor"):
        load_extractor(tmp_path / "other.safetensors")
    about = {**tiny_extractor().about, "mean": "[0.5]"}
    checkpoints.save(build("lenet", input_shape=(1, 8, 8), num_classes=10), tmp_path / "n.safetensors", about=about)
    with pytest.raises(CheckpointError, match="eats standardized pixels"):
        load_extractor(tmp_path / "n.safetensors")


SHORT = Training(epochs=2, batch_size=32)


def study(folder: Path | None = None, **changes: Any) -> Study:
    return Study(private=few(), defense=Loda(steps=2), pool=pool().float(), training=SHORT, folder=folder, **changes)


def test_a_study_trains_on_obscured_and_measures_on_clean_images() -> None:
    rows = study_weights(study(), "mlp:hidden=16", [5.0, 40.0])
    assert [row.c for row in rows] == [None, 5.0, 40.0]
    plain = normalized(build("mlp:hidden=16", input_shape=(1, 8, 8), num_classes=10), DIGITS.mean, DIGITS.std)
    by_hand = [few().train, study().obscured(5.0), study().obscured(40.0)]
    for row, split in zip(rows, by_hand, strict=True):
        assert row.accuracy == train(plain, split, training=SHORT, test=few().test).accuracy
    seen, truth = by_hand[1].inputs(dtype=torch.float64), few().train.inputs(dtype=torch.float64)
    decibels = -10 * (seen - truth).square().flatten(1).mean(1).log10()
    assert rows[0].mean_psnr is rows[0].worst_psnr is None
    assert rows[1].mean_psnr == pytest.approx(float(decibels.mean()))
    assert rows[1].worst_psnr == pytest.approx(float(decibels.max()))


def test_a_study_asks_the_extractor_before_it_trains(tmp_path: Path) -> None:
    colours = Extractor("colours", nn.Sequential(nn.Conv2d(3, 2, 3)), channels=3)
    wrong = dataclasses.replace(study(tmp_path), defense=Loda(steps=1, extractor=colours))
    with pytest.raises(DataError, match="1 channels, the extractor colours takes 3"):
        study_weights(wrong, "mlp:hidden=8", [5.0])
    with pytest.raises(ValueError, match="c and steps must be at least 0"):
        study_weights(study(tmp_path), "mlp:hidden=8", [5.0, -1.0])
    assert not any(tmp_path.iterdir())


def test_an_obscured_set_says_what_was_reached_and_what_was_there_before(tmp_path: Path) -> None:
    runtime = Runtime(precision="float32", chunk=40, store=TensorFolder(tmp_path))
    whole = dataclasses.replace(study(runtime=runtime), defense=Loda(steps=30))
    (seen, first), (again, second) = obscure_and_measure(whole), obscure_and_measure(whole)
    assert torch.equal(seen.images, again.images)
    assert (first.images, first.taken_over, second.taken_over) == (64, 0, 2)
    assert first.lowered == 1.0
    assert first.mean_psnr < first.worst_psnr < 20
    still = dataclasses.replace(whole, defense=Loda(steps=0), runtime=None)
    assert obscure_and_measure(still)[1].lowered < 0.9  # rounding to bytes alone


def test_a_study_of_architectures_obscures_once_and_goes_on_where_it_was(tmp_path: Path) -> None:
    steps: list[str] = []
    runtime = Runtime(precision="float32", store=TensorFolder(tmp_path / "kept"))
    long = study(tmp_path, runtime=runtime, progress=lambda task, _done, _total: steps.append(task))
    first = study_architectures(long, ["mlp:hidden=8", "lenet"])
    assert [(row.architecture, row.c) for row in first] == [
        ("mlp:hidden=8", None), ("mlp:hidden=8", 20.0), ("lenet", None), ("lenet", 20.0),
    ]  # fmt: skip
    assert len(list((tmp_path / "kept").iterdir())) == 1
    taken = len(steps)
    assert study_architectures(long, ["mlp:hidden=8", "lenet"]) == first
    assert len(steps) == taken


def test_a_sheet_shows_private_left_and_obscured_right() -> None:
    left, right = private(3), 1 - private(3)
    shown = sheet(left, right, columns=2, gap=1)
    assert shown.shape == (1, 18, 34)
    assert torch.equal(shown[:, :8, :8], left[0])
    assert torch.equal(shown[:, :8, 25:33], right[1])
    assert torch.equal(shown[:, 9:17, :8], left[2])


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (torch.zeros(0, 1, 8, 8), r"got torch.float32 of shape \(0, 1, 8, 8\)"),
        (torch.zeros(2, 8, 8), "must be floating-point"),
        (torch.zeros(2, 1, 8, 8, dtype=torch.uint8), "divide bytes by 255"),
        (torch.full((2, 1, 8, 8), 255.0), r"must lie in \[0, 1\], got 255 to 255"),
        (torch.full((2, 1, 8, 8), torch.nan), "got nan to nan"),
    ],
)
def test_obscures_pixels_alone(images: Tensor, message: str) -> None:
    with pytest.raises(DataError, match=f"private images.*{message}"):
        obscure_images(images, Loda(steps=1), pool=None)
    if len(images):
        with pytest.raises(DataError, match=f"public images.*{message}"):
            obscure_images(private(), Loda(steps=1), pool=images)


def test_says_what_is_wrong() -> None:
    with pytest.raises(DataError, match=r"takes no images of \(3, 8, 8\)"):
        Loda(steps=1).features(private()).outputs(torch.zeros(2, 3, 8, 8).double())
    with pytest.raises(DataError, match="resize them"):
        obscure_images(private(), Loda(steps=1), pool=torch.zeros(3, 1, 9, 9))
    with pytest.raises(UnknownNameError, match="no layer called 'conv9'"):
        obscure_images(private(), Loda(steps=1, layers=("conv9",)), pool=None)
    with pytest.raises(UnsupportedModelError, match=r"no nn\.Conv2d"):
        Loda(extractor=Extractor("flat", nn.Flatten())).features(private())
    for settings in ({"lr": 0.0}, {"lr": math.inf}, {"c": -1.0}, {"c": math.nan}, {"c": math.inf}):
        with pytest.raises(ValueError, match="lr above 0"):
            Loda(**settings)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="variant must be loda1 or loda2 or loda3, got 'loda9'"):
        Loda(variant="loda9")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="reading must be paper or program, got 'code'"):
        Loda(reading="code")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="weight must be at least 0"):
        DecodeLoda(weight=math.nan)
    with pytest.raises(DataError, match=r"layer '6' takes no images of \(1, 9, 9\) .*; name layers before it"):
        LayerFeatures(network(), ("0", "6")).outputs(torch.zeros(2, 1, 9, 9).double())
    with pytest.raises(ValueError, match="every private image needs"):
        sheet(private(2), private(3))


def aligned(images: Tensor, features: nn.Module, *, extra: Knowledge = Knowledge.AUXILIARY) -> Encodings:
    return Encodings(images=images[None], knowledge=extra, auxiliary=Auxiliary(extractor=features))


def test_the_private_image_solves_the_stationary_condition() -> None:
    # With small c the objective is convex here, and descent reaches a point inside [0, 1] where its gradient vanishes.
    features, hidden = LayerFeatures(nn.Sequential(nn.Conv2d(1, 3, 3, padding=1)).double(), ("0",)), private(3)
    images = pool()[:3]
    found = stationarity(hidden, images, features, weight=0.4)
    torch.testing.assert_close(2 * found, gradient(images, hidden, features(hidden), features, c=0.4))


def test_the_adaptive_attack_finds_the_private_image_where_the_condition_determines_it() -> None:
    convolution = nn.Conv2d(1, 2, 1, bias=False).double()
    convolution.weight.data = torch.tensor([1.0, 0.5]).double().view(2, 1, 1, 1)
    features, hidden = LayerFeatures(nn.Sequential(convolution), ("0",)), 0.3 + 0.4 * private(3)
    # Any x' that is stationary for x with c = w gives x back; without noise x' = x is such a point for every w.
    decoder = DecodeLoda(weight=0.25, steps=300, lr=0.2, norm="squared")
    found = decoder(aligned(hidden, features), streams=Streams(purpose="attack"))
    torch.testing.assert_close(found.images[0], hidden, atol=1e-3, rtol=0)
    assert float(found.objective) < 1e-5


@pytest.mark.parametrize("norm", ["plain", "squared"])
def test_the_adaptive_attack_lowers_its_objective(norm: Literal["plain", "squared"]) -> None:
    defense, hidden = Loda(steps=40, extractor=Extractor("tiny", network()), c=0.05), private(4)
    features = defense.features(hidden)
    seen = obscure_images(hidden, defense, pool=pool())
    begin = stationarity(torch.full_like(seen, 0.5), seen, features, weight=1.0).square().flatten(1).sum(1)
    decoder = dataclasses.replace(DecodeLoda(optimizer="adam", steps=40, lr=0.02), norm=norm)
    found = decoder(aligned(seen, features), streams=Streams(purpose="attack"))
    end = stationarity(found.images[0], seen, features, weight=1.0).square().flatten(1).sum(1)
    assert bool((end < 0.5 * begin).all())
    alone = decoder(aligned(seen[2:3], features), streams=Streams(purpose="attack"))
    torch.testing.assert_close(alone.images[0, 0], found.images[0, 2], rtol=0, atol=1e-9)


def test_the_adaptive_attack_needs_the_extractor() -> None:
    features = LayerFeatures(network(), ("0",))
    with pytest.raises(KnowledgeError, match="needs auxiliary"):
        DecodeLoda()(aligned(private(), features, extra=Knowledge.NOTHING), streams=Streams())
    with pytest.raises(DataError, match="needs the extractor"):
        DecodeLoda()(Encodings(images=private()[None], knowledge=Knowledge.AUXILIARY), streams=Streams())


def test_the_condition_is_the_stationary_one_and_can_be_differentiated_by_both_images() -> None:
    features = LayerFeatures(nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.Tanh()).double(), ("1",))
    hidden, seen = private(1)[..., :4, :4].requires_grad_(), pool()[:1, :, :4, :4].contiguous().requires_grad_()
    found = condition(hidden, seen, features, weight=0.3)
    torch.testing.assert_close(found, stationarity(hidden, seen, features, weight=0.3))

    def of_both(first: Tensor, second: Tensor) -> Tensor:
        return condition(first, second, features, weight=0.3)

    assert torch.autograd.gradcheck(of_both, (hidden, seen))


class Squares(nn.Module):
    """Features whose condition another image than the obscured one meets: x'(x' + x) = w / 2 in every pixel."""

    def forward(self, images: Tensor) -> Tensor:
        return images.square().flatten(1)


def test_matching_through_the_objective_finds_the_private_image_behind_the_obscured_one() -> None:
    obscured = 0.21 + 0.06 * private(12)[10:]
    truth = 0.16 / obscured - obscured
    zero = condition(truth, obscured, Squares(), weight=0.32)
    torch.testing.assert_close(zero, torch.zeros_like(zero))
    model = build("lenet", input_shape=(1, 8, 8), num_classes=10, seed=4).double()
    batch = Batch(obscured[:, None], DIGITS.train.labels[10:12, None])
    granted = Knowledge.DEFENSES | Knowledge.LABELS
    observation = dataclasses.replace(
        observe(batch, model, F.cross_entropy, knowledge=granted), auxiliary=Auxiliary(extractor=Squares())
    )
    guess = LodaAware(first=120, steps=60, tv=1e-6, c=0.32)(observation, streams=Streams(seed=0))
    assert guess.protected is not None
    assert float((guess.protected - batch.inputs).square().mean()) < 1e-3
    error = float((guess.inputs[:, 0] - truth).square().mean())
    assert error < 0.1 * float((obscured - truth).square().mean())
    with pytest.raises(KnowledgeError, match="needs the extractor of a known defense"):
        LodaAware(first=1)(dataclasses.replace(observation, auxiliary=Auxiliary()), streams=Streams())


def test_the_search_for_both_images_starts_from_the_recovered_one_and_from_grey() -> None:
    defense, model = Loda(steps=2), build("lenet", input_shape=(1, 8, 8), num_classes=10, seed=4).double()
    batch = Batch(private(2)[:, None], DIGITS.train.labels[:2, None])
    granted = Knowledge.DEFENSES | Knowledge.LABELS
    seen = observe(batch, model, F.cross_entropy, defenses=[defense], knowledge=granted)
    still = LodaAware(first=9, steps=1, lr=1e-12)(seen, streams=Streams(seed=0))
    recovered = InvertingGradients(steps=9, tv=LodaAware().tv)(seen, streams=Streams(seed=0)).inputs
    assert still.protected is not None
    torch.testing.assert_close(still.protected, recovered, rtol=0, atol=1e-9)
    torch.testing.assert_close(still.inputs, torch.full_like(recovered, 0.5), rtol=0, atol=1e-9)
    own = condition(recovered[:, 0], recovered[:, 0], defense.features(batch.inputs[:, 0]), weight=20.0)
    assert float(own.detach().abs().max()) == 0


def test_who_knows_the_defense_has_its_extractor_and_its_weight() -> None:
    defense, model = Loda(steps=2, c=7.0), build("lenet", input_shape=(1, 8, 8), num_classes=10, seed=4).double()
    batch = Batch(private(2)[:, None], DIGITS.train.labels[:2, None])
    granted = Knowledge.DEFENSES | Knowledge.LABELS
    seen = observe(batch, model, F.cross_entropy, defenses=[defense], knowledge=granted)
    attack, streams = LodaAware(first=2, steps=3), Streams(seed=0)
    same = dataclasses.replace(seen, defenses=(), auxiliary=Auxiliary(extractor=defense.features(batch.inputs[0])))
    expected = dataclasses.replace(attack, c=7.0)(same, streams=streams)
    torch.testing.assert_close(attack(seen, streams=streams).inputs, expected.inputs)
