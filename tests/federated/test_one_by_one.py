"""A model that cannot be mapped over a stack trains client by client, with the result of the stack."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from test_simulation import SMALL, run
from tiny_federation import network, normed, weights
from torch import Tensor, nn

from gradveil.client import Client, observe, step
from gradveil.defenses import DCS2, DPSGD, SPN, Defense, Precode, Soteria
from gradveil.engine import Runtime, gradient_function
from gradveil.engine.looped import looped_function
from gradveil.errors import UnsupportedModelError
from gradveil.federated.settings import Federation
from gradveil.streams import Streams
from gradveil.types import Batch, LocalTraining


class Branching(nn.Sequential):
    """Looks at a number before it goes on, which no map over victims can follow."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - the name torch gives it
        shift = 0.0 if float(input.detach().abs().sum()) >= 0 else 1.0
        outputs: Tensor = super().forward(input) + shift  # type: ignore[no-untyped-call]
        return outputs


def branching(model: nn.Module) -> nn.Module:
    return Branching(*model.children())


def batch(victims: int = 3) -> Batch:
    streams = Streams(seed=4, purpose="test").bind(victims)
    return Batch(streams.uniform("inputs", (6, 1, 4, 4)).double(), streams.integers("labels", 3, (6,)))


def relative(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


def flat(tensors: Any) -> Tensor:
    return torch.cat([tensor.detach().flatten() for tensor in tensors])


@pytest.mark.parametrize("mode", ["eval", "train"])
def test_the_loop_gives_gradients_losses_outputs_and_statistics_of_the_stack(mode: Any) -> None:
    model, data = normed(), batch()
    parameters = {"4.weight": Streams(seed=1).bind(3).normal("w", model.get_parameter("4.weight").shape).double()}
    buffers = {"1.running_mean": Streams(seed=2).bind(3).normal("m", (2,)).double()}
    names = tuple(name for name, _ in model.named_parameters())
    given: dict[str, Any] = {"names": names, "mode": mode, "parameters": parameters, "buffers": buffers}
    mapped = gradient_function(model, F.cross_entropy, precision="float32", **given)(data.inputs, data.labels)
    looped = looped_function(model, F.cross_entropy, precision="float32", **given)(data.inputs, data.labels)
    assert relative(flat(looped.gradients), flat(mapped.gradients)) < 1e-10
    assert relative(looped.losses, mapped.losses) < 1e-10
    assert relative(looped.outputs, mapped.outputs) < 1e-10
    assert looped.buffers.keys() == mapped.buffers.keys()
    assert all(relative(tensor, mapped.buffers[name]) < 1e-10 for name, tensor in looped.buffers.items())
    assert bool(looped.buffers) == (mode == "train")


def test_the_loop_can_be_differentiated_by_its_inputs() -> None:
    model, data = network(), batch()
    names = tuple(name for name, _ in model.named_parameters())
    slopes = []
    for make in (gradient_function, looped_function):
        inputs = data.inputs.clone().requires_grad_()
        found = make(model, F.cross_entropy, names=names, precision="float32")(inputs, data.labels)
        slopes.append(torch.autograd.grad(sum(g.square().sum() for g in found.gradients), inputs)[0])  # type: ignore[arg-type]
    assert relative(slopes[1], slopes[0]) < 1e-10


DEFENSES: dict[str, tuple[Defense, ...]] = {
    "none": (),
    "dp-sgd": (DPSGD(noise_multiplier=0.1),),
    "private head": (SPN(bits=4),),
    "server module": (Precode(size=4),),
    "concealed": (DCS2(steps=2),),
}


@pytest.mark.parametrize("algorithm", ["fedavg", "fedsgd"])
@pytest.mark.parametrize("name", DEFENSES)
def test_a_federation_of_a_branching_model_gives_the_weights_of_the_stack(name: str, algorithm: Any) -> None:
    settings = Federation(
        algorithm=algorithm, rounds=2, batch_size=4, mode="eval", local=LocalTraining(lr=0.3, momentum=0.5)
    )
    stack, alone = (run(settings, model=m, defenses=DEFENSES[name]) for m in (network(), branching(network())))
    assert relative(weights(alone.model), weights(stack.model)) < 1e-10


def test_batch_norm_in_train_mode_moves_as_in_the_stack() -> None:
    stack, alone = (run(SMALL, model=model) for model in (normed(), branching(normed())))
    for name, tensor in alone.model.state_dict().items():
        assert torch.allclose(tensor, stack.model.state_dict()[name], atol=1e-10, rtol=1e-10), name


def test_an_audited_client_with_a_branching_model_shares_the_update_of_the_stack() -> None:
    local = LocalTraining(lr=0.1, steps=3, local_batch_size=2, shuffled=True, optimizer="adam", shares="difference")
    for training in (None, local):
        seen = [observe(batch(), m, F.cross_entropy, local=training) for m in (network(), branching(network()))]
        assert relative(flat(seen[1].update), flat(seen[0].update)) < 1e-10


def dropping() -> nn.Module:
    return nn.Sequential(*network().children(), nn.Dropout(0.5))


def test_random_layers_draw_from_each_clients_own_seed() -> None:
    before = torch.get_rng_state()
    client = Client(model=dropping(), loss=F.cross_entropy, mode="train")
    data = batch()
    all_of_them = step(data, client, streams=Streams(seed=3, purpose="client").bind(3))
    assert torch.equal(torch.get_rng_state(), before)
    for victim in range(3):
        keys = Streams(seed=3, purpose="client").bind(3).select([victim])
        alone = step(data.select([victim]), client, streams=keys, runtime=Runtime(precision="float32"))
        assert torch.equal(flat(alone.observation.update), flat(all_of_them.observation.select([victim]).update))
    other = step(data, client, streams=Streams(seed=8, purpose="client").bind(3))
    assert not torch.equal(flat(other.observation.update), flat(all_of_them.observation.update))


def test_a_model_that_nobody_can_differentiate_is_refused_in_one_sentence() -> None:
    class Rounded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(16, 3)

        def forward(self, inputs: Tensor) -> Tensor:
            with torch.no_grad():
                outputs: Tensor = self.layer(inputs.flatten(1))
            return outputs + float(inputs.detach().sum())

    with pytest.raises(UnsupportedModelError, match=r"cannot be differentiated \(.*does not require grad"):
        observe(batch(), Rounded().double(), F.cross_entropy)


def test_a_defense_that_refuses_a_network_still_says_why() -> None:
    with pytest.raises(UnsupportedModelError, match=r"dp-sgd needs the gradient of each sample alone"):
        run(SMALL, model=branching(normed()), defenses=(DPSGD(),))
    frozen = network()
    frozen.get_parameter("3.weight").requires_grad_(False)
    with pytest.raises(UnsupportedModelError, match="soteria prunes"):
        run(SMALL, model=frozen, defenses=(Soteria(),))
