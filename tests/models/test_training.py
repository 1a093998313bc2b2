import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import lr_scheduler

from gradveil import data, models
from gradveil.client import Client, sent_model
from gradveil.data import Split
from gradveil.defenses import (
    PPDL,
    SPN,
    Adversary,
    DataDefense,
    Defense,
    GaussianNoise,
    ModelDefense,
    Precode,
    Pruning,
    StepDefense,
    StepResult,
    TopK,
    UpdateDefense,
)
from gradveil.engine import GradientFunction, normalized
from gradveil.errors import DataError, UnsupportedModelError
from gradveil.models._loader import Loader, crop_flip
from gradveil.models._schedules import Schedule, factor
from gradveil.models.training import PRESETS, Pace, Training, TrainingError, evaluate, train
from gradveil.storage import TensorFolder
from gradveil.streams import Streams
from gradveil.types import Gradients, LossFn, Protected, State

IMAGES, BATCH, EPOCHS = 22, 5, 3
STEPS = EPOCHS * (IMAGES // BATCH)
SCHEDULES: tuple[Schedule, ...] = ("one-cycle", "steps", "cosine", "constant")
SHORT = Training(epochs=EPOCHS, batch_size=BATCH, lr=0.05)
OPTIMIZERS = {
    "plain": replace(SHORT, momentum=0.0, nesterov=False, weight_decay=0.0),
    "momentum": replace(SHORT, nesterov=False),
    "nesterov": replace(SHORT, weight_decay=1e-2),
    "adam": replace(SHORT, optimizer="adam", lr=1e-2, weight_decay=1e-2),
}


def split(images: int = IMAGES, *, seed: int = 0) -> Split:
    generator = torch.Generator().manual_seed(seed)
    pixels = torch.randint(256, (images, 1, 6, 6), dtype=torch.uint8, generator=generator)
    return Split(pixels, torch.randint(3, (images,), generator=generator))


def network(*, dtype: torch.dtype = torch.float64, dropout: float = 0.0) -> nn.Sequential:
    with torch.random.fork_rng([]):
        torch.default_generator.manual_seed(0)
        convolution, linear = nn.Conv2d(1, 4, 3, padding=1), nn.Linear(36, 3)
    layers = [convolution, nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Dropout(dropout), linear]
    return nn.Sequential(*layers).to(dtype)


def textbook(
    model: nn.Module,
    settings: Training,
    *,
    see: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] = lambda x, y: (x, y),
    change: Callable[[int, Gradients], Gradients] = lambda _, gradients: gradients,
    label_smoothing: float = 0.0,
) -> nn.Module:
    """Train in place, as an introduction to torch does it."""
    streams = Streams(seed=settings.seed, purpose="training").bind(1)
    optimizer = torch_optimizer(model, settings)
    scheduler = torch_scheduler(optimizer, settings.schedule, STEPS, settings.lr)
    steps = itertools.count()
    model.train()
    for epoch in range(settings.epochs):
        order = streams.permutation(f"order/{epoch}", IMAGES)[0]
        for start in range(0, IMAGES - BATCH + 1, BATCH):
            rows = order[start : start + BATCH]
            inputs, labels = see(split().inputs(rows, dtype=torch.float64), split().labels[rows])
            optimizer.zero_grad()
            F.cross_entropy(model(inputs), labels, label_smoothing=label_smoothing).backward()
            gradients = tuple(p.grad[None] for p in model.parameters() if p.grad is not None)
            for parameter, gradient in zip(model.parameters(), change(next(steps), gradients), strict=True):
                parameter.grad = gradient[0]
            optimizer.step()
            scheduler.step()
    return model


def torch_optimizer(model: nn.Module, settings: Training) -> torch.optim.Optimizer:
    if settings.optimizer == "adam":
        return torch.optim.Adam(model.parameters(), lr=settings.lr, weight_decay=settings.weight_decay)
    chosen: dict[str, Any] = {name: getattr(settings, name) for name in ("lr", "momentum", "nesterov", "weight_decay")}
    return torch.optim.SGD(model.parameters(), **chosen)


def torch_scheduler(
    optimizer: torch.optim.Optimizer, schedule: Schedule, total: int, lr: float
) -> lr_scheduler.LRScheduler:
    if schedule == "one-cycle":
        return lr_scheduler.OneCycleLR(optimizer, lr, total_steps=total, cycle_momentum=False)
    if schedule == "steps":
        return lr_scheduler.MultiStepLR(optimizer, [total * 3 // 8, total * 5 // 8, total * 7 // 8])
    if schedule == "cosine":
        return lr_scheduler.CosineAnnealingLR(optimizer, total)
    return lr_scheduler.ConstantLR(optimizer, factor=1.0)


def assert_same(one: nn.Module, other: nn.Module, *, tolerance: float = 1e-10) -> None:
    assert list(one.state_dict()) == list(other.state_dict())
    for name, tensor in one.state_dict().items():
        torch.testing.assert_close(tensor, other.state_dict()[name], atol=tolerance, rtol=tolerance)


NOBODY = Adversary(reason="a test")


@dataclass(frozen=True)
class PlainStep(StepDefense):
    adversary: ClassVar[Adversary] = NOBODY

    def gradient(
        self, function: GradientFunction, data: Protected, *, sensitive: Tensor | None, streams: Streams
    ) -> StepResult:
        found = function(data.inputs, data.labels)
        return StepResult(found.gradients, data, found.buffers)


@dataclass(frozen=True)
class SensitiveAlone(StepDefense):
    adversary: ClassVar[Adversary] = NOBODY

    def gradient(
        self, function: GradientFunction, data: Protected, *, sensitive: Tensor | None, streams: Streams
    ) -> StepResult:
        assert sensitive is not None
        found = function(data.inputs * sensitive[:, :, None, None, None], data.labels)
        return StepResult(found.gradients, data, found.buffers)


@dataclass(frozen=True)
class MixWithNext(DataDefense):
    adversary: ClassVar[Adversary] = NOBODY

    def protect(self, data: Protected, *, pool: Tensor | None, streams: Streams) -> Protected:
        inputs, labels = mixed(data.inputs[0], data.labels[0])
        return replace(data, inputs=inputs[None], labels=labels[None])


def mixed(inputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Mix every image with the next one, and add the images once more."""
    hard = F.one_hot(labels, 3).double()
    both = (inputs + inputs.roll(1, 0)) / 2, (hard + hard.roll(1, 0)) / 2
    return torch.cat([both[0], inputs]), torch.cat([both[1], hard])


@dataclass(frozen=True)
class Watched(UpdateDefense):
    adversary: ClassVar[Adversary] = NOBODY
    shapes: list[list[tuple[int, ...]]] = field(default_factory=list, compare=False, repr=False)
    draws: list[float] = field(default_factory=list, compare=False, repr=False)

    def apply(self, update: Gradients, *, streams: Streams) -> Gradients:
        self.shapes.append([tuple(tensor.shape) for tensor in update])
        self.draws.append(float(streams.uniform("draw", ())))
        return update


class Scaled(nn.Sequential):
    def __init__(self, model: nn.Sequential) -> None:
        super().__init__(*model)
        self.secret = nn.Parameter(torch.ones(3, dtype=torch.float64))

    def forward(self, inputs: Tensor) -> Tensor:
        for layer in self:
            inputs = layer(inputs)
        return inputs * self.secret


@dataclass(frozen=True)
class SecretScale(ModelDefense):
    adversary: ClassVar[Adversary] = NOBODY

    def wrap(self, model: nn.Module) -> nn.Module:
        assert isinstance(model, nn.Sequential)
        return Scaled(model)

    def wrap_loss(self, loss: LossFn) -> LossFn:
        return lambda outputs, labels: 2 * loss(outputs, labels)

    def start(self, model: nn.Module, *, streams: Streams) -> State:
        return {"secret": 1 + streams.uniform("secret", (3,))}


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_without_defenses_equals_a_textbook_loop(optimizer: str, schedule: Schedule) -> None:
    settings = replace(OPTIMIZERS[optimizer], schedule=schedule, seed=3)
    assert_same(train(network(), split(), training=settings).model, textbook(network(), settings))


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("total", [1, 2, 3, 7, 10, 391])
def test_learning_rates_are_those_of_torch(schedule: Schedule, total: int) -> None:
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.4)
    scheduler = torch_scheduler(optimizer, schedule, total, 0.4)
    for step in range(total):
        assert 0.4 * factor(schedule, step, total=total) == pytest.approx(optimizer.param_groups[0]["lr"], abs=1e-12)
        optimizer.step()
        scheduler.step()


@pytest.mark.parametrize("defense", [GaussianNoise(std=0.0), Pruning(fraction=0.0), PlainStep()], ids=repr)
@pytest.mark.parametrize("optimizer", ["nesterov", "adam"])
def test_a_defense_that_is_off_changes_nothing(optimizer: str, defense: Defense) -> None:
    settings = OPTIMIZERS[optimizer]
    bare = train(network(), split(), training=settings)
    defended = train(network(), split(), training=settings, defenses=[defense])
    assert_same(defended.model, bare.model)
    assert [e.loss for e in defended.history] == pytest.approx([e.loss for e in bare.history], rel=1e-10)
    assert defended.model.state_dict()["1.num_batches_tracked"] == STEPS


def test_a_step_defense_is_told_which_images_are_sensitive() -> None:
    def dark(images: Tensor) -> Tensor:
        return images[:, 0, 0, 0] < (0.5 if images.is_floating_point() else 128)

    marked = replace(split(), sensitive=dark(split().images))
    found = train(network(), marked, training=SHORT, defenses=[SensitiveAlone()])
    wanted = textbook(network(), SHORT, see=lambda x, y: (x * dark(x)[:, None, None, None], y))
    assert_same(found.model, wanted)


def test_noise_is_that_of_the_client_and_fresh_in_every_step() -> None:
    noise, streams = GaussianNoise(std=0.1), Streams(seed=SHORT.seed, purpose="training").bind(1)

    def noisy(step: int, gradients: Gradients) -> Gradients:
        return noise.apply(gradients, streams=streams.fork(f"step-{step}"))

    watched = Watched()
    trained = train(network(), split(), training=SHORT, defenses=[noise, watched])
    assert_same(trained.model, textbook(network(), SHORT, change=noisy))
    assert len(set(watched.draws)) == STEPS
    assert watched.shapes[0] == [(1, *parameter.shape) for parameter in network().parameters()]


def test_learns_from_what_a_data_defense_makes_of_the_batch() -> None:
    defended = train(network(), split(), training=SHORT, defenses=[MixWithNext()])
    assert_same(defended.model, textbook(network(), SHORT, see=mixed))
    stepped = train(network(), split(), training=SHORT, defenses=[MixWithNext(), PlainStep()])
    assert_same(stepped.model, defended.model)


@pytest.mark.parametrize("with_step", [(), (PlainStep(),)], ids=["dense", "step defense"])
def test_private_parameters_learn_but_do_not_leave(with_step: tuple[Defense, ...]) -> None:
    watched, settings = Watched(), OPTIMIZERS["nesterov"]
    trained = train(network(), split(), training=settings, defenses=[SecretScale(), watched, *with_step])

    literal = Scaled(network())
    start = Streams(seed=0, purpose="training").bind(1).uniform("secret", (3,))[0]
    literal.secret.data = (1 + start).double()
    reference = textbook(literal, settings, change=lambda _, gradients: tuple(2 * g for g in gradients))
    assert_same(trained.network, reference)
    assert list(trained.model.state_dict()) == list(network().state_dict())
    assert all(torch.equal(t, trained.network.state_dict()[n]) for n, t in trained.model.state_dict().items())
    assert watched.shapes[0] == [(1, *parameter.shape) for parameter in network().parameters()]


def test_smooths_labels_as_torch_does() -> None:
    smooth = train(network(), split(), training=replace(SHORT, label_smoothing=0.2)).model
    assert_same(smooth, textbook(network(), SHORT, label_smoothing=0.2))
    soft = train(network(), split(), training=replace(SHORT, label_smoothing=0.2), defenses=[MixWithNext()]).model
    assert_same(soft, textbook(network(), SHORT, see=mixed, label_smoothing=0.2))


def test_leaves_the_model_and_the_global_random_state_alone() -> None:
    model, settings = network(dropout=0.5), replace(SHORT, channels_last=True)
    model[1].eval()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    state = torch.get_rng_state()
    trained = train(model, split(), training=settings, test=split(seed=1))
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert all(parameter.grad is None for parameter in (*model.parameters(), *trained.model.parameters()))
    assert [model[0].training, model[1].training] == [True, False]
    assert not trained.model.training
    assert not torch.equal(before["0.weight"], trained.model.state_dict()["0.weight"])


def test_same_seed_gives_the_same_bits_also_with_random_layers() -> None:
    def weight(seed: int) -> Tensor:
        settings = replace(SHORT, seed=seed, augment="crop-flip")
        return train(network(dropout=0.5), split(), training=settings).model.get_parameter("0.weight")

    first = weight(0)
    torch.rand(1)
    assert torch.equal(first, weight(0))
    assert not torch.equal(first, weight(1))


def test_frozen_parameters_stay() -> None:
    model = network()
    model[0].requires_grad_(False)
    trained = train(model, split(), training=SHORT, defenses=[GaussianNoise()]).model
    assert torch.equal(trained.get_parameter("0.weight"), model.get_parameter("0.weight"))
    assert not trained.get_parameter("0.weight").requires_grad
    assert not torch.equal(trained.get_parameter("6.weight"), model.get_parameter("6.weight"))


@pytest.mark.parametrize("optimizer", ["nesterov", "adam"])
@pytest.mark.parametrize("killed_at", [2, STEPS // EPOCHS, STEPS - 1])
def test_a_killed_training_continues_to_the_same_bits(tmp_path: Path, optimizer: str, killed_at: int) -> None:
    settings = replace(OPTIMIZERS[optimizer], augment="crop-flip", channels_last=True)
    model, store = network(dtype=torch.float32, dropout=0.3), TensorFolder(tmp_path)
    whole = train(model, split(), training=settings, test=split(seed=1), defenses=[GaussianNoise()])

    def kill(_task: str, done: int, _total: int) -> None:
        if done == killed_at:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(model, split(), training=settings, defenses=[GaussianNoise()], store=store, progress=kill)
    resumed_from: list[int] = []
    resumed = train(
        model,
        split(),
        training=settings,
        test=split(seed=1),
        defenses=[GaussianNoise()],
        store=store,
        progress=lambda _task, done, _total: resumed_from.append(done - 1),
    )
    per_epoch = STEPS // EPOCHS
    assert resumed_from[0] == (killed_at - 1) // per_epoch * per_epoch
    assert_same(resumed.model, whole.model, tolerance=0)
    assert [e.loss for e in resumed.history] == [e.loss for e in whole.history]
    assert resumed.accuracy == whole.accuracy


def test_a_slower_pace_measures_and_keeps_less_and_changes_no_weight(tmp_path: Path) -> None:
    settings, rare = replace(SHORT, epochs=5), Pace(test_every=2, save_every=3600.0)
    whole = train(network(), split(), training=settings, test=split(seed=1))
    store = TensorFolder(tmp_path)
    found = train(network(), split(), training=settings, test=split(seed=1), store=store, pace=rare)
    assert_same(found.model, whole.model, tolerance=0)
    accuracies = [epoch.accuracy for epoch in whole.history]
    assert [e.accuracy for e in found.history] == [None, accuracies[1], None, accuracies[3], accuracies[4]]
    assert store.load("training") is None
    with pytest.raises(ValueError, match="test_every must be at least 1"):
        Pace(test_every=0)


@pytest.mark.parametrize("defense", [PPDL(theta=0.2, scale=0.01), TopK(top=0.2, residual=True)], ids=repr)
def test_a_killed_training_goes_on_with_what_update_defenses_held_back(tmp_path: Path, defense: Defense) -> None:
    def kill(_task: str, done: int, _total: int) -> None:
        if done == STEPS - 1:
            raise KeyboardInterrupt

    store = TensorFolder(tmp_path)
    whole = train(network(), split(), training=SHORT, defenses=[defense])
    with pytest.raises(KeyboardInterrupt):
        train(network(), split(), training=SHORT, defenses=[defense], store=store, progress=kill)
    assert any(name.startswith("kept.") for name in store.load("training") or {})
    assert_same(
        train(network(), split(), training=SHORT, defenses=[defense], store=store).model, whole.model, tolerance=0
    )


@pytest.mark.parametrize("with_step", [(), (PlainStep(),)], ids=["dense", "step defense"])
def test_what_the_server_sends_keeps_its_trained_parts(tmp_path: Path, with_step: tuple[Defense, ...]) -> None:
    bottleneck, path = Precode(size=4, beta=0.1), tmp_path / "trained.safetensors"
    trained = train(network(), split(), training=SHORT, defenses=[SPN(bits=4), bottleneck, *with_step])
    fresh = bottleneck.wrap(network())
    assert list(trained.model.state_dict()) == list(fresh.state_dict())
    assert not torch.allclose(
        trained.model.get_parameter("precode.encoder.weight"), fresh.get_parameter("precode.encoder.weight")
    )
    assert all(torch.equal(t, trained.network.state_dict()[n]) for n, t in trained.model.state_dict().items())

    models.checkpoints.save(trained.model, path, about={})
    models.checkpoints.load(path, fresh)
    client = Client(model=fresh, loss=F.cross_entropy, defenses=(bottleneck,))
    assert sent_model(client) is fresh
    assert_same(fresh, trained.model, tolerance=0)


def test_a_step_defense_is_made_ready_once_for_all_steps() -> None:
    def runs(epochs: int) -> int:
        calls: list[None] = []
        model = network()
        model[2].register_forward_hook(lambda *_: calls.append(None))
        train(model, split(), training=replace(SHORT, epochs=epochs), defenses=[PlainStep()])
        return len(calls)

    # One run for the gradient, and one for the loss.
    assert runs(3) - runs(2) == 2 * (IMAGES // BATCH)


def test_a_finished_training_is_not_repeated(tmp_path: Path) -> None:
    steps: list[int] = []

    def once() -> nn.Module:
        return train(
            network(),
            split(),
            training=SHORT,
            store=TensorFolder(tmp_path),
            progress=lambda task, done, total: steps.append(done),
        ).model

    first, second = once(), once()
    assert_same(first, second, tolerance=0)
    assert steps == list(range(1, STEPS + 1))


@pytest.mark.parametrize("other", [{"training": replace(SHORT, lr=0.1)}, {"defenses": [GaussianNoise()]}], ids=str)
def test_a_store_of_another_training_is_refused(tmp_path: Path, other: Mapping[str, Any]) -> None:
    train(network(), split(), training=SHORT, store=TensorFolder(tmp_path))
    with pytest.raises(TrainingError, match="the store holds a training with other settings"):
        train(network(), split(), **{"training": SHORT, "store": TensorFolder(tmp_path), **other})


def test_a_loss_that_is_no_number_stops_in_its_epoch() -> None:
    with pytest.raises(TrainingError, match=r"the loss became nan in epoch \d of 3; .* below 1e\+300"):
        train(network(), split(), training=replace(SHORT, lr=1e300, schedule="constant"))


def test_crops_and_mirrors_as_a_slow_loop_does() -> None:
    images = torch.randint(256, (9, 3, 5, 7), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    corners = torch.cartesian_prod(torch.tensor([0, 4, 8]), torch.tensor([0, 3, 8]))
    mirrored = torch.arange(9) % 2 == 1
    slow = []
    for image, (top, left), mirror in zip(images, corners.tolist(), mirrored, strict=True):
        crop = F.pad(image, [4, 4, 4, 4])[:, top : top + 5, left : left + 7]
        slow.append(crop.flip(2) if mirror else crop)
    assert torch.equal(crop_flip(images, corners=corners, mirrored=mirrored), torch.stack(slow))
    assert torch.equal(crop_flip(images, corners=torch.full((9, 2), 4), mirrored=mirrored < 0), images)


def test_an_epoch_shows_every_image_once_but_for_an_incomplete_batch() -> None:
    numbered = Split(torch.arange(22, dtype=torch.uint8).view(22, 1, 1, 1), torch.arange(22))
    streams = Streams(seed=0, purpose="training").bind(1)
    loader = Loader.of(numbered, batch_size=5, augment="none", like=torch.zeros(1, dtype=torch.float64))
    shown = [[batch.labels for batch in loader.epoch(number, streams=streams)] for number in range(6)]
    orders = [torch.cat(labels, 1).flatten().tolist() for labels in shown]
    assert [labels.shape for labels in shown[0]] == [(1, 5)] * 4
    assert all(len(set(order)) == 20 for order in orders)
    assert len(set(map(tuple, orders))) == 6
    assert set().union(*orders) == set(range(22))
    batch = next(loader.epoch(0, streams=streams))
    assert torch.equal(batch.inputs.flatten(), batch.labels.flatten().double() / 255)


def test_every_crop_and_mirror_occurs() -> None:
    marked = torch.zeros(400, 1, 9, 9, dtype=torch.uint8)
    marked[:, :, 4, 4], marked[:, :, 4, 5] = 255, 128
    loader = Loader.of(
        Split(marked, torch.zeros(400, dtype=torch.long)), batch_size=400, augment="crop-flip", like=torch.zeros(1)
    )
    (batch,) = loader.epoch(0, streams=Streams(seed=0, purpose="training").bind(1))
    places = {divmod(int(image.argmax()), 9) for image in batch.inputs[0]}
    assert {row for row, _ in places} == {column for _, column in places} == set(range(9))
    assert batch.inputs.shape == (1, 400, 1, 9, 9)


def test_layout_and_compilation_change_nothing_on_the_cpu() -> None:
    other = train(network(), split(), training=replace(SHORT, channels_last=True, compile=True))
    assert_same(other.model, train(network(), split(), training=SHORT).model)
    assert other.model.get_parameter("0.weight").is_contiguous()


@pytest.mark.parametrize("defenses", [(), (PlainStep(),)], ids=["dense", "step defense"])
def test_bf16_keeps_the_weights_in_their_format_and_stays_close(defenses: tuple[Defense, ...]) -> None:
    model = network(dtype=torch.float32)
    half = train(model, split(), training=replace(SHORT, precision="bf16"), defenses=defenses).model
    full = train(model, split(), training=SHORT).model
    assert half.get_parameter("0.weight").dtype == torch.float32
    assert not torch.equal(half.get_parameter("0.weight"), full.get_parameter("0.weight"))
    assert_same(half, full, tolerance=0.05)


def test_measures_accuracy_in_eval_mode_and_leaves_the_mode_alone() -> None:
    model, images = network(dropout=0.9), split(50)
    model[0].eval()
    expected = copy_of(model).eval()(images.inputs(dtype=torch.float64)).argmax(1)
    modes = [module.training for module in model.modules()]
    assert evaluate(model, images, batch_size=7) == (expected == images.labels).double().mean().item()
    assert [module.training for module in model.modules()] == modes


def test_learns_the_digits_and_reports_on_the_way() -> None:
    digits = data.load("digits")
    model = models.build("mlp:hidden=32", input_shape=digits.input_shape, num_classes=10)
    calls: list[tuple[str, int, int]] = []
    trained = train(
        normalized(model, digits.mean, digits.std),
        digits.train,
        training=Training(epochs=4, batch_size=64, lr=0.2),
        test=digits.test,
        progress=lambda *call: calls.append(call),
    )
    assert calls == [("training", step, 88) for step in range(1, 89)]
    assert trained.accuracy is not None
    assert trained.accuracy > 0.9
    assert trained.accuracy == trained.history[-1].accuracy == evaluate(trained.model, digits.test)
    assert trained.loss == trained.history[-1].loss < trained.history[0].loss
    assert trained.epochs == len(trained.history) == 4
    assert trained.seconds > 0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"epochs": 0}, "epochs must be at least 1, got 0"),
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"optimizer": "lion"}, "optimizer must be one of sgd, adam, got 'lion'"),
        ({"schedule": "linear"}, "schedule must be one of one-cycle, steps, cosine, constant, got 'linear'"),
        ({"augment": "flip"}, "augment must be one of none, crop-flip, got 'flip'"),
        ({"precision": "fp8"}, "precision must be one of float32, tf32, bf16, got 'fp8'"),
        ({"lr": 0.0}, "lr must be above 0, got 0.0"),
        ({"lr": float("nan")}, "lr must be above 0, got nan"),
        ({"momentum": 1.0}, "momentum must be at least 0 and below 1, got 1.0"),
        ({"label_smoothing": -0.1}, "label_smoothing must be at least 0 and below 1, got -0.1"),
        ({"weight_decay": -1.0}, "weight_decay must be at least 0, got -1.0"),
        ({"momentum": 0.0}, "nesterov needs a momentum above 0, got 0"),
    ],
    ids=str,
)
def test_refuses_settings_that_make_no_sense(settings: Mapping[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Training(**settings)


def test_presets_have_the_settings_of_the_papers() -> None:
    conservative = PRESETS["conservative"]
    assert (conservative.lr, conservative.momentum, conservative.nesterov) == (0.1, 0.9, True)
    assert (conservative.weight_decay, conservative.batch_size, conservative.schedule) == (5e-4, 128, "steps")
    fast = PRESETS["fast"]
    assert (fast.batch_size, fast.precision, fast.epochs, fast.schedule) == (512, "bf16", 60, "one-cycle")


def test_says_what_cannot_be_trained() -> None:
    with pytest.raises(DataError, match=r"labels must lie in 0 .. 2, the outputs of the model, got 0 to 7"):
        train(network(), Split(split().images, torch.arange(IMAGES) % 8), training=SHORT)
    with pytest.raises(DataError, match="a training set must hold at least one image"):
        train(network(), split().select([]), training=SHORT)
    with pytest.raises(DataError, match="accuracy needs at least one image"):
        evaluate(network(), split().select([]))
    with pytest.raises(UnsupportedModelError, match="training needs a parameter that requires a gradient"):
        train(nn.Flatten(), split(), training=SHORT)


def copy_of(model: nn.Sequential) -> nn.Sequential:
    fresh = network(dropout=0.9)
    fresh.load_state_dict(model.state_dict())
    return fresh
