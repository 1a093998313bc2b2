"""Attacks on what several local steps leave behind."""

import copy
import dataclasses

import pytest
import torch
import torch.nn.functional as F
from tiny_clients import SIZE, VICTIMS, assert_equal, network, normed, private, taken
from torch import Tensor, nn

from gradveil import data
from gradveil.attacks import Attack, GradientMatching, InvertingGradients
from gradveil.attacks._priors import ImageSpace
from gradveil.client import observe
from gradveil.engine import Runtime, matching
from gradveil.engine._unrolled import local_rows, total_step
from gradveil.errors import DataError, KnowledgeError
from gradveil.metrics import PSNR, align, arrange
from gradveil.models import build
from gradveil.streams import Streams
from gradveil.types import Auxiliary, Batch, Gradients, Knowledge, LocalTraining, Observation

KNOWN = Knowledge.LOCAL_TRAINING | Knowledge.LABELS
LOCALS = {
    "one step": LocalTraining(lr=0.1, shares="difference"),
    "one step, decay": LocalTraining(lr=0.1, weight_decay=0.2, shares="difference"),
    "one nesterov step": LocalTraining(lr=0.1, momentum=0.9, nesterov=True, shares="difference"),
    "sum of one gradient": LocalTraining(reduction="sum"),
    "several steps": LocalTraining(lr=0.1, steps=4, shares="difference"),
    "weights": LocalTraining(lr=0.1, steps=3, shares="weights"),
    "momentum": LocalTraining(lr=0.1, steps=4, momentum=0.9, shares="difference"),
    "nesterov": LocalTraining(lr=0.1, steps=4, momentum=0.9, nesterov=True, shares="difference"),
    "weight decay": LocalTraining(lr=0.1, steps=4, momentum=0.5, weight_decay=0.1, shares="difference"),
    "adam": LocalTraining(optimizer="adam", lr=0.01, steps=4, shares="difference"),
    "adam, decay": LocalTraining(optimizer="adam", lr=0.01, steps=3, weight_decay=0.1, shares="weights"),
    "sum": LocalTraining(lr=0.02, steps=3, reduction="sum", shares="difference"),
    "local batches": LocalTraining(lr=0.1, steps=5, local_batch_size=2, shares="difference"),
    "sum of local batches": LocalTraining(lr=0.1, steps=5, local_batch_size=2, reduction="sum", shares="difference"),
    "shuffled whole batch": LocalTraining(lr=0.1, steps=2, shuffled=True, shares="difference"),
    "batch larger than all": LocalTraining(lr=0.1, steps=2, local_batch_size=9, shares="difference"),
}
every_local = pytest.mark.parametrize("local", LOCALS.values(), ids=LOCALS.keys())


def stacked(models: list[nn.Module]) -> dict[str, Tensor]:
    names = [name for name, _ in models[0].named_parameters()]
    return {name: torch.stack([model.get_parameter(name).detach() for model in models]) for name in names}


@every_local
def test_training_again_on_the_private_data_gives_the_observed_update(local: LocalTraining) -> None:
    seen = taken(local=local, knowledge=KNOWN).observation
    match = matching(seen, precision="float32")
    assert_equal(match.gradients(private().inputs, private().labels), match.target, 1e-9)
    before = [parameter.detach() for parameter in network().parameters()]
    moved = [b - u if local.shares == "weights" else u for b, u in zip(before, seen.update, strict=True)]
    assert_equal([match.scale * tensor for tensor in match.target], moved)


@pytest.mark.parametrize("name", ["several steps", "local batches", "adam"])
def test_takes_clients_with_weights_of_their_own(name: str) -> None:
    own = stacked([network(seed) for seed in range(VICTIMS)])
    seen = taken(local=LOCALS[name], knowledge=KNOWN, parameters=own).observation
    match = matching(seen, precision="float32")
    assert_equal(match.gradients(private().inputs, private().labels), match.target, 1e-9)


@pytest.mark.parametrize("mode", ["eval", "train"])
def test_takes_networks_with_batch_norm(mode: str) -> None:
    seen = taken(model=normed(), local=LOCALS["momentum"], knowledge=KNOWN, mode=mode).observation
    match = matching(seen, precision="float32")
    assert_equal(match.gradients(private().inputs, private().labels), match.target, 1e-9)


def literal_slopes(model: nn.Module, inputs: Tensor, labels: Tensor, target: list[Tensor], lr: float) -> Tensor:
    """Differentiate the squared distance after three steps of two samples by the inputs of one victim, step by step."""
    images = inputs.clone().requires_grad_()
    weights = {name: parameter.detach().clone().requires_grad_() for name, parameter in model.named_parameters()}
    before, velocity = dict(weights), dict[str, Tensor]()
    for rows in ([0, 1], [2, 3], [0, 1]):
        outputs = torch.func.functional_call(model, weights, (images[rows],))
        gradients = torch.autograd.grad(
            F.cross_entropy(outputs, labels[rows]), list(weights.values()), create_graph=True
        )
        for name, gradient in zip(list(weights), gradients, strict=True):
            velocity[name] = 0.9 * velocity[name] + gradient if name in velocity else gradient
            weights[name] = weights[name] - lr * velocity[name]
    distances = [(before[n] - weights[n] - t).square().sum() for n, t in zip(weights, target, strict=True)]
    (slope,) = torch.autograd.grad(torch.stack(distances).sum(), images)
    return slope


def test_is_differentiable_as_the_literal_loop_is() -> None:
    local = LocalTraining(lr=0.3, steps=3, momentum=0.9, local_batch_size=2, shares="difference")
    seen = taken(local=local, knowledge=KNOWN).observation
    match = matching(seen, precision="float32")
    inputs = Streams(seed=4).bind(VICTIMS).uniform("trial", private().inputs.shape[1:]).double().requires_grad_()
    trial = match.gradients(inputs, private().labels)
    squares = [(match.scale * (g - t)).square().sum() for g, t in zip(trial, match.target, strict=True)]
    (slopes,) = torch.autograd.grad(torch.stack(squares).sum(), inputs)
    for victim in range(VICTIMS):
        target = [tensor[victim] for tensor in seen.update]
        images, labels = inputs[victim].detach(), private().labels[victim]
        assert_equal([slopes[victim]], [literal_slopes(seen.model, images, labels, target, 0.3)], 1e-8)


def test_a_weight_that_no_sample_moves_leaves_the_slopes_of_adam_finite() -> None:
    class Idle(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.idle, self.used = nn.Parameter(torch.ones(3).double()), network()

        def forward(self, inputs: Tensor) -> Tensor:
            return self.used(inputs) + 0 * self.idle.sum()  # type: ignore[no-any-return]

    local = LocalTraining(optimizer="adam", lr=0.01, steps=3, shares="difference")
    seen = taken(model=Idle(), local=local, knowledge=KNOWN).observation
    inputs = private().inputs.clone().requires_grad_()
    trial = matching(seen, precision="float32").gradients(inputs, private().labels)
    (slopes,) = torch.autograd.grad(torch.stack([g.square().sum() for g in trial]).sum(), inputs)
    assert bool(torch.isfinite(slopes).all())
    assert bool((slopes != 0).any())


def test_guesses_stand_in_for_settings_that_nobody_granted() -> None:
    local = LOCALS["momentum"]
    unknown = taken(local=local, knowledge=Knowledge.LABELS).observation
    assert unknown.local is None
    right = matching(unknown, precision="float32", guess=local)
    wrong = matching(unknown, precision="float32", guess=dataclasses.replace(local, momentum=0.0))
    data = private().inputs, private().labels
    assert_equal(right.gradients(*data), right.target, 1e-9)
    assert distance(wrong.gradients(*data), wrong.target) > 1e-4


def distance(trial: Gradients, target: Gradients) -> float:
    left, right = (torch.cat([t.flatten() for t in tensors]) for tensors in (trial, target))
    return float(1 - F.cosine_similarity(left, right, dim=0))


def test_surrogates_take_the_mean_of_all_steps_for_one_gradient() -> None:
    local = LocalTraining(lr=0.1, steps=4, momentum=0.5, weight_decay=0.1, shares="difference")
    seen = taken(local=local, knowledge=KNOWN).observation
    before = [parameter.detach() for parameter in seen.model.parameters()]
    for trajectory, part in (("mean-gradient", 0.0), ("midpoint", 0.5)):
        match = matching(seen, precision="float32", trajectory=trajectory)  # type: ignore[arg-type]
        for victim in range(VICTIMS):
            there = [b - part * u[victim] for b, u in zip(before, seen.update, strict=True)]
            trial = match.gradients(private().inputs, private().labels)
            assert_equal([g[victim] for g in trial], gradient_at(seen, there, victim))
            scale = total_step(local, SIZE)
            expected = [u[victim] / scale - 0.1 * w for u, w in zip(seen.update, there, strict=True)]
            assert_equal([t[victim] for t in match.target], expected)


def gradient_at(seen: Observation, weights: list[Tensor], victim: int) -> list[Tensor]:
    model = copy.deepcopy(seen.model)
    with torch.no_grad():
        for parameter, weight in zip(model.parameters(), weights, strict=True):
            parameter.copy_(weight)
    batch = private()
    loss = F.cross_entropy(model(batch.inputs[victim]), batch.labels[victim])
    return list(torch.autograd.grad(loss, list(model.parameters())))


def test_the_midpoint_explains_several_steps_better_than_the_start() -> None:
    seen = taken(local=LocalTraining(lr=0.5, steps=4, shares="difference"), knowledge=KNOWN).observation
    found = [
        distance(match.gradients(private().inputs, private().labels), match.target)
        for match in (matching(seen, trajectory=t) for t in ("mean-gradient", "midpoint", "unrolled"))
    ]
    assert found[0] > 2 * found[1] > 1000 * found[2]


@pytest.mark.parametrize("nesterov", [False, True])
def test_the_total_step_is_how_far_a_constant_gradient_carries(nesterov: bool) -> None:
    local = LocalTraining(lr=0.1, steps=5, momentum=0.8, nesterov=nesterov, shares="difference")
    weight = nn.Parameter(torch.zeros((), dtype=torch.float64))
    optimizer = torch.optim.SGD([weight], lr=0.1, momentum=0.8, nesterov=nesterov)
    for _ in range(5):
        weight.grad = torch.ones_like(weight)
        optimizer.step()
    assert total_step(local, 3) == pytest.approx(-float(weight.detach()))


def test_orders_that_a_client_shuffled_are_drawn_by_the_adversary() -> None:
    local = LocalTraining(lr=0.1, steps=5, local_batch_size=2, shuffled=True, shares="difference")
    streams, device = Streams(seed=0).bind(2).repeat(2), torch.device("cpu")
    announced = local_rows(local, 5, streams=None, device=device)
    assert [rows.tolist() for rows in announced if rows is not None] == [[[0, 1]], [[2, 3]]] * 2 + [[[0, 1]]]
    drawn = local_rows(local, 5, streams=streams, device=device)
    first, second, third = (rows for rows in drawn[:3] if rows is not None)
    assert first.shape == (4, 2)
    assert not torch.equal(torch.cat([first, second], 1)[0], torch.cat([first, second], 1)[1])  # restarts of one victim
    assert all(len({*first[v].tolist(), *second[v].tolist()}) == 4 for v in range(4))
    assert not torch.equal(first, third)  # the second epoch


CLASSES, BATCH, SIDE = 10, 8, 8


def eight_images(seed: int, victims: int) -> Batch:
    """Smooth images of distinct classes."""
    streams = Streams(seed=seed, purpose="test").bind(victims)
    coarse = streams.uniform("images", (BATCH, 1, 4, 4)).flatten(0, 1)
    inputs = F.interpolate(coarse, SIDE, mode="bilinear").unflatten(0, (victims, BATCH))
    return Batch(inputs, streams.permutation("labels", CLASSES)[:, :BATCH])


def small_network(seed: int) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1),
            nn.Tanh(),
            nn.Conv2d(8, 8, 3, padding=1, stride=2),
            nn.Tanh(),
            nn.Flatten(),
            nn.Linear(128, 32),
            nn.Tanh(),
            nn.Linear(32, CLASSES),
        )


def lost(batch: Batch, seen: Observation, attack: Attack) -> float:
    guess = attack(seen, streams=Streams(seed=0), runtime=Runtime(precision="float32", chunk=batch.victims))
    ordered = arrange(guess.inputs, align(guess.inputs, batch.inputs))
    return float(PSNR()(ordered, batch.inputs).mean())


def deviation(one: Observation, moved: Observation, lr: float) -> Tensor:
    """Return (V,) how far an update over its step size is from 4 times the first gradient of all samples."""
    first, update = (torch.cat([t.flatten(1) for t in seen.update], 1) for seen in (one, moved))
    away, length = (t.square().sum(1) for t in (update / lr - 4 * first, 4 * first))
    return (away / length).sqrt()


ALL_EIGHT, TWO_OF_EIGHT = None, 2  # samples of a local step
every_size = pytest.mark.parametrize("size", [ALL_EIGHT, TWO_OF_EIGHT])


@every_size
def test_four_known_local_steps_protect_eight_images_hardly_more_than_one(size: int | None) -> None:
    local = LocalTraining(lr=0.3, steps=4, local_batch_size=size, shares="difference")
    batch, model = eight_images(5, 1), small_network(5)
    one, four = (
        observe(batch, model, F.cross_entropy, knowledge=KNOWN, local=settings) for settings in (LocalTraining(), local)
    )
    assert float(deviation(one, four, local.lr).min()) >= 0.2

    attack = GradientMatching(steps=80, tv=1e-5)
    single, several = lost(batch, one, attack), lost(batch, four, attack)
    assert several >= single - 3
    blind = lost(batch, dataclasses.replace(four, local=None), attack)
    assert several >= blind + 5


def eight_digits(seed: int, victims: int) -> Batch:
    """Digits of distinct classes."""
    digits, streams = data.load("digits").train, Streams(seed=seed, purpose="test").bind(victims)
    kinds, picks = streams.permutation("labels", CLASSES)[:, :BATCH], streams.integers("picks", 100, (BATCH,))
    rows = [int((digits.labels == k).nonzero()[p]) for k, p in zip(kinds.flatten(), picks.flatten(), strict=True)]
    return Batch(digits.select(rows).inputs().unflatten(0, (victims, BATCH)), kinds)


@pytest.mark.slow
@every_size
def test_at_convergence_four_known_local_steps_give_digits_away_as_one_does(size: int | None) -> None:
    batch, local = eight_digits(4303, 4), LocalTraining(lr=0.1, steps=4, local_batch_size=size, shares="difference")
    model = build("lenet", input_shape=(1, 8, 8), num_classes=CLASSES, seed=4303)
    one, four = (
        observe(batch, model, F.cross_entropy, knowledge=KNOWN, local=settings) for settings in (LocalTraining(), local)
    )
    assert float(deviation(one, four, local.lr).min()) >= 0.2

    attack = InvertingGradients(steps=600, tv=1e-5)
    single, several = lost(batch, one, attack), lost(batch, four, attack)
    assert single >= 35
    assert several >= single - 3


def test_a_right_guess_of_the_settings_is_as_good_as_knowing_them() -> None:
    batch, local = eight_images(5, 1), LocalTraining(lr=0.3, steps=2, shares="difference")
    seen = observe(batch, small_network(5), F.cross_entropy, knowledge=KNOWN, local=local)
    unknown, attack = dataclasses.replace(seen, local=None), GradientMatching(steps=3)
    assert lost(batch, unknown, dataclasses.replace(attack, guess=local)) == lost(batch, seen, attack)
    assert lost(batch, unknown, attack) != lost(batch, seen, attack)


def test_an_attack_on_local_steps_does_not_feel_the_others_of_the_stack() -> None:
    batch, local = (
        eight_images(6, 3),
        LocalTraining(lr=0.3, steps=3, local_batch_size=4, shuffled=True, shares="weights"),
    )
    seen = observe(batch, small_network(6), F.cross_entropy, knowledge=KNOWN, local=local)
    wide = dataclasses.replace(
        seen, model=copy.deepcopy(seen.model).double(), update=tuple(tensor.double() for tensor in seen.update)
    )
    together, alone = (
        GradientMatching(steps=3, restarts=2)(wide, streams=Streams(seed=0), runtime=Runtime(chunk=chunk)).inputs
        for chunk in (3, 1)
    )
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-9)


def test_starts_from_a_public_image_of_the_class() -> None:
    batch = eight_images(7, 2)
    grey = torch.arange(20.0)[:, None, None, None].expand(20, 1, SIDE, SIDE) / 20
    public = Auxiliary(inputs=grey, labels=torch.arange(20) % CLASSES)
    seen = observe(batch, small_network(7), F.cross_entropy, knowledge=KNOWN)
    seen = dataclasses.replace(seen, auxiliary=public)
    streams = Streams(seed=0).bind(2)
    start = ImageSpace.of(seen).start("image", streams)
    level = (start[:, :, 0, 0, 0] * 20).round().long()
    assert torch.equal(level % CLASSES, batch.labels)
    assert set((level // CLASSES).flatten().tolist()) == {0, 1}
    again = ImageSpace.of(seen.select([1])).start("image", streams.select([1]))
    assert torch.equal(again[0], start[1])
    unlabelled = ImageSpace.of(dataclasses.replace(seen, labels=None)).start("image", streams)
    assert unlabelled.shape == start.shape


def test_a_start_near_the_truth_gets_nearer() -> None:
    batch = eight_images(8, 2)
    seen = observe(batch, small_network(8), F.cross_entropy, knowledge=KNOWN)
    near = (batch.inputs[0] + 0.05).clamp(0, 1)
    seen = dataclasses.replace(seen, auxiliary=Auxiliary(inputs=near, labels=batch.labels[0])).select([0])
    attack = GradientMatching(steps=15, lr=0.01, tv=1e-5, start="image")
    assert (
        lost(batch.select([0]), seen, attack)
        > lost(batch.select([0]), seen, dataclasses.replace(attack, start="normal")) + 10
    )


def test_refuses_to_start_from_images_that_it_does_not_have() -> None:
    seen = observe(eight_images(7, 2), small_network(7), F.cross_entropy, knowledge=KNOWN)
    with pytest.raises(KnowledgeError, match="start=image needs public images, but the adversary has none"):
        GradientMatching(steps=2, start="image")(seen, streams=Streams(seed=0))
    small = dataclasses.replace(seen, auxiliary=Auxiliary(inputs=torch.zeros(3, 1, 4, 4)))
    with pytest.raises(DataError, match=r"of shape \(1, 8, 8\), got \(1, 4, 4\); resize them"):
        GradientMatching(steps=2, start="image")(small, streams=Streams(seed=0))
