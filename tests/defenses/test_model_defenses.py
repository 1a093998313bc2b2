"""PRECODE and the secret polarization network against plain autograd."""

import copy
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from defended import CLASSES, SIZE, VICTIMS, flat, loop_gradient, network, private, protected
from safetensors.torch import load, save
from torch import Tensor, nn

from gradveil import data
from gradveil._networks import prepare
from gradveil.attacks import InvertingGradients
from gradveil.client import Client, client_model
from gradveil.data import Split
from gradveil.defenses import SPN, Defense, Precode, polarization_cosines
from gradveil.engine import normalized
from gradveil.federated import Federation, federate
from gradveil.grid import Settings
from gradveil.models.training import Training
from gradveil.spec import AuditSpec
from gradveil.storage import TensorFolder
from gradveil.streams import Streams
from gradveil.types import LocalTraining

BOTTLENECK = Precode(size=5, beta=0.1)
SECRET = SPN(alpha2=0.3, bits=8, margin=1.5)


class Branching(nn.Module):
    """A network that is no chain of layers, with a linear layer inside a block."""

    def __init__(self) -> None:
        super().__init__()
        self.chain = network()
        self.block = nn.ModuleDict({"last": nn.Linear(CLASSES, CLASSES)}).double()

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.block["last"](torch.tanh(self.chain(inputs)))
        return outputs


def noise(victim: int, size: int = 5) -> Tensor:
    drawn = Streams(seed=0, purpose="client").bind(VICTIMS).normal("precode", (SIZE, size))
    return drawn[victim].double()


def test_precode_shares_the_gradient_of_a_random_bottleneck() -> None:
    seen, batch = protected([BOTTLENECK]).observation, private()
    assert seen.names == tuple(name for name, _ in seen.model.named_parameters())
    assert [name for name in seen.names if "precode" in name] == [
        f"precode.{part}.{kind}" for part in ("encoder", "decoder") for kind in ("weight", "bias")
    ]
    model = seen.model
    for victim in range(VICTIMS):
        features = model[:5](batch.inputs[victim])  # type: ignore[index]
        mean, spread = model.precode.encoder(features).split(5, 1)  # type: ignore[union-attr, operator]
        spread = torch.log1p(spread.exp())
        logits = model[-1](model.precode.decoder(mean + spread * noise(victim)))  # type: ignore[union-attr, index, operator]
        divergence = -0.5 * (1 + 2 * spread.log() - mean**2 - spread**2).sum(1).mean() / math.log(2)
        loss = F.cross_entropy(logits, batch.labels[victim]) + 0.1 * divergence
        expected = torch.autograd.grad(loss, list(model.parameters()))
        for tensor, gradient in zip(seen.update, expected, strict=True):
            torch.testing.assert_close(tensor[victim], gradient)


def test_precode_sends_a_network_of_plain_logits_that_adversaries_can_use() -> None:
    seen = protected([BOTTLENECK]).observation
    assert seen.model(private().inputs[0]).shape == (SIZE, CLASSES)
    guess = InvertingGradients(steps=2)(seen, streams=Streams(seed=0))
    assert bool(torch.isfinite(guess.inputs).all())
    assert BOTTLENECK.wrap(seen.model) is seen.model


@pytest.mark.parametrize("defense", [BOTTLENECK, SECRET], ids=["precode", "spn"])
def test_works_in_networks_that_are_no_chain_and_standardize(defense: Defense) -> None:
    model = normalized(Branching(), [0.4], [0.3])
    seen = protected([defense], model=model).observation
    client = Client(model=model, loss=F.cross_entropy, defenses=(defense,))
    trained = copy.deepcopy(client_model(client))
    assert [name for name in seen.names if "precode" not in name] == [name for name, _ in model.named_parameters()]
    outputs = trained(private().inputs[0])
    assert torch.equal(outputs.argmax(1), outputs[:, :CLASSES].argmax(1))
    if isinstance(defense, SPN):
        torch.testing.assert_close(outputs[:, :CLASSES], model(private().inputs[0]))


def test_noise_is_fresh_in_every_step_and_stays_with_the_client() -> None:
    local = LocalTraining(lr=0.1, steps=2, shares="difference")
    taken = protected([BOTTLENECK], local=local)
    assert taken.kept == {}
    assert not taken.observation.buffers_after
    assert not torch.equal(
        flat(taken.observation.update), flat(protected([BOTTLENECK], local=local, seed=1).observation.update)
    )


@pytest.mark.parametrize("soft", [False, True], ids=["classes", "soft labels"])
def test_spn_shares_the_gradient_of_both_losses(soft: bool) -> None:
    batch, model = private(), network()
    labels = (
        F.one_hot(batch.labels, CLASSES).double().lerp(torch.full((), 0.25).double(), 0.2) if soft else batch.labels
    )
    batch = type(batch)(batch.inputs, labels)
    local = LocalTraining(lr=0.7)
    first = SECRET.start(model, streams=Streams(seed=0, purpose="client").bind(VICTIMS))
    taken = protected([SECRET], batch=batch, local=local)
    codes = first["5.spn.codes"]
    assert set(codes.unique().tolist()) == {-1.0, 1.0}
    for victim in range(VICTIMS):
        weight = first["5.spn.layers.0.weight"][victim].clone().requires_grad_()
        bits = F.linear(model[:5](batch.inputs[victim]), weight, first["5.spn.layers.0.bias"][victim])
        share = labels[victim] if soft else F.one_hot(labels[victim], CLASSES).double()
        polarization = torch.zeros((), dtype=torch.float64)
        for sample in range(SIZE):
            for label in range(CLASSES):
                hinge = (1.5 - bits[sample] * codes[victim, label]).clamp_min(0).sum()
                polarization = polarization + share[sample, label] * hinge / SIZE
        loss = F.cross_entropy(model(batch.inputs[victim]), labels[victim]) + 0.3 * polarization
        expected = torch.autograd.grad(loss, [*model.parameters(), weight])
        for tensor, gradient in zip(taken.observation.update, expected[:-1], strict=True):
            torch.testing.assert_close(tensor[victim], gradient)
        moved = taken.kept["model/5.spn.layers.0.weight"][victim]
        torch.testing.assert_close(moved, weight.detach() - 0.7 * expected[-1])


def test_codes_and_heads_belong_to_one_client_and_survive_its_restart() -> None:
    first = protected([SECRET])
    codes, head = first.kept["model/5.spn.codes"], first.kept["model/5.spn.layers.0.weight"]
    assert not torch.equal(codes[0], codes[1])
    assert not torch.equal(head[0], head[1])
    restarted = load(save({name: tensor.contiguous() for name, tensor in first.kept.items()}))
    second, again = (protected([SECRET], kept=kept, seed=1) for kept in (first.kept, restarted))
    assert torch.equal(second.kept["model/5.spn.codes"], codes)
    assert torch.equal(flat(second.observation.update), flat(again.observation.update))
    assert not torch.equal(flat(second.observation.update), flat(protected([SECRET], seed=1).observation.update))


def test_spn_does_not_perturb_the_public_head() -> None:
    seen, batch = protected([SECRET]).observation, private()
    for victim in range(VICTIMS):
        expected = loop_gradient(network(), batch.inputs[victim], batch.labels[victim])
        torch.testing.assert_close(seen.update[-1][victim], expected[-1])
        assert not torch.allclose(seen.update[0][victim], expected[0], rtol=1e-2)


def test_both_can_be_combined_in_either_order() -> None:
    one, other = (protected(pair).observation for pair in ((BOTTLENECK, SECRET), (SECRET, BOTTLENECK)))
    assert one.names == other.names
    torch.testing.assert_close(flat(one.update), flat(other.update))
    quiet = protected((BOTTLENECK, SPN(alpha2=0.0, bits=8))).observation
    torch.testing.assert_close(flat(quiet.update), flat(protected([BOTTLENECK]).observation.update))


def test_an_audit_of_a_network_trained_with_precode_loads_its_trained_bottleneck(tmp_path: Path) -> None:
    spec = AuditSpec(
        models=("mlp:hidden=8",),
        states=("trained-with-defense",),
        defenses=("precode:size=4",),
        training=Training(epochs=1, batch_size=256, lr=0.1),
    )
    cell, digits = spec.cells()[0], data.load("digits")
    first, again = (prepare(spec, cell, digits, folder=tmp_path, settings=Settings()).model for _ in range(2))
    (name,) = (name for name in first.state_dict() if name.endswith("precode.encoder.weight"))
    plain = prepare(spec, replace(cell, state="untrained"), digits, folder=tmp_path, settings=Settings()).model
    assert not torch.equal(first.get_parameter(name), Precode(size=4).wrap(plain).get_parameter(name))
    assert torch.equal(first.get_parameter(name), again.get_parameter(name))
    (file,) = (tmp_path / "models").glob("*.safetensors")
    loaded = replace(cell, state=f"checkpoint:{file}")
    own = prepare(spec, loaded, digits, folder=tmp_path, settings=Settings()).model
    assert torch.equal(own.get_parameter(name), first.get_parameter(name))


def test_per_layer_cosines_are_those_of_the_two_losses() -> None:
    batch, model, streams = private(), network(), Streams(seed=0, purpose="client").bind(VICTIMS)
    found = polarization_cosines(SECRET, model, batch, streams=streams)
    assert list(found) == ["0.weight", "0.bias", "3.weight", "3.bias"]
    first = SECRET.start(model, streams=streams)
    for victim in range(VICTIMS):
        bits = F.linear(
            model[:5](batch.inputs[victim]),
            first["5.spn.layers.0.weight"][victim],
            first["5.spn.layers.0.bias"][victim],
        )
        polarization = (1.5 - bits * first["5.spn.codes"][victim][batch.labels[victim]]).clamp_min(0).sum(1).mean()
        secret = torch.autograd.grad(polarization, list(model.parameters())[:-2])
        plain = loop_gradient(model, batch.inputs[victim], batch.labels[victim])
        for cosines, a, b in zip(found.values(), secret, plain, strict=False):
            torch.testing.assert_close(cosines[victim], F.cosine_similarity(a.flatten(), b.flatten(), dim=0))
    kept = polarization_cosines(SPN(alpha2=0.7, bits=8, margin=1.5), model, batch, streams=streams, private=first)
    assert all(torch.equal(kept[name], cosines) for name, cosines in found.items())


def test_heads_and_codes_survive_the_rounds_and_a_restart_of_a_federation(tmp_path: Path) -> None:
    def kept(folder: Path) -> dict[str, Tensor]:
        saved = TensorFolder(folder).load("federation") or {}
        return {name: tensor for name, tensor in saved.items() if name.startswith("kept/")}

    def run(folder: Path, rounds: int) -> nn.Module:
        return federate(
            network(), clients, defenses=[SECRET], settings=settings, rounds=rounds, store=TensorFolder(folder)
        ).model

    pixels = (private(victims=3).inputs * 255).round().byte()
    clients = [Split(images, labels) for images, labels in zip(pixels, private(victims=3).labels, strict=True)]
    settings = Federation(local=LocalTraining(lr=0.1))
    run(tmp_path / "cut", 1)
    first = kept(tmp_path / "cut")
    resumed, whole = run(tmp_path / "cut", 3), run(tmp_path / "whole", 3)
    last = kept(tmp_path / "whole")

    assert all(torch.equal(a, b) for a, b in zip(resumed.parameters(), whole.parameters(), strict=True))
    assert kept(tmp_path / "cut").keys() == last.keys() == first.keys()
    assert all(torch.equal(tensor, last[name]) for name, tensor in kept(tmp_path / "cut").items())
    codes = [name for name in first if name.endswith("codes")]
    assert len(codes) == 3
    assert all(torch.equal(first[name], last[name]) for name in codes)
    assert not any(torch.equal(first[name], last[name]) for name in first if name.endswith("weight"))
    assert not any(name in whole.state_dict() for name in ("5.spn.codes", "5.spn.layers.0.weight"))
    assert all(file.stat().st_mode & 0o077 == 0 for file in tmp_path.rglob("*.safetensors"))
