"""The simulated federation against literal loops in float64."""

import copy
import csv
import doctest
import io
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_federation import BrokenAtOne, SensitiveAlone, averaged, network, normed, private, trained, weights
from torch import Tensor, nn

from gradveil.defenses import DPSGD, PPDL, SPN, CentralDP, Defense, GaussianNoise, Precode, TopK
from gradveil.engine import Runtime
from gradveil.errors import DataError, SpecError
from gradveil.federated import Federation, FederationError, History, Sighting, _graph, federate, simulate
from gradveil.storage import TensorFolder
from gradveil.types import LocalTraining

FULL = Federation(rounds=3, batch_size=None, local=LocalTraining(lr=0.3))
SMALL = Federation(rounds=3, batch_size=4, local=LocalTraining(lr=0.3, momentum=0.5))


def run(settings: Federation, *, sizes: tuple[int, ...] = (8, 8, 12), **beside: Any) -> History:
    return federate(beside.pop("model", None) or network(), private(sizes), settings=settings, **beside)


def assert_equal(left: nn.Module | Tensor, right: nn.Module | Tensor, tolerance: float = 1e-12) -> None:
    first, second = (x if isinstance(x, Tensor) else weights(x) for x in (left, right))
    assert float((first - second).norm()) <= tolerance * float(second.norm())


def test_fedavg_is_the_textbook_loop() -> None:
    seen: list[Sighting] = []
    history = run(SMALL, watch=seen.append)

    model, clients = network(), private()
    for number in range(1, 4):
        models = []
        for split, sighting in zip(clients, (s for s in seen if s.round == number), strict=True):
            inputs, labels = sighting.evidence.batch.inputs[0], sighting.evidence.batch.labels[0]
            assert sorted(map(tuple, inputs.flatten(1).tolist())) == sorted(
                map(tuple, split.inputs(dtype=torch.float64).flatten(1).tolist())
            )
            batches = list(zip(inputs.split(4), labels.split(4), strict=True))
            models.append(trained(model, batches, lr=0.3, momentum=0.5))
        model.load_state_dict(averaged(models, [8, 8, 12]))
    assert_equal(history.model, model)


def test_server_learning_rate_and_local_steps_are_those_of_the_textbook() -> None:
    settings = replace(FULL, local_steps=3, server_lr=0.5)
    model = network()
    for _ in range(3):
        models = [trained(model, [(s.inputs(dtype=torch.float64), s.labels)] * 3, lr=0.3) for s in private()]
        mean, before = averaged(models, [8, 8, 12]), model.state_dict()
        model.load_state_dict({name: before[name] + 0.5 * (mean[name] - before[name]) for name in before})
    assert_equal(run(settings).model, model)


def test_fedsgd_is_fedavg_of_one_step_over_all_samples() -> None:
    assert_equal(run(replace(FULL, algorithm="fedsgd")).model, run(FULL).model)


@pytest.mark.parametrize("chunk", [None, 1])
@pytest.mark.parametrize("settings", [FULL, SMALL], ids=["one step", "several"])
def test_clients_are_told_which_of_their_samples_are_sensitive(settings: Federation, chunk: int | None) -> None:
    seen: list[Sighting] = []
    clients = [replace(s, sensitive=s.images[:, 0, 0, 0] < 128) for s in private()[:2]] + private()[2:]
    runtime = Runtime(precision="float32", chunk=chunk)
    defenses = [SensitiveAlone()]
    history = federate(network(), clients, settings=settings, defenses=defenses, runtime=runtime, watch=seen.append)

    model = network()
    for number in range(1, 4):
        models = []
        for client, sighting in enumerate(s for s in seen if s.round == number):
            inputs, labels = sighting.evidence.batch.inputs[0], sighting.evidence.batch.labels[0]
            marks = inputs[:, 0, 0, 0] < 0.5 if client < 2 else torch.ones(len(inputs))
            inputs = inputs * marks[:, None, None, None]
            size = settings.batch_size or len(inputs)
            batches = list(zip(inputs.split(size), labels.split(size), strict=True))
            models.append(trained(model, batches, lr=0.3, momentum=settings.local.momentum))
        model.load_state_dict(averaged(models, [8, 8, 12]))
    assert_equal(history.model, model)


def test_round_robin_trains_one_client_after_another() -> None:
    model = network()
    for _ in range(3):
        for split in private():
            model = trained(model, [(split.inputs(dtype=torch.float64), split.labels)], lr=0.3)
    assert_equal(run(replace(FULL, algorithm="round-robin")).model, model)


def test_a_complete_graph_of_equal_clients_is_fedavg() -> None:
    settings = replace(SMALL, algorithm="decentralized", graph="complete")
    assert_equal(run(settings, sizes=(8, 8, 8)).model, run(SMALL, sizes=(8, 8, 8)).model)


def test_a_graph_averages_neighbours_alone() -> None:
    settings = replace(FULL, algorithm="decentralized", graph="0-1+1-2", rounds=2)
    models = [network()] * 3
    for _ in range(2):
        own = [
            trained(m, [(s.inputs(dtype=torch.float64), s.labels)], lr=0.3)
            for m, s in zip(models, private(), strict=True)
        ]
        # Metropolis: an edge to the middle client, who has two neighbours, weighs 1/3.
        shares = [[2 / 3, 1 / 3, 0], [1 / 3, 1 / 3, 1 / 3], [0, 1 / 3, 2 / 3]]
        models = [copy.deepcopy(own[0]) for _ in range(3)]
        for model, row in zip(models, shares, strict=True):
            model.load_state_dict(averaged(own, row))  # type: ignore[arg-type]
    history = run(settings)
    for client, model in enumerate(models):
        assert_equal(torch.cat([t[client].flatten() for t in history.models.values()]), model)


def test_mixing_keeps_the_mean() -> None:
    mix = _graph.mixing(_graph.neighbours("0-1+1-2+2-3+1-3", 4))
    assert torch.allclose(mix.sum(0), torch.ones(4).double())
    assert torch.allclose(mix.sum(1), torch.ones(4).double())
    assert float(mix.min()) >= 0


def clipped(model: nn.Module, norm: float) -> Tensor:
    """Return how far a client moved, at most as far as the norm."""
    moved = weights(network()) - weights(model)
    return moved * min(1.0, norm / float(moved.norm()))


@pytest.mark.parametrize("algorithm", ["fedavg", "fedsgd"])
def test_central_privacy_is_clipping_an_equal_mean_and_the_servers_noise(algorithm: Any) -> None:
    settings = replace(FULL, algorithm=algorithm, rounds=1, seed=7)
    rate = 0.3 if algorithm == "fedsgd" else 1.0
    quiet = run(settings, defenses=(CentralDP(norm=0.1, noise_multiplier=0),)).model
    models = [trained(network(), [(s.inputs(dtype=torch.float64), s.labels)], lr=0.3) for s in private()]
    norm = 0.1 * rate
    mean = torch.stack([clipped(model, norm) for model in models]).mean(0)
    assert_equal(weights(network()) - weights(quiet), mean, 1e-10)
    assert max(float((weights(network()) - weights(model)).norm()) for model in models) > norm

    noisy = run(settings, defenses=(CentralDP(norm=0.1, noise_multiplier=2.0),)).model
    noise = (weights(noisy) - weights(quiet)) / rate
    assert float(noise.std()) == pytest.approx(2.0 * 0.1 / 3, rel=0.35)
    again = run(settings, defenses=(CentralDP(norm=0.1, noise_multiplier=2.0),)).model
    assert torch.equal(weights(again), weights(noisy))


def test_under_central_privacy_the_server_sees_clipped_updates_and_others_the_noisy_mean() -> None:
    settings, defenses = replace(FULL, rounds=1), (CentralDP(norm=0.1, noise_multiplier=2.0),)
    seen: list[Sighting] = []
    after = run(settings, defenses=defenses, watch=seen.append).model
    lengths = [float(torch.cat([t.flatten() for t in one.observation.update]).norm()) for one in seen]
    assert max(lengths) == pytest.approx(0.1)
    assert len(lengths) == 3
    seen.clear()
    run(replace(settings, view="aggregate"), defenses=defenses, watch=seen.append)
    (one,) = seen
    assert_equal(torch.cat([t.flatten() for t in one.observation.update]), weights(network()) - weights(after), 1e-9)


def test_central_privacy_needs_a_server() -> None:
    for algorithm in ("round-robin", "decentralized"):
        with pytest.raises(SpecError, match="central-dp adds its noise where a server averages"):
            run(replace(FULL, algorithm=algorithm), defenses=(CentralDP(),))


DEFENSES: dict[str, tuple[Defense, ...]] = {
    "noise": (GaussianNoise(std=0.01),),
    "residual": (PPDL(theta=0.3, scale=0.01),),
    "private head": (SPN(bits=4),),
    "server module": (Precode(size=4),),
    "dp-sgd": (DPSGD(noise_multiplier=0.1),),
    "two": (TopK(top=0.5), GaussianNoise(std=0.01)),
}


@pytest.mark.parametrize("name", DEFENSES)
def test_a_stack_of_clients_gives_what_each_alone_gives(name: str) -> None:
    settings = replace(SMALL, rounds=2, fraction=0.7)
    stacked = run(settings, defenses=DEFENSES[name])
    alone = run(settings, defenses=DEFENSES[name], runtime=Runtime(precision="float32", chunk=1))
    assert_equal(alone.model, stacked.model, 1e-9)
    plain = {name: tensor for name, tensor in stacked.model.named_parameters() if name in network().state_dict()}
    reference = run(settings).model
    assert any(not torch.equal(tensor, reference.get_parameter(name)) for name, tensor in plain.items())


class KilledError(Exception):
    pass


@pytest.mark.parametrize("algorithm", ["fedavg", "fedsgd", "round-robin", "decentralized"])
def test_a_killed_federation_goes_on_to_the_same_weights(algorithm: Any, tmp_path: Path) -> None:
    settings = replace(SMALL, algorithm=algorithm, rounds=4, fraction=0.7)
    defenses = (SPN(bits=4), PPDL(theta=0.3, scale=0.01))
    whole = run(settings, defenses=defenses, test=private()[0])

    def kill(sighting: Sighting) -> None:
        if sighting.round == 3:
            raise KilledError

    store = TensorFolder(tmp_path)
    logged: list[int] = []
    with pytest.raises(KilledError):
        run(
            settings,
            defenses=defenses,
            test=private()[0],
            store=store,
            watch=kill,
            log=lambda rounds: logged.append(len(rounds)),
        )
    assert logged == [1, 2]
    counted: list[int] = []
    resumed = run(
        settings,
        defenses=defenses,
        test=private()[0],
        store=store,
        progress=lambda task, done, total: counted.append(done),
    )
    assert counted == [3, 4]
    assert torch.equal(weights(whole.model), weights(resumed.model))
    assert [replace(one, seconds=0) for one in whole.rounds] == [replace(one, seconds=0) for one in resumed.rounds]


def test_what_a_client_keeps_holds_no_memory_of_the_others() -> None:
    kept: list[Tensor] = []

    class Looking:
        def load(self, name: str) -> dict[str, Tensor] | None:
            return None

        def save(self, name: str, state: dict[str, Tensor]) -> None:
            kept.extend(tensor for key, tensor in state.items() if key.startswith("kept/"))

    run(SMALL, rounds=1, defenses=(PPDL(theta=0.3), SPN(bits=4)), store=Looking())
    assert kept
    assert all(tensor.untyped_storage().nbytes() == tensor.nbytes for tensor in kept)


def test_more_rounds_can_be_added_later(tmp_path: Path) -> None:
    run(SMALL, store=TensorFolder(tmp_path))
    longer = run(SMALL, rounds=5, store=TensorFolder(tmp_path))
    assert torch.equal(weights(longer.model), weights(run(SMALL, rounds=5).model))


def test_a_store_of_more_rounds_is_refused(tmp_path: Path) -> None:
    run(SMALL, store=TensorFolder(tmp_path))
    with pytest.raises(FederationError, match="holds 3 finished rounds, but 2 are asked for"):
        run(SMALL, rounds=2, store=TensorFolder(tmp_path))


def test_a_store_of_another_federation_is_refused(tmp_path: Path) -> None:
    run(SMALL, store=TensorFolder(tmp_path))
    with pytest.raises(FederationError, match="other settings"):
        run(replace(SMALL, server_lr=0.5), store=TensorFolder(tmp_path))


@pytest.mark.parametrize("field", ["images", "labels", "sensitive"])
def test_a_store_of_clients_with_other_samples_is_refused(field: str, tmp_path: Path) -> None:
    clients = private()
    federate(network(), clients, settings=SMALL, store=TensorFolder(tmp_path))
    first, size = clients[0], len(clients[0])
    marks = torch.arange(size) > 2
    changed = {"images": first.images.flip(0), "labels": first.labels.flip(0), "sensitive": marks}[field]
    others = [replace(first, **{field: changed}), *clients[1:]]
    with pytest.raises(FederationError, match="other settings"):
        federate(network(), others, settings=SMALL, store=TensorFolder(tmp_path))


def test_private_state_is_for_the_owner_alone(tmp_path: Path) -> None:
    run(SMALL, defenses=(SPN(bits=4),), store=TensorFolder(tmp_path))
    (file,) = tmp_path.iterdir()
    assert file.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("algorithm", ["fedavg", "round-robin", "decentralized"])
def test_a_client_whose_update_is_not_finite_is_left_out_and_named(algorithm: Any) -> None:
    history = run(replace(FULL, algorithm=algorithm), defenses=(BrokenAtOne(),))
    assert [one.dropped for one in history.rounds] == [(1,)] * 3
    assert [sorted(one.norms) for one in history.rounds] == [[0, 2]] * 3
    assert torch.isfinite(weights(history.model)).all()


def test_nobody_left_is_an_error() -> None:
    with pytest.raises(FederationError, match="round 1"):
        run(FULL, sizes=(8, 8), defenses=(GaussianNoise(std=1e308), GaussianNoise(std=1e308)))


def test_clients_are_drawn_anew_in_every_round() -> None:
    history = run(replace(FULL, rounds=12, fraction=0.5), sizes=(4,) * 6)
    drawn = [tuple(one.norms) for one in history.rounds]
    assert {len(clients) for clients in drawn} == {3}
    assert len(set(drawn)) > 4
    assert set().union(*drawn) == set(range(6))
    assert [one.samples for one in history.rounds] == [12] * 12


def test_running_statistics_are_averaged_like_weights() -> None:
    history = run(replace(FULL, rounds=1), model=normed())
    models = [trained(normed(), [(s.inputs(dtype=torch.float64), s.labels)], lr=0.3) for s in private()]
    mean = averaged(models, [8, 8, 12])
    for name in ("1.running_mean", "1.running_var"):
        assert torch.allclose(history.model.get_buffer(name), mean[name], atol=1e-12, rtol=0)
    assert_equal(weights(history.model), torch.cat([mean[name].flatten() for name, _ in normed().named_parameters()]))


@pytest.mark.parametrize("algorithm", ["fedavg", "round-robin"])
def test_running_statistics_can_stay_with_the_clients(algorithm: Any) -> None:
    history = run(replace(FULL, algorithm=algorithm, share_buffers=False), model=normed())
    assert torch.equal(history.model.get_buffer("1.running_mean"), torch.zeros(2).double())


def test_several_epochs_use_every_sample_once_an_epoch() -> None:
    """With a rate near 0 the order is without effect, and E passes move E times as far as one step over all."""
    tiny = replace(SMALL, rounds=1, local=LocalTraining(lr=1e-6), local_epochs=3)
    moved = weights(run(tiny, sizes=(8,)).model) - weights(network())
    single = replace(tiny, batch_size=None, local_epochs=1)
    expected = 6 * (weights(run(single, sizes=(8,)).model) - weights(network()))
    assert_equal(moved, expected, 1e-4)


def test_the_csv_holds_every_round() -> None:
    history = run(replace(FULL, fraction=0.7), test=private()[0])
    lines = list(csv.DictReader(io.StringIO(history.to_csv())))
    assert [line["round"] for line in lines] == ["1", "2", "3"]
    for line, one in zip(lines, history.rounds, strict=True):
        assert float(line["loss"]) == pytest.approx(one.loss, rel=1e-5)
        assert float(line["update_norm_max"]) == pytest.approx(max(one.norms.values()), rel=1e-5)
        assert line["clients"] == "2"


def test_norms_are_those_of_the_updates() -> None:
    (one,) = run(replace(FULL, rounds=1), sizes=(8,)).rounds
    after = run(replace(FULL, rounds=1), sizes=(8,)).model
    assert one.norms[0] == pytest.approx(float((weights(network()) - weights(after)).norm()), rel=1e-10)


def test_leaves_model_and_random_state_alone() -> None:
    model = normed()
    before, state = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    run(SMALL, model=model, defenses=(GaussianNoise(),))
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"rounds": 0}, "rounds must be at least 1"),
        ({"fraction": 0.0}, "fraction must be above 0"),
        ({"server_lr": -1.0}, "server_lr must be above 0"),
        ({"server_lr": math.nan}, "server_lr must be above 0 and finite, got nan"),
        ({"seed": -1}, "seed must be at least 0"),
        ({"algorithm": "fedprox"}, "algorithm must be one of"),
        ({"view": "neighbour"}, "must be server or aggregate"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Federation(**settings)


@pytest.mark.parametrize(("graph", "words"), [("star", "ring, complete"), ("0-3", "client 3"), ("0-1", "client 2")])
def test_wrong_graphs_are_refused(graph: str, words: str) -> None:
    with pytest.raises(SpecError, match=words):
        run(replace(FULL, algorithm="decentralized", graph=graph))


def test_a_federation_without_clients_is_refused() -> None:
    with pytest.raises(DataError, match="at least 1 client"):
        federate(network(), [])


def test_examples_run() -> None:
    for module in (simulate, _graph):
        assert doctest.testmod(module).failed == 0
