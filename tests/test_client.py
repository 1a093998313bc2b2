import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tiny_clients import (
    CLASSES,
    EVERYTHING,
    SIZE,
    VICTIMS,
    Mirror,
    Negate,
    SecretShift,
    Twice,
    assert_equal,
    autograd,
    network,
    normed,
    private,
    taken,
)
from torch import Tensor, nn

from gradveil.client import Client, check, observe, step
from gradveil.defenses import (
    Defense,
    GaussianNoise,
)
from gradveil.engine import Runtime
from gradveil.errors import DataError, UnsupportedModelError
from gradveil.streams import Streams
from gradveil.types import Auxiliary, Batch, Knowledge, LocalTraining


@pytest.mark.parametrize("chunk", [None, 1, 2])
def test_shares_the_gradient_of_literal_autograd(chunk: int | None) -> None:
    model, batch = network(), private()
    seen = taken(batch, model=model, runtime=Runtime(precision="float32", chunk=chunk)).observation
    assert seen.names == tuple(name for name, _ in model.named_parameters())
    for victim in range(VICTIMS):
        assert_equal([tensor[victim] for tensor in seen.update], autograd(model, batch, victim))


def test_soft_labels_are_trained_on_as_they_are() -> None:
    model, batch = network(), private()
    soft = Streams(seed=4).bind(VICTIMS).uniform("soft", (SIZE, CLASSES)).double().softmax(-1)
    batch = replace(batch, labels=soft)
    seen = taken(batch, model=model).observation
    for victim in range(VICTIMS):
        assert_equal([tensor[victim] for tensor in seen.update], autograd(model, batch, victim))


def test_each_client_may_have_weights_of_its_own() -> None:
    batch, models = private(), [network(seed) for seed in range(VICTIMS)]
    own = {n: torch.stack([m.get_parameter(n).detach() for m in models]) for n, _ in network().named_parameters()}
    seen = taken(batch, model=network(9), parameters=own).observation
    for victim, model in enumerate(models):
        assert_equal([tensor[victim] for tensor in seen.update], autograd(model, batch, victim))
    assert seen.parameters is own


def test_train_mode_uses_the_batch_and_reports_its_statistics() -> None:
    model, batch = normed(), private()
    before = copy.deepcopy(model.state_dict())
    found = taken(batch, model=model, mode="train", knowledge=Knowledge.BUFFERS)
    for victim in range(VICTIMS):
        own = copy.deepcopy(model).train()
        assert_equal([tensor[victim] for tensor in found.observation.update], autograd(own, batch, victim))
        after = (found.observation.buffers_after or {})["1.running_mean"][victim]
        torch.testing.assert_close(after, own.state_dict()["1.running_mean"], rtol=1e-10, atol=0)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


def test_leaves_modes_parameters_and_random_state_alone() -> None:
    model = network().train()
    model.get_submodule("1").eval()
    before, state = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    taken(model=model, defenses=(GaussianNoise(),))
    assert [module.training for module in model.children()] == [True, False, True, True]
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)


def test_a_frozen_parameter_is_not_shared() -> None:
    model = network()
    model.get_submodule("0").requires_grad_(False)
    assert taken(model=model).observation.names == ("3.weight", "3.bias")
    with pytest.raises(UnsupportedModelError, match="no parameter of the model requires a gradient"):
        taken(model=network().requires_grad_(False))


SHUFFLED = LocalTraining(lr=0.1, steps=5, local_batch_size=2, shuffled=True, shares="difference")
FIELDS: dict[Knowledge, str] = {
    Knowledge.LABELS: "labels",
    Knowledge.LOCAL_TRAINING: "local",
    Knowledge.BUFFERS: "buffers_after",
    Knowledge.DEFENSES: "defenses",
    Knowledge.AUXILIARY: "auxiliary",
}


@pytest.mark.parametrize("granted", [Knowledge.NOTHING, *FIELDS, EVERYTHING], ids=str)
def test_the_adversary_sees_what_knowledge_grants(granted: Knowledge) -> None:
    public = Auxiliary(inputs=torch.zeros(1, 2, 4, 4))
    seen = taken(model=normed(), mode="train", knowledge=granted, auxiliary=public, defenses=(Negate(),)).observation
    assert seen.knowledge == granted
    for item, name in FIELDS.items():
        assert (getattr(seen, name) is not None) == (item in granted), name


def test_what_was_granted_is_what_was_used() -> None:
    public, local, batch = Auxiliary(), LocalTraining(lr=0.5), private()
    seen = taken(batch, knowledge=EVERYTHING, auxiliary=public, local=local, defenses=(Negate(), Mirror())).observation
    assert seen.local is local
    assert seen.auxiliary is public
    assert seen.defenses == (Negate(), Mirror())


@pytest.mark.parametrize("defenses", [(), (Mirror(),), (SecretShift(),), (Twice(),), (Negate(),)], ids=str)
@pytest.mark.parametrize("local", [LocalTraining(), SHUFFLED], ids=["gradient", "shuffled"])
def test_no_tensor_of_an_observation_shares_memory_with_the_private_inputs(
    defenses: tuple[Defense, ...], local: LocalTraining
) -> None:
    batch = private()
    found = taken(batch, defenses=defenses, local=local, knowledge=EVERYTHING)
    secret = {t.untyped_storage().data_ptr() for t in (batch.inputs, found.evidence.protected.inputs)}
    assert not secret & {tensor.untyped_storage().data_ptr() for tensor in tensors_of(found.observation)}


def tensors_of(value: object) -> list[Tensor]:
    """Collect every tensor that can be reached from an object through fields, containers and modules."""
    if isinstance(value, Tensor):
        return [value, *([value.grad] if value.grad is not None else [])]
    if isinstance(value, nn.Module):
        return [*value.parameters(), *value.buffers()]
    if isinstance(value, dict):
        return [tensor for item in value.values() for tensor in tensors_of(item)]
    if isinstance(value, list | tuple):
        return [tensor for item in value for tensor in tensors_of(item)]
    if hasattr(value, "__dataclass_fields__"):
        return [t for name in value.__dataclass_fields__ for t in tensors_of(getattr(value, name))]
    return []


def changed(**changes: Tensor) -> Batch:
    return replace(private(), **changes)


def with_value(value: float) -> Batch:
    inputs = private().inputs.clone()
    inputs[1, 2, 0, 1, 1] = value
    return changed(inputs=inputs)


LABELS = torch.zeros(VICTIMS, SIZE, dtype=torch.long)
WRONG: dict[str, tuple[Callable[[], Batch], str]] = {
    "an array": (lambda: changed(inputs=private().inputs.numpy()), "inputs must be a tensor, got ndarray"),  # type: ignore[arg-type]
    "a list of labels": (lambda: changed(labels=LABELS.tolist()), "labels must be a tensor, got list"),  # type: ignore[arg-type]
    "four axes": (lambda: changed(inputs=torch.zeros(VICTIMS, 2, 4, 4)), "inputs must be (victims, batch, channels"),
    "no victims": (lambda: Batch(torch.zeros(0, SIZE, 2, 4, 4), LABELS[:0]), "got shape (0, 5, 2, 4, 4)"),
    "no samples": (lambda: Batch(torch.zeros(VICTIMS, 0, 2, 4, 4), LABELS[:, :0]), "got shape (3, 0, 2, 4, 4)"),
    "bytes": (lambda: changed(inputs=torch.zeros(VICTIMS, SIZE, 2, 4, 4, dtype=torch.uint8)), "divide bytes by 255"),
    "above 1": (lambda: with_value(1.5), "pixels must lie in [0, 1], got"),
    "below 0": (lambda: with_value(-0.5), "use gradveil.normalized"),
    "not a number": (lambda: with_value(torch.nan), "pixels must lie in [0, 1]"),
    "infinite": (lambda: with_value(torch.inf), "pixels must lie in [0, 1]"),
    "other victims": (lambda: changed(labels=LABELS[:2]), "labels must be (victims, batch)"),
    "one axis of labels": (lambda: changed(labels=LABELS[:, 0]), "labels must be (victims, batch)"),
    "labels that are no numbers of classes": (lambda: changed(labels=LABELS.float()), "class labels must be int64"),
    "negative label": (lambda: changed(labels=LABELS - 1), "class labels must be int64 and at least 0"),
    "label too high": (lambda: changed(labels=LABELS + CLASSES), "labels must be below the model's 4 outputs, got 4"),
    "soft labels of other classes": (
        lambda: changed(labels=torch.ones(VICTIMS, SIZE, CLASSES + 1).double()),
        "soft labels must hold the model's 4 outputs, got 5",
    ),
    "negative soft labels": (
        lambda: changed(labels=-torch.ones(VICTIMS, SIZE, CLASSES).double()),
        "soft labels must be floating-point, finite and at least 0",
    ),
    "whole soft labels": (
        lambda: changed(labels=torch.ones(VICTIMS, SIZE, CLASSES, dtype=torch.long)),
        "soft labels must be floating-point",
    ),
    "mask of another shape": (
        lambda: changed(sensitive=torch.ones(VICTIMS, 1)),
        "sensitive must be (3, 5)",
    ),
    "channels": (
        lambda: changed(inputs=torch.zeros(VICTIMS, SIZE, 3, 4, 4).double()),
        "the model does not take inputs",
    ),
    "number format": (
        lambda: changed(inputs=private().inputs.float()),
        "the model does not take inputs (5, 2",
    ),
    "size": (lambda: changed(inputs=torch.zeros(VICTIMS, SIZE, 2, 9, 9).double()), "the model does not take inputs"),
}


@pytest.mark.parametrize(("make", "message"), WRONG.values(), ids=WRONG.keys())
def test_a_wrong_batch_is_one_sentence(make: Callable[[], Batch], message: str) -> None:
    model = network().train()
    with pytest.raises(DataError) as caught:
        observe(make(), model, F.cross_entropy)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert model.training


class Returning(nn.Module):
    """Gives the scores of a network away in another form."""

    def __init__(self, form: Callable[[Tensor], object]) -> None:
        super().__init__()
        self.inner, self.form = network(), form

    def forward(self, inputs: Tensor) -> object:
        return self.form(self.inner(inputs))


OTHER_FORMS: dict[str, tuple[Callable[[Tensor], object], str]] = {
    "tuple": (lambda scores: (scores, scores), "got tuple for 5 inputs"),
    "dict": (lambda scores: {"logits": scores}, "got dict for 5 inputs"),
    "no axis of classes": (lambda scores: scores[:, 0], "got shape (5,) for 5 inputs"),
    "one row": (lambda scores: scores.mean(0, keepdim=True), "got shape (1, 4) for 5 inputs"),
}


@pytest.mark.parametrize(("form", "message"), OTHER_FORMS.values(), ids=OTHER_FORMS.keys())
def test_a_model_that_returns_something_else_is_one_sentence(form: Callable[[Tensor], object], message: str) -> None:
    with pytest.raises(DataError, match="the model must return one tensor") as caught:
        observe(private(), Returning(form), F.cross_entropy)
    assert message in str(caught.value)


def test_a_network_of_one_output_is_told_to_give_one_per_class() -> None:
    with pytest.raises(DataError, match="one output per class"):
        observe(private(), Returning(lambda scores: scores[:, :1]), F.cross_entropy)


LOSSES: dict[str, tuple[Callable[..., Any], str]] = {
    "one per sample": (lambda outputs, labels: F.cross_entropy(outputs, labels, reduction="none"), "got shape (5,)"),
    "a float": (lambda outputs, labels: F.cross_entropy(outputs, labels).item(), "got float"),
}


@pytest.mark.parametrize(("loss", "message"), LOSSES.values(), ids=LOSSES.keys())
def test_a_loss_that_is_not_one_number_is_one_sentence(loss: Callable[..., Any], message: str) -> None:
    with pytest.raises(UnsupportedModelError, match="the loss must return a tensor of one number") as caught:
        observe(private(), network(), loss)
    assert message in str(caught.value)


def test_a_right_batch_passes() -> None:
    check(private())
    check(replace(private(), labels=torch.ones(VICTIMS, SIZE, CLASSES), sensitive=torch.ones(VICTIMS, SIZE)))
    check(Batch(torch.tensor([0.0, 1.0]).view(1, 1, 1, 1, 2), torch.zeros(1, 1, dtype=torch.long)))


def test_observing_is_the_step_without_the_evidence() -> None:
    batch, model = private(), network()
    local, defenses = LocalTraining(lr=0.1, steps=2, shares="weights"), (GaussianNoise(std=0.1),)
    client = Client(model=model, loss=F.cross_entropy, local=local, defenses=defenses)
    streams = Streams(seed=5, purpose="client")
    expected = step(batch, client, streams=streams, knowledge=Knowledge.LABELS).observation
    found = observe(batch, model, F.cross_entropy, defenses=defenses, local=local, knowledge=Knowledge.LABELS, seed=5)
    assert all(torch.equal(a, b) for a, b in zip(found.update, expected.update, strict=True))
    assert found.labels is not None
    assert torch.equal(found.labels, batch.labels)
