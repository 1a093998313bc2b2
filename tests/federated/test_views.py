"""What the adversary sees from where it stands."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from tiny_federation import network, normed, private, weights
from torch import Tensor

from gradveil.attacks import DLG
from gradveil.defenses import GaussianNoise
from gradveil.federated import Federation, Sighting, federate
from gradveil.streams import Streams
from gradveil.types import Gradients, Knowledge, LocalTraining

SETTINGS = Federation(rounds=2, batch_size=None, local=LocalTraining(lr=0.3), seed=1)


def sightings(
    settings: Federation, *, knowledge: Knowledge = Knowledge.NOTHING, sizes: tuple[int, ...] = (8, 8, 12)
) -> list[Sighting]:
    seen: list[Sighting] = []
    federate(network(), private(sizes), settings=settings, watch=seen.append, knowledge=knowledge)
    return seen


def flat(update: Gradients) -> Tensor:
    return torch.cat([tensor.flatten() for tensor in update])


def start(sighting: Sighting) -> Tensor:
    parameters = sighting.observation.parameters
    assert parameters is not None
    return torch.cat([tensor.flatten() for tensor in parameters.values()])


def test_a_server_sees_every_client_alone() -> None:
    seen = sightings(SETTINGS)
    assert [(s.round, s.clients, s.observer) for s in seen] == [
        (number, (client,), "server") for number in (1, 2) for client in range(3)
    ]
    assert [s.observation.input_shape[0] for s in seen[:3]] == [8, 8, 12]
    updates = [flat(s.observation.update) for s in seen[:3]]
    moved = start(seen[0]) - (8 * updates[0] + 8 * updates[1] + 12 * updates[2]) / 28
    assert torch.allclose(start(seen[3]), moved, atol=1e-12, rtol=0)


def test_nothing_is_seen_that_was_not_granted() -> None:
    plain, granted = (sightings(SETTINGS, knowledge=k)[0].observation for k in (Knowledge.NOTHING, Knowledge.LABELS))
    assert plain.labels is None
    assert plain.local is None
    assert granted.labels is not None
    assert granted.labels.tolist() == [private()[0].labels.tolist()]


@pytest.mark.parametrize("algorithm", ["fedavg", "fedsgd"])
def test_an_aggregate_is_the_mean_of_what_a_server_would_see(algorithm: str) -> None:
    settings = replace(SETTINGS, algorithm=algorithm)  # type: ignore[arg-type]
    alone = sightings(settings)[:3]
    (first, _) = sightings(replace(settings, view="aggregate"), knowledge=Knowledge.LABELS)
    mean = sum(share / 28 * flat(s.observation.update) for share, s in zip((8, 8, 12), alone, strict=True))
    assert isinstance(mean, Tensor)
    assert torch.allclose(flat(first.observation.update), mean, atol=1e-14, rtol=0)
    assert first.clients == (0, 1, 2)
    assert first.observation.input_shape == (28, 1, 4, 4)
    assert first.evidence.batch.inputs.shape == (1, 28, 1, 4, 4)
    assert first.evidence.protected.origin.flatten().tolist() == list(range(28))
    assert first.observation.labels is not None
    assert torch.equal(first.observation.labels, first.evidence.batch.labels)


@pytest.mark.parametrize(("sizes", "steps"), [((8, 8, 8), 2), ((4, 8, 12), None)])
def test_an_aggregate_states_the_local_training_only_where_all_clients_have_the_same(
    sizes: tuple[int, ...], steps: int | None
) -> None:
    settings = replace(SETTINGS, batch_size=4, view="aggregate")
    seen = sightings(settings, sizes=sizes, knowledge=Knowledge.LOCAL_TRAINING)[0].observation
    assert (seen.local.steps if seen.local else None) == steps
    assert (Knowledge.LOCAL_TRAINING in seen.knowledge) is (steps is not None)


def test_the_next_participant_sees_the_difference_of_successive_models() -> None:
    seen = sightings(replace(SETTINGS, algorithm="round-robin"))
    assert [s.observer for s in seen[:3]] == ["client 1", "client 2", "client 0"]
    for before, after in pairwise(seen):
        assert torch.allclose(flat(before.observation.update), start(before) - start(after), atol=1e-14, rtol=0)


def test_a_neighbour_in_a_complete_graph_knows_where_a_client_began() -> None:
    seen = sightings(replace(SETTINGS, algorithm="decentralized", graph="complete"))
    assert all(s.exact for s in seen)
    assert len(seen) == 2 * 3 * 2
    for sighting in seen:
        assert torch.allclose(flat(sighting.observation.update), flat(sighting.evidence.update), atol=1e-14, rtol=0)


def test_a_neighbour_in_a_ring_must_guess_after_the_first_round() -> None:
    seen = sightings(replace(SETTINGS, algorithm="decentralized", graph="ring"), sizes=(8, 8, 8, 8))
    for sighting in seen:
        right = torch.allclose(flat(sighting.observation.update), flat(sighting.evidence.update), atol=1e-14, rtol=0)
        assert sighting.exact is (sighting.round == 1) is right
    # Whatever they guess, both neighbours of a client were sent the same model.
    for number, client in {(s.round, s.clients) for s in seen}:
        first, second = (
            start(s) - flat(s.observation.update) for s in seen if (s.round, s.clients) == (number, client)
        )
        assert torch.allclose(first, second, atol=1e-14, rtol=0)


def test_a_neighbour_guesses_from_the_models_that_it_was_sent() -> None:
    """In the path 0-1-2 client 0 gets the models of 0 and 1, of those three that went into client 1's model."""
    settings = replace(SETTINGS, algorithm="decentralized", graph="0-1+1-2")
    seen = sightings(settings)
    first = {s.clients[0]: start(s) - flat(s.observation.update) for s in seen if s.round == 1}
    (later,) = [s for s in seen if s.round == 2 and s.clients == (1,) and s.observer == "client 0"]
    assert not later.exact
    assert torch.allclose(start(later), (first[0] + first[1]) / 2, atol=1e-14, rtol=0)


def test_watching_changes_nothing() -> None:
    seen: list[Sighting] = []
    settings = replace(SETTINGS, algorithm="decentralized")
    watched = federate(network(), private(), settings=settings, watch=seen.append)
    assert torch.equal(weights(watched.model), weights(federate(network(), private(), settings=settings).model))
    assert seen


def test_noise_is_seen_and_the_clean_update_is_evidence() -> None:
    seen: list[Sighting] = []
    federate(network(), private(), settings=SETTINGS, defenses=[GaussianNoise(std=0.1)], watch=seen.append)
    difference = flat(seen[0].observation.update) - flat(seen[0].evidence.clean)
    assert float(difference.std()) == pytest.approx(0.1, rel=0.3)


def test_buffers_are_seen_where_they_are_granted() -> None:
    seen: list[Sighting] = []
    federate(normed(), private(), settings=SETTINGS, watch=seen.append, knowledge=Knowledge.BUFFERS)
    assert seen[0].observation.buffers_after is not None
    assert not torch.equal(seen[0].observation.buffers_after["1.running_mean"], torch.zeros(1, 2).double())


def test_a_sighting_can_be_attacked() -> None:
    settings = replace(SETTINGS, algorithm="fedsgd", rounds=1, batch_size=1)
    (first, *_) = sightings(settings, sizes=(1, 1))
    guess = DLG(steps=2)(first.observation, streams=Streams(seed=0, purpose="attack"))
    assert guess.inputs.shape == first.evidence.batch.inputs.shape
