import copy
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from tiny_clients import (
    CLASSES,
    EVERYTHING,
    SIZE,
    STREAMS,
    VICTIMS,
    Headed,
    Mirror,
    Negate,
    PoolPatch,
    Scaled,
    SecretBias,
    SecretShift,
    ServerScale,
    Twice,
    assert_equal,
    autograd,
    network,
    private,
    taken,
)

from gradveil.client import Client
from gradveil.defenses import (
    GaussianNoise,
)
from gradveil.engine import Runtime
from gradveil.errors import SpecError
from gradveil.types import Batch, Knowledge, LocalTraining


def test_a_data_defense_changes_what_the_model_sees() -> None:
    model, batch = network(), private()
    found = taken(batch, model=model, defenses=(Mirror(),), knowledge=Knowledge.LABELS)
    seen = Batch(torch.cat([batch.inputs.flip(-1), 1 - batch.inputs], 1), torch.cat([batch.labels, batch.labels], 1))
    for victim in range(VICTIMS):
        assert_equal([tensor[victim] for tensor in found.observation.update], autograd(model, seen, victim))
    assert torch.equal(found.evidence.protected.inputs, seen.inputs)
    assert found.evidence.batch is batch
    assert found.observation.input_shape == (2 * SIZE, 2, 4, 4)
    assert found.observation.labels is not None
    assert torch.equal(found.observation.labels, seen.labels)


def test_a_data_defense_draws_from_the_pool() -> None:
    pool = torch.full((2, 2, 4, 4), 0.25, dtype=torch.float64)
    found = taken(defenses=(PoolPatch(),), pool=pool)
    assert bool((found.evidence.protected.inputs == 0.25).all())


def test_a_model_defense_of_the_server_is_seen_by_the_adversary() -> None:
    model, batch = network(), private()
    seen = taken(batch, model=model, defenses=(ServerScale(),)).observation
    assert isinstance(seen.model, Scaled)
    assert "scale" in seen.names
    for victim in range(VICTIMS):
        assert_equal([tensor[victim] for tensor in seen.update], autograd(Scaled(model), batch, victim))


def test_a_model_defense_of_the_client_stays_with_the_client() -> None:
    model, batch = network(), private()
    seen = taken(batch, model=model, defenses=(SecretShift(),)).observation
    assert seen.model is model
    assert seen.loss is F.cross_entropy
    for victim in range(VICTIMS):
        expected = [3 * gradient for gradient in autograd(SecretShift().wrap(model), batch, victim)]
        assert_equal([tensor[victim] for tensor in seen.update], expected)


def test_private_tensors_differ_between_clients_and_never_leave() -> None:
    model, batch = network(), private()
    found = taken(batch, model=model, defenses=(SecretBias(),), knowledge=EVERYTHING)
    secrets = STREAMS.bind(VICTIMS).normal("secret", (CLASSES,)).double()
    assert "secret" not in found.observation.names
    assert found.observation.parameters is None
    assert found.observation.model is model
    for victim in range(VICTIMS):
        own = Headed(copy.deepcopy(model))
        with torch.no_grad():
            own.secret.copy_(secrets[victim])
        expected = dict(zip(dict(own.named_parameters()), autograd(own, batch, victim), strict=True))
        del expected["secret"]
        assert_equal([tensor[victim] for tensor in found.observation.update], list(expected.values()))


def test_a_step_defense_computes_the_gradient_and_names_what_was_seen() -> None:
    model, batch = network(), private()
    found = taken(batch, model=model, defenses=(Twice(),))
    first = Batch(batch.inputs[:, :1], batch.labels[:, :1])
    for victim in range(VICTIMS):
        expected = [2 * gradient for gradient in autograd(model, first, victim)]
        assert_equal([tensor[victim] for tensor in found.observation.update], expected)
    assert torch.equal(found.evidence.protected.inputs, first.inputs)
    assert found.observation.input_shape[0] == 1


def test_a_step_defense_is_told_which_samples_are_sensitive() -> None:
    batch = replace(private(), sensitive=torch.zeros(VICTIMS, SIZE, dtype=torch.bool))
    found = taken(batch, defenses=(Twice(),), runtime=Runtime(precision="float32", chunk=2))
    assert bool((found.evidence.protected.inputs == 0).all())


def test_an_update_defense_acts_last_and_the_evidence_keeps_both() -> None:
    plain = taken(defenses=(Mirror(), Twice()))
    found = taken(defenses=(Negate(), Twice(), Mirror()))
    assert_equal(found.observation.update, [-tensor for tensor in plain.observation.update])
    assert_equal(found.evidence.clean, plain.observation.update)
    assert found.evidence.update is found.observation.update


def test_update_defenses_act_in_their_order() -> None:
    noisy = taken(defenses=(GaussianNoise(std=1.0), Negate())).observation.update
    later = taken(defenses=(Negate(), GaussianNoise(std=1.0))).observation.update
    clean = taken().observation.update
    noise = [b - a for b, a in zip(later, (-tensor for tensor in clean), strict=True)]
    assert_equal(noisy, [-c - n for c, n in zip(clean, noise, strict=True)])


def test_an_update_defense_acts_on_what_local_training_shares() -> None:
    local = LocalTraining(lr=0.1, steps=3, shares="difference")
    plain, negated = taken(local=local).observation, taken(local=local, defenses=(Negate(),)).observation
    assert_equal(negated.update, [-tensor for tensor in plain.update])


def test_one_step_is_computed_in_one_way() -> None:
    with pytest.raises(SpecError, match="one step can be computed in one way only, got Twice, Twice"):
        Client(model=network(), loss=F.cross_entropy, defenses=(Twice(), Twice()))
