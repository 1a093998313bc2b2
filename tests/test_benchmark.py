import dataclasses
import importlib.util
import json

import pytest
import torch
import torch.nn.functional as F

from gradveil.attacks._objectives import cosine_distance, unit
from gradveil.benchmark import _cosine, bench_attack, to_json
from gradveil.errors import SpecError, UnknownNameError
from gradveil.streams import Streams

CPU = torch.device("cpu")


def test_times_one_victim_in_a_plain_loop_and_stacks_of_ours() -> None:
    state = torch.get_rng_state()
    rows = bench_attack("mlp:hidden=8", victims=[1, 4], iterations=3, input_shape=(1, 4, 4), num_classes=3, device=CPU)
    ours = [row for row in rows if row.what == "gradveil"]
    assert rows[0].what.startswith("plain loop")
    assert (rows[0].victims, rows[0].ratio) == (1, 1.0)
    assert [row.victims for row in ours] == [1, 4]
    assert all(row.milliseconds > 0 for row in rows)
    for row in ours:
        assert row.ratio == pytest.approx(rows[0].milliseconds / row.milliseconds)
        assert row.peak_mib is None
        assert not row.captured
    assert any(row.what == "breaching" for row in rows) == (importlib.util.find_spec("breaching") is not None)
    assert torch.equal(torch.get_rng_state(), state)


def test_a_stack_is_cheaper_per_victim_than_one_at_a_time() -> None:
    rows = bench_attack("lenet", victims=[32], iterations=10, input_shape=(1, 8, 8), num_classes=10, device=CPU)
    assert rows[1].ratio > 1


def test_the_plain_loop_matches_what_ours_does() -> None:
    streams = Streams(seed=0).bind(1)
    trial, target = ([streams.normal(f"{who}/{i}", (3, 2)) for i in range(2)] for who in ("trial", "target"))
    ours = cosine_distance(tuple(trial), unit(tuple(target)))
    torch.testing.assert_close(_cosine(trial, target), ours[0])
    flat = [torch.cat([tensor.flatten() for tensor in tensors]) for tensors in (trial, target)]
    torch.testing.assert_close(ours[0], 1 - F.cosine_similarity(flat[0], flat[1], dim=0))


def test_timings_are_written_with_where_and_when() -> None:
    rows = bench_attack("mlp:hidden=4", victims=[1], iterations=1, input_shape=(1, 2, 2), num_classes=2, device=CPU)
    content = json.loads(json.dumps(to_json(rows, settings={"model": "mlp"}, device=CPU)))
    assert content["timings"] == [dataclasses.asdict(row) for row in rows]
    assert content["settings"] == {"model": "mlp"}
    assert content["about"]["device"].startswith("CPU")
    assert "torch" in content["about"]["versions"]


def test_a_model_that_cannot_be_built_is_one_sentence() -> None:
    with pytest.raises(SpecError, match="width must be at least 1, got 0"):
        bench_attack("convnet:width=0", victims=[1], device=CPU)
    with pytest.raises(UnknownNameError, match="no model called 'lenett'"):
        bench_attack("lenett", victims=[1], device=CPU)
