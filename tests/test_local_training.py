import copy
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from tiny_clients import (
    SIZE,
    STREAMS,
    VICTIMS,
    assert_equal,
    network,
    normed,
    private,
    taken,
)
from torch import Tensor, nn

from gradveil.client import Client, step
from gradveil.defenses import (
    GaussianNoise,
)
from gradveil.engine import Runtime
from gradveil.types import Batch, LocalTraining


def literal(model: nn.Module, batch: Batch, victim: int, local: LocalTraining, orders: list[list[int]]) -> list[Tensor]:
    """Train one client with torch's own optimizers, and return its weights."""
    own = copy.deepcopy(model)
    optimizer: torch.optim.Optimizer
    if local.optimizer == "adam":
        optimizer = torch.optim.Adam(own.parameters(), lr=local.lr, weight_decay=local.weight_decay)
    else:
        optimizer = torch.optim.SGD(
            own.parameters(),
            lr=local.lr,
            momentum=local.momentum,
            nesterov=local.nesterov,
            weight_decay=local.weight_decay,
        )
    for rows in orders:
        optimizer.zero_grad()
        outputs = own(batch.inputs[victim, rows])
        F.cross_entropy(outputs, batch.labels[victim, rows], reduction=local.reduction).backward()
        optimizer.step()
    return [parameter.detach() for parameter in own.parameters()]


def orders(local: LocalTraining, victim: int) -> list[list[int]]:
    """List the samples of every step: whole batches of an epoch's order, in which the rest is left out."""
    size, epoch = local.local_batch_size or SIZE, 0
    found: list[list[int]] = []
    while len(found) < local.steps:
        order = list(range(SIZE))
        if local.shuffled:
            order = STREAMS.bind(VICTIMS).permutation(f"order/{epoch}", SIZE)[victim].tolist()
        found += [order[k : k + size] for k in range(0, SIZE - size + 1, size)]
        epoch += 1
    return found[: local.steps]


LOCALS = {
    "one step": LocalTraining(lr=0.1, shares="difference"),
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
    "shuffled": LocalTraining(lr=0.1, steps=5, local_batch_size=2, shuffled=True, momentum=0.9, shares="difference"),
    "shuffled whole batch": LocalTraining(lr=0.1, steps=2, shuffled=True, shares="difference"),
    "batch larger than all": LocalTraining(lr=0.1, steps=2, local_batch_size=9, shares="difference"),
}


@pytest.mark.parametrize("stacked", [False, True], ids=["shared", "stacked"])
@pytest.mark.parametrize("local", LOCALS.values(), ids=LOCALS.keys())
def test_local_training_is_that_of_torchs_optimizers(local: LocalTraining, stacked: bool) -> None:
    batch, models = private(), [network(seed if stacked else 0) for seed in range(VICTIMS)]
    own = {n: torch.stack([m.get_parameter(n).detach() for m in models]) for n, _ in network().named_parameters()}
    seen = taken(batch, model=network(), local=local, parameters=own if stacked else None).observation
    for victim, model in enumerate(models):
        size = min(local.local_batch_size or SIZE, SIZE)
        steps = orders(replace(local, local_batch_size=size), victim)
        after = literal(model, batch, victim, local, steps)
        before = [parameter.detach() for parameter in model.parameters()]
        expected = after if local.shares == "weights" else [b - a for b, a in zip(before, after, strict=True)]
        assert_equal([tensor[victim] for tensor in seen.update], expected)


def test_a_difference_of_one_plain_step_is_the_gradient() -> None:
    gradient = taken().observation.update
    difference = taken(local=LocalTraining(lr=1.0, shares="difference")).observation.update
    assert_equal(difference, gradient)


@pytest.mark.parametrize("local", [LOCALS["several steps"], LOCALS["shuffled"], LocalTraining()], ids=str)
def test_a_client_does_not_feel_the_others_of_the_stack(local: LocalTraining) -> None:
    batch, client = private(), Client(model=network(), loss=F.cross_entropy, local=local, defenses=(GaussianNoise(),))
    streams = STREAMS.bind(VICTIMS)
    together = step(batch, client, streams=streams).observation.update
    chunked = step(batch, client, streams=streams, runtime=Runtime(precision="float32", chunk=2)).observation.update
    alone = step(batch.select([2]), client, streams=streams.select([2])).observation.update
    assert_equal([tensor[2] for tensor in together], [tensor[0] for tensor in alone])
    assert_equal(together, chunked)


def test_buffers_go_on_from_step_to_step() -> None:
    model, batch = normed(), private()
    local = LocalTraining(lr=0.1, steps=3, shares="difference")
    found = taken(batch, model=model, local=local, mode="train")
    own = copy.deepcopy(model).train()
    weights = literal_in_place(own, batch, local)
    assert_equal([tensor[0] for tensor in found.evidence.update], weights)
    after = found.evidence.buffers_after["1.running_var"][0]
    torch.testing.assert_close(after, own.state_dict()["1.running_var"], rtol=1e-10, atol=0)


@pytest.mark.parametrize("stacked", [False, True], ids=["shared counter", "stacked counter"])
def test_norms_that_average_over_all_batches_count_every_local_step(stacked: bool) -> None:
    model, batch = normed(), private()
    model[1].momentum = None  # type: ignore[index]
    model[1].num_batches_tracked.fill_(4)  # type: ignore[index]
    local = LocalTraining(lr=0.1, steps=3, shares="difference")
    own = {name: tensor.expand(VICTIMS, *tensor.shape) for name, tensor in model.named_buffers()}
    found = taken(batch, model=model, local=local, mode="train", buffers=own if stacked else None)
    literal = copy.deepcopy(model).train()
    literal_in_place(literal, batch, local)
    for name, tensor in literal.named_buffers():
        torch.testing.assert_close(found.evidence.buffers_after[name][0], tensor, rtol=1e-10, atol=0)
    assert model[1].momentum is None  # type: ignore[index]


def test_clients_that_saw_different_numbers_of_batches_train_one_after_another() -> None:
    model, batch = normed(), private()
    model[1].momentum = None  # type: ignore[index]
    counters = torch.tensor([1, 2, 2])
    found = taken(batch, model=model, mode="train", buffers={"1.num_batches_tracked": counters}).evidence.buffers_after
    assert found["1.num_batches_tracked"].tolist() == [2, 3, 3]
    for victim, count in enumerate(counters):
        literal = copy.deepcopy(model).train()
        literal.get_buffer("1.num_batches_tracked").copy_(count)
        literal(batch.inputs[victim])
        for name, tensor in literal.named_buffers():
            torch.testing.assert_close(found[name][victim], tensor, rtol=1e-10, atol=0)


def literal_in_place(own: nn.Module, batch: Batch, local: LocalTraining) -> list[Tensor]:
    before = [parameter.detach().clone() for parameter in own.parameters()]
    optimizer = torch.optim.SGD(own.parameters(), lr=local.lr)
    for _ in range(local.steps):
        optimizer.zero_grad()
        F.cross_entropy(own(batch.inputs[0]), batch.labels[0]).backward()
        optimizer.step()
    return [b - a.detach() for b, a in zip(before, own.parameters(), strict=True)]
