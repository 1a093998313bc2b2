import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

pytest.importorskip("flwr", reason="flwr is not installed; install the extra gradveil[flower] to test Flower")

from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp.typing import ClientAppCallable, Mod
from flwr.serverapp.strategy import FedAvg
from quickstart_app import BATCH, RATE, SAMPLES, load_data, make_client, make_net, make_server

from gradveil import flower
from gradveil.defenses import PPDL, GaussianNoise
from gradveil.errors import RecordError, SpecError
from gradveil.federated import Ledger, VettingError, load_granted, load_update, preflight, replay, replay_granted
from gradveil.federated.deployment import audit_recorded
from gradveil.flower._messages import read_arrays, to_arrays, to_state
from gradveil.streams import Streams
from gradveil.types import Batch, LocalTraining

LOCAL = LocalTraining(lr=RATE, steps=SAMPLES // BATCH, local_batch_size=BATCH, shares="difference")


def run(mods: list[Mod], *, clients: int = 2, rounds: int = 3) -> dict[str, Tensor]:
    """Run the quickstart with some mods, and return the final model."""
    results: list[dict[str, Tensor]] = []
    flower.run_in_process(make_server(results, rounds=rounds), make_client(mods), clients=clients)
    return results[0]


def recording(folder: Path) -> Mod:
    return flower.record(
        folder,
        model="Net of the quickstart",
        loss="cross-entropy",
        local=LOCAL,
        mode="train",
        input_shape=(1, 8, 8),
        num_classes=4,
        normalization=((), ()),
    )


@pytest.fixture(autouse=True)
def _quiet_about_buffers() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="running statistics")
        yield


def test_an_app_that_knows_nothing_is_protected_recorded_checked_audited_and_reported(tmp_path: Path) -> None:
    sent, clean = tmp_path / "sent", tmp_path / "clean"
    noise = GaussianNoise(std=0.01)
    mods = [flower.vet(), recording(sent), flower.protect([noise], seed=3), recording(clean)]
    final = run(mods)

    names = [f"round-{number}-client-{client}.safetensors" for number in (1, 2, 3) for client in (0, 1)]
    assert sorted(path.name for path in sent.iterdir()) == sorted(names)
    assert all(torch.isfinite(tensor).all() for tensor in final.values())
    for name in names:
        what = load_update(sent / name)
        assert [check.reason for check in preflight(what, make_net()) if check.outcome != "passed"] == []
        assert not any(buffer.endswith("running_mean") for buffer in what.buffers_after)  # withheld
        plain = load_update(clean / name)
        assert [check.reason for check in preflight(plain, make_net()) if check.outcome != "passed"] == []
        assert "norm.running_mean" in plain.buffers_after

    made = audit_recorded(
        [sent / names[0], sent / names[3]],
        attack="inverting-gradients:steps=3",
        out=tmp_path / "audit",
        model=make_net(),
    )
    assert [one.record.status for one in made] == ["done", "done"]
    assert {one.record.threat.case for one in made} == {"deployment"}
    page = (tmp_path / "audit" / "report.html").read_text()
    assert "deployment" in page
    assert "round-1-client-0" in page


def test_the_clean_recording_replays_and_the_protected_one_differs_by_the_noise(tmp_path: Path) -> None:
    mods = [
        recording(tmp_path / "sent"),
        flower.protect([GaussianNoise(std=0.05)], seed=1),
        recording(tmp_path / "clean"),
    ]
    run(mods, rounds=1)
    images, labels = load_data(1)
    batch = Batch(images[None], labels[None])
    sent, clean = (load_update(tmp_path / kind / "round-1-client-1.safetensors") for kind in ("sent", "clean"))
    assert replay(clean, batch, model=make_net()).residual < 1e-5
    assert replay(sent, batch, model=make_net(), clean=clean.update).passed
    assert not replay(sent, batch, model=make_net()).passed
    noise = torch.cat([(sent.update[name] - clean.update[name]).flatten() for name in clean.update])
    assert noise.std().item() == pytest.approx(0.05, rel=0.2)


def test_a_witness_keeps_what_replays_the_protected_update(tmp_path: Path) -> None:
    ledger = Ledger()
    mods = [
        recording(tmp_path / "sent"),
        flower.protect([GaussianNoise(std=0.05)], seed=1),
        flower.witness(tmp_path / "own", ledger),
    ]
    results: list[dict[str, Tensor]] = []
    flower.run_in_process(make_server(results, rounds=2), make_client(mods, ledger.saw), clients=2)
    files = sorted((tmp_path / "sent").iterdir())
    assert [file.name for file in files] == sorted(file.name for file in (tmp_path / "own").iterdir())
    for file in files:
        granted = load_granted(tmp_path / "own" / file.name)
        assert granted.order.tolist() == list(range(SAMPLES))
        assert replay_granted(load_update(file), granted, model=make_net()).residual < 1e-5


def test_a_witness_of_an_app_that_notes_nothing_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run([flower.witness(tmp_path, Ledger())], rounds=1)
    assert not list(tmp_path.iterdir())
    assert "the training noted no samples" in caplog.text


def test_without_mods_and_with_defenses_that_are_off_the_same_model_comes_out() -> None:
    plain, off = run([]), run([flower.protect([GaussianNoise(std=0)], buffers="pass")])
    for name, tensor in plain.items():
        torch.testing.assert_close(off[name], tensor, rtol=0, atol=1e-6)


# One message through the mod, without a server.


def asked(number: int, state: dict[str, Tensor]) -> Message:
    with flower._in_process._identity():
        config = ConfigRecord({"server-round": number})
        return Message(RecordDict({"arrays": to_arrays(state), "config": config}), 1, "train")


def answering(change: float) -> ClientAppCallable:
    """Return an app that adds a number to everything it is sent."""

    def app(message: Message, context: Context) -> Message:
        state = {name: (t + change).to(t.dtype) for name, t in read_arrays(message.content).items()}
        metrics = MetricRecord({"num-examples": 5})
        return Message(RecordDict({"arrays": to_arrays(state), "metrics": metrics}), reply_to=message)

    return app


def context(**node_config: object) -> Context:
    return Context(
        run_id=1,
        node_id=7,
        node_config={"partition-id": 2, **node_config},
        state=RecordDict(),
        run_config={},
    )


STATE = {
    "fc.weight": torch.zeros(2, 3),
    "norm.running_mean": torch.ones(3),
    "norm.running_var": torch.ones(3),
    "norm.num_batches_tracked": torch.tensor(4),
}


def test_noise_is_that_of_the_client_step() -> None:
    mod = flower.protect([GaussianNoise(std=0.5)], seed=11)
    sent = read_arrays(mod(asked(3, STATE), context(), answering(1.0)).content)
    streams = Streams(seed=11, purpose="client", keys=((2,),)).fork("round-3")
    expected = GaussianNoise(std=0.5).apply((torch.full((1, 2, 3), -1.0),), streams=streams)[0][0]
    torch.testing.assert_close(sent["fc.weight"], -expected)


@pytest.mark.parametrize(("choice", "mean"), [("withhold", 1.0), ("pass", 3.0)])
def test_running_statistics_are_withheld_or_passed_with_a_warning(
    choice: flower._protecting.Buffers, mean: float
) -> None:
    mod = flower.protect([GaussianNoise(std=0)], buffers=choice)
    with pytest.warns(UserWarning, match="running statistics such as 'norm.running_mean'"):
        sent = read_arrays(mod(asked(1, STATE), context(), answering(2.0)).content)
    assert sent["norm.running_mean"].tolist() == [mean] * 3
    assert int(sent["norm.num_batches_tracked"]) == 6


def test_noisy_running_statistics_are_noisy_and_no_variance_is_negative() -> None:
    mod = flower.protect([GaussianNoise(std=10.0)], buffers="noise", seed=0)
    sent = read_arrays(mod(asked(1, STATE), context(), answering(0.0)).content)
    assert float((sent["norm.running_mean"] - 1).abs().min()) > 0.01
    assert float(sent["norm.running_var"].min()) == 0.0


def test_no_noise_is_used_twice_even_if_the_server_repeats_a_round() -> None:
    mod, own = flower.protect([GaussianNoise(std=1.0)], seed=5), context()
    sent = [
        read_arrays(mod(asked(number, STATE), own, answering(0.0)).content)["fc.weight"]
        for number in (1, 2, 2, 1, 3, 3)
    ]
    assert len({tuple(tensor.flatten().tolist()) for tensor in sent}) == 6


def test_the_noise_cannot_be_repeated_by_who_does_not_know_the_seed() -> None:
    first, second = (
        read_arrays(flower.protect([GaussianNoise()])(asked(1, STATE), context(), answering(0.0)).content)
        for _ in range(2)
    )
    assert not torch.equal(first["fc.weight"], second["fc.weight"])


@pytest.mark.parametrize("folder", [False, True], ids=["context", "folder"])
def test_a_residual_is_kept_between_rounds(folder: bool, tmp_path: Path) -> None:
    keep = tmp_path if folder else None
    state = {"w": torch.zeros(4)}
    grow = torch.tensor([4.0, 3.0, 2.0, 1.0])

    def app(message: Message, context: Context) -> Message:
        after = {"w": read_arrays(message.content)["w"] + grow}
        return Message(RecordDict({"arrays": to_arrays(after)}), reply_to=message)

    own, sent = context(), []
    for number in (1, 2):
        mod = flower.protect([PPDL(theta=0.25)], keep=keep)
        sent.append(read_arrays(mod(asked(number, state), own, app).content)["w"].tolist())
    assert sent == [[4.0, 0.0, 0.0, 0.0], [0.0, 6.0, 0.0, 0.0]]
    assert all(path.stat().st_mode & 0o077 == 0 for path in tmp_path.glob("*"))


def test_evaluation_passes_untouched() -> None:
    with flower._in_process._identity():
        message = Message(RecordDict({"arrays": to_arrays(STATE)}), 1, "evaluate")
    for mod in (flower.protect(["gaussian-noise"]), flower.vet()):
        sent = read_arrays(mod(message, context(), answering(1.0)).content)
        assert torch.equal(sent["fc.weight"], torch.ones(2, 3))


def test_a_mod_refuses_what_it_cannot_do() -> None:
    with pytest.raises(SpecError, match="dp-sgd acts inside the training"):
        flower.protect(["dp-sgd"])
    with pytest.raises(SpecError, match="buffers must be"):
        flower.protect(["gaussian-noise"], buffers="drop")  # type: ignore[arg-type]
    mod = flower.protect(["gaussian-noise"])

    def other(message: Message, context: Context) -> Message:
        return Message(RecordDict({"arrays": to_arrays({"new": torch.zeros(1)})}), reply_to=message)

    with pytest.raises(RecordError, match="'new', which it was not sent"):
        mod(asked(1, STATE), context(), other)


def test_a_poisoned_model_is_refused_before_training_and_the_reason_stays_with_the_client() -> None:
    bad = {"fc.weight": torch.full((8, 32), 0.5), "fc.bias": torch.linspace(-1, 1, 8)}
    trained = []

    def app(message: Message, context: Context) -> Message:
        trained.append(1)
        return answering(0.0)(message, context)

    with pytest.raises(VettingError, match="imprint"):
        flower.vet()(asked(1, bad), context(), app)
    assert not trained
    with pytest.warns(UserWarning, match="malicious"):
        flower.vet(policy="warn")(asked(1, bad), context(), app)
    assert trained


def test_a_model_is_compared_with_that_of_the_round_before() -> None:
    generator = torch.Generator().manual_seed(0)
    good = {f"{i}.weight": torch.randn(6, 20, generator=generator) for i in range(3)}
    jumped = {**good, "1.weight": 5 * torch.randn(6, 20, generator=generator)}
    mod, own = flower.vet(reference="last"), context()
    mod(asked(1, good), own, answering(0.0))
    with pytest.warns(UserWarning, match="it changed by"):
        mod(asked(2, jumped), own, answering(0.0))


def test_clients_compare_fingerprints(tmp_path: Path) -> None:
    mod = flower.vet(fingerprints=tmp_path / "seen" / "prints.txt")
    for number in (1, 2):
        mod(asked(number, STATE), context(), answering(0.0))
    lines = (tmp_path / "seen" / "prints.txt").read_text().splitlines()
    assert [line.split()[:4] for line in lines] == [["round", "1", "client", "2"], ["round", "2", "client", "2"]]
    assert lines[0].split()[4] == lines[1].split()[4]


def test_a_recording_says_what_was_stated_in_the_project_file_and_what_is_unknown(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.gradveil]\nlr = 0.1\nmode = "train"\nmean = [0.5]\n')
    mod = flower.record(tmp_path, stated=tmp_path / "pyproject.toml", mode="eval")
    mod(asked(4, STATE), context(), answering(1.0))
    about = load_update(tmp_path / "round-4-client-2.safetensors").about
    assert (about.lr, about.mode, about.mean, about.batch_size, about.round, about.client) == (
        0.1,
        "eval",
        (0.5,),
        5,
        4,
        2,
    )
    assert {"momentum", "steps", "model"} <= set(about.unknown)
    (tmp_path / "pyproject.toml").write_text("[tool.gradveil]\nrate = 0.1\n")
    with pytest.raises(SpecError, match="says rate"):
        flower.record(tmp_path, stated=tmp_path / "pyproject.toml")


def test_the_server_records_every_client_as_the_client_itself_does(tmp_path: Path) -> None:
    results: list[dict[str, Tensor]] = []
    strategy = flower.recorded(FedAvg(), tmp_path / "server")
    mods = [recording(tmp_path / "client"), flower.protect(["gaussian-noise:std=0.1"])]
    flower.run_in_process(make_server(results, strategy), make_client(mods), clients=3)
    assert len(list((tmp_path / "server").iterdir())) == 9
    for number in (1, 2, 3):
        for client in range(3):  # a node is not a partition: the process numbers nodes from 1
            ours = load_update(tmp_path / "client" / f"round-{number}-client-{client}.safetensors")
            theirs = load_update(tmp_path / "server" / f"round-{number}-client-{client + 1}.safetensors")
            assert all(torch.equal(ours.update[name], theirs.update[name]) for name in ours.update)
            assert all(torch.equal(ours.before[name], theirs.before[name]) for name in ours.before)


def test_arrays_keep_names_formats_and_numbers() -> None:
    back = to_state(to_arrays(STATE))
    assert list(back) == list(STATE)
    assert all(torch.equal(back[name], tensor) and back[name].dtype == tensor.dtype for name, tensor in STATE.items())
