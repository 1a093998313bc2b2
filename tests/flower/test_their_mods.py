"""Our clipping and noise beside Flower's own mods, and in one list with them."""

import math
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor

pytest.importorskip("flwr", reason="flwr is not installed; install the extra gradveil[flower] to test Flower")

from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp.mod import LocalDpMod, fixedclipping_mod
from flwr.clientapp.typing import ClientAppCallable, Mod
from flwr.supercore.differential_privacy import KEY_CLIPPING_NORM

from gradveil import flower
from gradveil.defenses import CentralDP, LocalDP
from gradveil.flower._messages import read_arrays, to_arrays

SIZE = 200
STATE = {"weight": torch.zeros(SIZE, SIZE), "bias": torch.full((3,), 2.0)}
MOVED = math.sqrt(SIZE * SIZE + 3)
NORM = 0.5
QUIET = LocalDpMod(clipping_norm=NORM, sensitivity=0.0, epsilon=1.0, delta=1e-5)


def answer(message: Message, context: Context) -> Message:
    """Add one to every weight."""
    moved = {name: tensor + 1 for name, tensor in read_arrays(message.content).items()}
    content = RecordDict({"arrays": to_arrays(moved), "metrics": MetricRecord({"num-examples": 5})})
    return Message(content, reply_to=message)


def through(*mods: Mod) -> dict[str, Tensor]:
    """Return how far the model that leaves is from the one that came, with the first mod nearest to the server."""
    with flower._in_process._identity():
        config = ConfigRecord({"server-round": 1, KEY_CLIPPING_NORM: NORM})
        message = Message(RecordDict({"arrays": to_arrays(STATE), "config": config}), 1, "train")
    app: ClientAppCallable = answer
    for mod in reversed(mods):
        app = stacked(mod, app)
    context = Context(run_id=1, node_id=7, node_config={"partition-id": 2}, state=RecordDict(), run_config={})
    left = read_arrays(app(message, context).content)
    return {name: left[name] - STATE[name] for name in STATE}


def stacked(mod: Mod, app: ClientAppCallable) -> ClientAppCallable:
    return lambda message, context: mod(message, context, app)


def lengths() -> Iterator[tuple[str, dict[str, Tensor], dict[str, Tensor]]]:
    ours = LocalDP(norm=NORM, noise_multiplier=0.0)
    yield "local", through(flower.protect([ours], seed=1)), through(QUIET)
    theirs = through(fixedclipping_mod)
    yield "central", through(flower.protect([CentralDP(norm=NORM, noise_multiplier=0.0)], seed=1)), theirs
    for name, mods in {
        "ours, then theirs": (QUIET, flower.protect([replace(ours, norm=2 * NORM)], seed=1)),
        "theirs, then ours": (flower.protect([replace(ours, norm=2 * NORM)], seed=1), QUIET),
    }.items():
        yield name, through(*mods), theirs


def test_clipping_is_that_of_flower_alone_and_in_one_list_with_it() -> None:
    for name, ours, theirs in lengths():
        for tensor, moved in ours.items():
            assert torch.allclose(moved, theirs[tensor], atol=1e-7), name
            assert torch.allclose(moved, torch.full_like(moved, NORM / MOVED), atol=1e-7), name


def test_the_noise_of_flower_has_the_multiplier_that_the_card_names() -> None:
    sensitivity, epsilon, delta = 0.3, 2.0, 1e-5
    multiplier = sensitivity * math.sqrt(2 * math.log(1.25 / delta)) / epsilon / NORM
    theirs = through(LocalDpMod(clipping_norm=NORM, sensitivity=sensitivity, epsilon=epsilon, delta=delta))
    ours = through(flower.protect([LocalDP(norm=NORM, noise_multiplier=multiplier)], seed=1))
    for found in (ours, theirs):
        assert float(found["weight"].std()) == pytest.approx(multiplier * NORM, rel=0.02)
