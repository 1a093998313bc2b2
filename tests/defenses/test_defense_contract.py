"""What every defense promises; a new defense is one new row."""

import copy
import dataclasses
import io

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from defended import VICTIMS, flat, network, one, private, protected
from torch import Tensor

from gradveil._regions import ratios_of, regions
from gradveil._serving import Granted, serve
from gradveil.attacks import DLG, attacks
from gradveil.client import Client, begin
from gradveil.data import Split
from gradveil.defenses import (
    DCS2,
    DPSGD,
    PPDL,
    SPN,
    CentralDP,
    Clipping,
    Defense,
    GaussianNoise,
    InstaHide,
    LaplacianNoise,
    LocalDP,
    Loda,
    Mixup,
    Precode,
    Pruning,
    Quantization,
    RandomPolicy,
    Sign,
    Soteria,
    TopK,
    TransformPolicy,
    UpdateDefense,
    defenses,
)
from gradveil.federated import Federation, Sighting, federate
from gradveil.streams import Streams
from gradveil.types import LocalTraining

ROWS: tuple[Defense, ...] = (
    CentralDP(norm=0.05, noise_multiplier=0.5),
    Clipping(norm=0.05),
    DCS2(steps=4, alpha=0.2),
    DCS2(steps=3, objective="release", start="noise", concealed=2, fraction=0.5, projection="margin"),
    DCS2(steps=3, objective="scaled", preset="imprint"),
    DPSGD(norm=0.3, noise_multiplier=0.7),
    GaussianNoise(std=0.1),
    InstaHide(k=3, classes=4),
    LaplacianNoise(scale=0.1),
    LocalDP(norm=0.05, noise_multiplier=0.2),
    Loda(steps=4),
    Mixup(k=2, classes=4),
    PPDL(theta=0.3, scale=0.1),
    Precode(size=5, beta=0.1),
    Pruning(fraction=0.7),
    Quantization(levels=3),
    RandomPolicy(seed=1),
    SPN(alpha2=0.3, bits=8),
    SPN(alpha2=0.3, bits=8, depth=2, width=5),
    Sign(),
    Soteria(fraction=0.5),
    TopK(top=0.2, residual=True),
    TopK(top=0.2, scope="global"),
    TransformPolicy(),
)
every_row = pytest.mark.parametrize("defense", ROWS, ids=defenses.describe)


def test_every_defense_has_a_row() -> None:
    assert {defenses.name_of(defense) for defense in ROWS} == set(defenses.names())


@every_row
def test_is_off_where_it_says_so(defense: Defense) -> None:
    if defense.off is None:
        return
    plain = protected(()).observation.update
    quiet = protected([dataclasses.replace(defense, **defense.off)]).observation.update  # type: ignore[type-var]
    if isinstance(defense, UpdateDefense):
        assert all(torch.equal(a, b) for a, b in zip(quiet, plain, strict=True))
    else:
        assert (flat(quiet) - flat(plain)).norm() <= 1e-10 * flat(plain).norm()


@every_row
def test_changes_something_where_it_is_on(defense: Defense) -> None:
    seen = protected([defense]).observation
    plain = protected(()).observation
    assert seen.names != plain.names or not torch.allclose(flat(seen.update), flat(plain.update), rtol=1e-3)


@every_row
def test_shares_what_the_server_asked_for(defense: Defense) -> None:
    seen = protected([defense]).observation
    sent = [(name, p.shape) for name, p in seen.model.named_parameters() if p.requires_grad]
    assert [(name, t.shape[1:]) for name, t in zip(seen.names, seen.update, strict=True)] == sent
    assert all(len(tensor) == VICTIMS and tensor.dtype == torch.float64 for tensor in seen.update)
    assert not any(tensor.requires_grad for tensor in seen.update)
    assert seen.num_classes == 4


@every_row
def test_repeats_its_bits_from_the_same_seed(defense: Defense) -> None:
    first, second = (protected([defense], seed=5) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first.observation.update, second.observation.update, strict=True))
    assert all(torch.equal(first.kept[name], second.kept[name]) for name in {*first.kept, *second.kept})


@every_row
def test_a_stack_gives_what_each_victim_alone_gives(defense: Defense) -> None:
    streams = Streams(seed=2, purpose="client").bind(VICTIMS)
    together = flat(protected([defense], streams=streams).observation.update)
    for victim in (0, VICTIMS - 1):
        alone = protected([defense], batch=one(private(), victim), streams=streams.select([victim]))
        torch.testing.assert_close(flat(alone.observation.update)[0], together[victim], rtol=1e-7, atol=1e-9)


@every_row
def test_leaves_everything_given_alone(defense: Defense) -> None:
    model, batch = network(), private()
    before, pixels, labels = copy.deepcopy(model.state_dict()), batch.inputs.clone(), batch.labels.clone()
    modules, mode = list(model.named_modules()), model.training
    states = torch.get_rng_state(), np.random.get_state()[1].tolist()  # type: ignore[index]  # noqa: NPY002
    protected([defense], model=model, batch=batch)
    assert torch.equal(torch.get_rng_state(), states[0])
    assert np.random.get_state()[1].tolist() == states[1]  # type: ignore[index]  # noqa: NPY002
    assert torch.equal(batch.inputs, pixels)
    assert torch.equal(batch.labels, labels)
    assert list(model.named_modules()) == modules
    assert model.training == mode
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


@every_row
def test_an_update_defense_leaves_the_update_alone(defense: Defense) -> None:
    if not isinstance(defense, UpdateDefense):
        return
    update = protected(()).observation.update
    before = [tensor.clone() for tensor in update]
    streams = Streams(purpose="client").bind(VICTIMS)
    first = defense.share(update, kept={}, streams=streams)
    defense.share(update, kept=first.kept, streams=streams)
    assert all(torch.equal(a, b) for a, b in zip(update, before, strict=True))
    masks = defense.visible(first.update)
    assert all(m.shape == t.shape and m.dtype == torch.bool for m, t in zip(masks, update, strict=True))


@every_row
def test_rebuilds_from_its_fields(defense: Defense) -> None:
    assert defenses.build(defenses.describe(defense)) == defense
    if defense.off is not None:
        quiet = dataclasses.replace(defense, **defense.off)  # type: ignore[type-var]
        assert defenses.build(defenses.describe(quiet)) == quiet


@every_row
def test_names_its_adversary(defense: Defense) -> None:
    assert defense.adversary.reason
    assert defense.adversary.attack in {"", *attacks.names()}


@every_row
def test_has_a_card(defense: Defense) -> None:
    for text in dataclasses.astuple(defense.card):
        assert text
        assert text == text.strip()


@every_row
def test_private_state_is_absent_from_the_observation(defense: Defense) -> None:
    taken = protected([defense])
    written = io.BytesIO()
    torch.save(taken.observation, written)
    content = written.getvalue()
    assert _bytes(taken.observation.update[0][0]) in content  # the search can find something
    rows = [tensor[victim] for tensor in taken.kept.values() for victim in range(VICTIMS)]
    assert not any(_bytes(row) in content for row in rows if row.numel() > 3 and bool(row.any()))


@every_row
def test_trains_for_several_steps_and_rounds(defense: Defense) -> None:
    local = LocalTraining(lr=0.1, momentum=0.5, steps=2, shares="difference")
    first = protected([defense], local=local)
    second = protected([defense], local=local, kept=first.kept, seed=1)
    assert second.kept.keys() == first.kept.keys()
    for seen in (first.observation, second.observation):
        assert bool(torch.isfinite(flat(seen.update)).all())
        assert not [name for name in seen.buffers_after or {} if name in first.kept or "noise" in name]


@every_row
def test_a_federated_client_shares_what_an_audited_one_does(defense: Defense) -> None:
    if isinstance(defense, CentralDP):
        return  # its noise is the server's, which sees clipped updates; tests of the simulation hold it
    batch, seen = private(), list[Sighting]()
    images = (batch.inputs * 255).round().to(torch.uint8)
    clients = [Split(own, labels) for own, labels in zip(images, batch.labels, strict=True)]
    settings = Federation(algorithm="fedsgd", rounds=1, batch_size=None, mode="eval", seed=4)
    federate(network(), clients, settings=settings, defenses=[defense], watch=seen.append)
    streams = Streams(seed=4, purpose="client").bind(VICTIMS)
    kept = begin(Client(model=network(), loss=F.cross_entropy, defenses=(defense,)), streams=streams)
    audited = protected([defense], streams=streams.fork("round-1"), kept=kept).observation
    assert [sighting.clients for sighting in seen] == [(victim,) for victim in range(VICTIMS)]
    for victim, sighting in enumerate(seen):
        for theirs, ours in zip(sighting.observation.update, audited.update, strict=True):
            torch.testing.assert_close(theirs[0], ours[victim], rtol=1e-7, atol=1e-9)


@every_row
def test_what_it_does_to_every_layer_is_placed_in_a_region(defense: Defense) -> None:
    client = Client(model=network(), loss=F.cross_entropy, defenses=(defense,))
    found = regions(ratios_of(serve(private(), client, DLG(), granted=Granted(), seed=0)))
    assert found.keys() == {"0", "3", "5"}
    assert set(found.values()) <= {"green", "white", "red"}


def _bytes(tensor: Tensor) -> bytes:
    return tensor.contiguous().numpy().tobytes()
