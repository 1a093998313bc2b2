import copy

import torch
import torch.nn.functional as F
from networks import BY_NAME, CLASSES, SHAPE, build
from slow_gradients import one_at_a_time, relative_error
from torch import Tensor

from gradveil.client import Client, step
from gradveil.engine import matching
from gradveil.engine.matching import memory_order
from gradveil.streams import Streams
from gradveil.types import Batch, LossFn, Observation


def observe(name: str = "residual block", *, loss: LossFn = F.cross_entropy, soft: bool = False) -> Observation:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.rand(3, 2, *SHAPE, generator=generator, dtype=torch.float64)
    labels = torch.randint(CLASSES, (3, 2), generator=generator)
    given = F.one_hot(labels, CLASSES).double() if soft else labels
    client = Client(model=build(BY_NAME[name]), loss=loss)
    return step(Batch(inputs, given), client, streams=Streams(seed=0, purpose="client")).observation


def trial() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(5)
    inputs = torch.rand(3, 2, *SHAPE, generator=generator, dtype=torch.float64)
    return inputs, torch.randint(CLASSES, (3, 2), generator=generator)


def test_compares_the_trial_with_what_was_observed() -> None:
    for name in ("residual block", "multi-head attention"):
        observation, (inputs, labels) = observe(name), trial()
        match = matching(observation, precision="float32")
        expected = one_at_a_time(observation.model, inputs, labels, mode="eval").gradients
        assert relative_error(match.gradients(inputs, labels), expected) <= 1e-10
        assert all(torch.equal(t, u) for t, u in zip(match.target, observation.update, strict=True))


def test_the_target_lies_in_memory_as_the_trial_does() -> None:
    match, (inputs, labels) = matching(observe()), trial()
    found = match.gradients(inputs, labels)
    assert [memory_order(t) for t in match.target] == [memory_order(g) for g in found]


def test_memory_order_follows_the_strides() -> None:
    tensor = torch.zeros(2, 3, 4, 5)
    assert memory_order(tensor) == [1, 2, 3]
    assert memory_order(tensor.permute(0, 3, 1, 2)) == [2, 3, 1]


def test_takes_victims_with_weights_of_their_own() -> None:
    observation, (inputs, labels) = observe("linear layers"), trial()
    models = [copy.deepcopy(observation.model) for _ in range(3)]
    for number, model in enumerate(models):
        model[1].bias.data += number  # type: ignore[index]
    stacked = {"1.bias": torch.stack([model[1].bias.detach() for model in models])}  # type: ignore[index]
    own = Observation(
        model=observation.model,
        mode="eval",
        names=observation.names,
        update=observation.update,
        loss=F.cross_entropy,
        input_shape=(2, *SHAPE),
        num_classes=CLASSES,
        parameters=stacked,
    )
    expected = one_at_a_time(models, inputs, labels, mode="eval").gradients
    assert relative_error(matching(own).gradients(inputs, labels), expected) <= 1e-10


def test_takes_a_loss_for_soft_labels_alone() -> None:
    def soft_loss(outputs: Tensor, labels: Tensor) -> Tensor:
        return -(labels * outputs.log_softmax(-1)).sum(-1).mean()

    observation, (inputs, labels) = observe(loss=soft_loss, soft=True), trial()
    match = matching(observation)
    expected = one_at_a_time(observation.model, inputs, labels, mode="eval").gradients
    assert relative_error(match.gradients(inputs, F.one_hot(labels, CLASSES).double()), expected) <= 1e-10
