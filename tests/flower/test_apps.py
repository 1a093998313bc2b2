import csv
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

pytest.importorskip("flwr", reason="flwr is not installed; install the extra gradveil[flower] to test Flower")

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import ClientAppCallable
from flwr.serverapp.strategy import FedAvg
from safetensors.torch import load_file
from tiny_app import CLIENTS, make_model, make_split

from gradveil.errors import SpecError
from gradveil.federated import FederationError, federate, load_update, preflight
from gradveil.flower import GuardedStrategy, Plan, client_app, run_in_process, server_app
from gradveil.flower._messages import read_arrays, replace_arrays

CONFIG = {
    "model": "import:tiny_app:make_model",
    "data": "import:tiny_app:make_split",
    "test": "import:tiny_app:make_test",
    "settings": "batch_size=4,local_steps=2,mode=eval",
    "local": "lr=0.2,momentum=0.5",
    "rounds": 3,
    "seed": 5,
    "client-seed": 5,
    "clients": CLIENTS,
}


def served(folder: Path, *, client: ClientApp | None = None, **changed: object) -> dict[str, Tensor]:
    """Run the ready apps, and return the final model."""
    config = {**CONFIG, "out": str(folder), **changed}
    run_in_process(server_app(), client or client_app(), clients=CLIENTS, config=config)
    return load_file(folder / "model.safetensors")


def rows(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text().splitlines()))


def largest_difference(left: dict[str, Tensor], right: dict[str, Tensor]) -> float:
    assert left.keys() == right.keys()
    return max(float((left[name].double() - right[name].double()).abs().max()) for name in left)


@pytest.mark.parametrize(
    "defenses",
    [
        "",
        "gaussian-noise:std=0.01",
        "spn:bits=4",
        "dp-sgd:norm=1,noise_multiplier=0.5",
        "central-dp:norm=0.5,noise_multiplier=0.5",
        "transform-policy:policy=3-1-7+43-18-18",
        "dcs2:steps=2",
    ],
)
@pytest.mark.parametrize("algorithm", ["fedavg", "fedsgd"])
def test_flower_gives_the_weights_of_the_local_simulation(defenses: str, algorithm: str, tmp_path: Path) -> None:
    settings = f"algorithm={algorithm},batch_size=4,local_steps=2,mode=eval"
    final = served(tmp_path, defenses=defenses, settings=settings)
    plan = Plan.read({**CONFIG, "defenses": defenses, "settings": settings})
    clients = [make_split(client, CLIENTS) for client in range(CLIENTS)]
    alone = federate(make_model(), clients, settings=plan.federation, defenses=plan.defenses)
    assert largest_difference(final, dict(alone.model.state_dict())) < 1e-5
    assert largest_difference(final, dict(make_model().state_dict())) > 1e-2


def test_a_client_without_a_given_seed_has_noise_of_its_own(tmp_path: Path) -> None:
    config = {name: value for name, value in CONFIG.items() if name != "client-seed"}
    finals = []
    for number in (1, 2):
        folder = tmp_path / str(number)
        again = {**config, "defenses": "gaussian-noise:std=0.1", "out": str(folder)}
        run_in_process(server_app(), client_app(), clients=CLIENTS, config=again)
        finals.append(load_file(folder / "model.safetensors"))
    assert largest_difference(*finals) > 0.01


def test_the_server_writes_rounds_and_the_updates_it_saw(tmp_path: Path) -> None:
    served(tmp_path, record=True)
    table = rows(tmp_path / "rounds.csv")
    assert [row["round"] for row in table] == ["1", "2", "3"]
    assert all(float(row["loss"]) > 0 and 0 <= float(row["accuracy"]) <= 1 and row["failed"] == "0" for row in table)
    files = sorted((tmp_path / "updates").iterdir())
    assert len(files) == 3 * CLIENTS
    checks = preflight(load_update(files[0]), make_model())
    assert [check.reason for check in checks if check.outcome == "failed"] == []


# Faults: the run goes on, says what happened, and loses no finished round.


def with_fault(fault: Callable[[Message], Message], *, client: int, number: int = 2) -> ClientApp:
    """Return the ready client, one of which misbehaves in one round."""

    def misbehave(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        asked = int(message.content["config"]["server-round"])
        reply = call_next(message, context)
        return fault(reply) if asked == number and context.node_config["partition-id"] == client else reply

    return client_app(mods=[misbehave])


def dies(reply: Message) -> Message:
    raise RuntimeError("the power went out")


def sends_nan(reply: Message) -> Message:
    state = read_arrays(reply.content)
    replace_arrays(reply.content, {**state, "0.bias": state["0.bias"] * float("nan")})
    return reply


def sends_a_wrong_shape(reply: Message) -> Message:
    state = read_arrays(reply.content)
    replace_arrays(reply.content, {**state, "0.bias": torch.zeros(7)})
    return reply


def sends_too_little(reply: Message) -> Message:
    state = read_arrays(reply.content)
    replace_arrays(reply.content, {name: tensor for name, tensor in state.items() if name != "0.bias"})
    return reply


def is_slow(reply: Message) -> Message:
    time.sleep(3.2)
    return reply


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (dies, "the power went out"),
        (sends_nan, "'0.bias' holds numbers that are not finite"),
        (sends_a_wrong_shape, r"'0.bias' has shape (7,) instead of (2,)"),
        (sends_too_little, "others than those it was sent, such as '0.bias'"),
        (is_slow, "no answer in time"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_round_goes_on_without_a_client_that_fails_and_says_so(
    fault: Callable[[Message], Message], reason: str, tmp_path: Path
) -> None:
    timeout = 3.0 if fault is is_slow else 60.0
    final = served(tmp_path, client=with_fault(fault, client=1), timeout=timeout)
    assert all(bool(torch.isfinite(tensor).all()) for tensor in final.values())
    turnout = rows(tmp_path / "checkpoint" / "turnout.csv")
    assert [(row["asked"], row["used"], row["failed"]) for row in turnout] == [
        ("4", "4", "0"),
        ("4", "3", "1"),
        ("4", "4", "0"),
    ]
    assert reason in turnout[1]["reasons"]
    assert [row["failed"] for row in rows(tmp_path / "rounds.csv")] == ["0", "1", "0"]


def test_the_other_clients_weigh_as_if_the_failed_one_had_not_been_asked(tmp_path: Path) -> None:
    broken = served(tmp_path / "broken", client=with_fault(sends_nan, client=1, number=1), rounds=1)
    dead = served(tmp_path / "dead", client=with_fault(dies, client=1, number=1), rounds=1)
    assert largest_difference(broken, dead) == 0


def test_a_round_that_nobody_finishes_fails_the_run_and_keeps_the_rounds_before(tmp_path: Path) -> None:
    def all_die(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        if int(message.content["config"]["server-round"]) == 2:
            raise RuntimeError("everything is off")
        return call_next(message, context)

    with pytest.raises(FederationError, match=r"no client shared a usable update in round 2 .*everything is off"):
        served(tmp_path, client=client_app(mods=[all_die]))
    assert int(load_file(tmp_path / "checkpoint" / "last.safetensors")["gradveil/round"]) == 1


def test_a_killed_server_goes_on_to_the_same_weights(tmp_path: Path) -> None:
    whole = served(tmp_path / "whole", defenses="spn:bits=4")

    class KilledError(Exception):
        pass

    class Dying(GuardedStrategy):
        def aggregate_train(self, server_round, replies):  # type: ignore[no-untyped-def]
            found = super().aggregate_train(server_round, replies)
            if server_round == 2:
                raise KilledError
            return found

    node_config = {"keep": str(tmp_path / "private")}  # the clients live on while the server dies
    config = {**CONFIG, "defenses": "spn:bits=4", "out": str(tmp_path / "cut")}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gradveil.flower._apps.GuardedStrategy", Dying)
        with pytest.raises(KilledError):
            run_in_process(server_app(), client_app(), clients=CLIENTS, config=config, node_config=node_config)
    run_in_process(server_app(), client_app(), clients=CLIENTS, config=config, node_config=node_config)
    assert largest_difference(load_file(tmp_path / "cut" / "model.safetensors"), whole) < 1e-6
    assert [row["round"] for row in rows(tmp_path / "cut" / "checkpoint" / "turnout.csv")] == ["1", "2", "3"]
    assert all(path.stat().st_mode & 0o077 == 0 for path in (tmp_path / "private").iterdir())


def test_a_folder_of_another_model_is_not_gone_on_with(tmp_path: Path) -> None:
    served(tmp_path, rounds=1)
    with pytest.raises(FederationError, match="rounds of another model"):
        served(tmp_path, model="mlp:hidden=3", **{"input-shape": "1x4x4", "num-classes": 3})


def test_a_part_of_the_clients_is_drawn_by_the_seed(tmp_path: Path) -> None:
    settings = "batch_size=4,local_steps=1,mode=eval,fraction=0.5"
    first, second = (served(tmp_path / name, settings=settings) for name in "ab")
    assert largest_difference(first, second) == 0
    assert [row["asked"] for row in rows(tmp_path / "a" / "checkpoint" / "turnout.csv")] == ["2"] * 3


def test_any_strategy_of_flower_can_be_guarded(tmp_path: Path) -> None:
    config = {**CONFIG, "out": str(tmp_path)}
    app = server_app(strategy=FedAvg(fraction_evaluate=0.0))
    run_in_process(app, client_app(), clients=CLIENTS, config=config)
    plain = served(tmp_path / "ours")
    assert largest_difference(load_file(tmp_path / "model.safetensors"), plain) < 1e-6


def test_a_wrong_run_config_is_answered_in_one_sentence() -> None:
    for config, words in (
        ({"modle": "lenet"}, "says modle"),
        ({"settings": "algorithm=round-robin"}, "use fedavg or fedsgd"),
        ({"model": "import:nowhere:thing"}, "cannot be imported"),
        ({"model": "import:math"}, "import:package.module:name"),
        ({"model": "import:math:sin", "data": "digits"}, "sin"),
    ):
        with pytest.raises((SpecError, TypeError), match=words):
            Plan.read(config).client()
