"""Decodings as runs in a folder: what was interrupted, and what lies there already, belongs to its spec."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from gradveil.cli import app
from gradveil.decoding_run import DecodingSpec, run_decoding
from gradveil.engine import Progress
from gradveil.engine.runtime import silent
from gradveil.grid import Settings
from gradveil.reproducing import Means, _decodings
from gradveil.reproducing.plans import Part
from gradveil.spec import spec_from

SETTINGS = Settings(device=torch.device("cpu"), redact=True)
DECODER = "decode-mixing:images=4,k=2,flipped=no,train_steps=8,pairs=8,width=4,refinements=6"


def spec(seed: int) -> DecodingSpec:
    table = {"defenses": "mixup:k=2", "batch_size": 4, "victims": 1, "knowledge": ["auxiliary"], "seed": seed}
    audit = spec_from({"audit": {**table, "models": "mlp:hidden=4", "decoys": 5, "null_victims": 0}})
    return DecodingSpec(audit=audit, decoder=DECODER, rounds=6)


def interrupting(part: str) -> Progress:
    def progress(name: str, done: int, total: int) -> None:
        if name.endswith(part) and done == 2:
            raise KeyboardInterrupt

    return progress


@pytest.mark.parametrize("part", ["similarity-0", "refinement-0"])
def test_an_interrupted_decoding_is_not_taken_for_one_of_another_spec(part: str, tmp_path: Path) -> None:
    def run(seed: int, folder: str, progress: Progress = silent) -> torch.Tensor:
        settings = replace(SETTINGS, progress=progress, save_every=0.0)
        return run_decoding(spec(seed), tmp_path / folder, settings=settings).guess

    with pytest.raises(KeyboardInterrupt):
        run(0, "run", interrupting(part))
    assert list((tmp_path / "run").glob("unfinished/*"))
    assert torch.equal(run(1, "run"), run(1, "fresh"))
    assert not (tmp_path / "run" / "unfinished").exists()


def test_an_interrupted_part_is_not_taken_for_one_of_another_spec(tmp_path: Path) -> None:
    def run(seed: int, folder: str, progress: Progress = silent) -> dict[str, dict[str, list[float]]]:
        table = {"images": 4, "rounds": 6, "attack": "", "decoders": [DECODER], "defenses": ["mixup:k=2"]}
        part = Part(name="d", kind="decoding", tables={"decoding": {**table, "decoys": 5, "seed": seed}})
        settings = replace(SETTINGS, progress=progress)
        _decodings.run(part, tmp_path / folder, Means(settings=settings))
        return _decodings.read(next((tmp_path / folder).glob("*/decoding.json"))).decoded

    with pytest.raises(KeyboardInterrupt):
        run(0, "run", interrupting("refinement-0"))
    assert list((tmp_path / "run").glob("*/unfinished/*"))
    assert run(1, "run") == run(1, "fresh")


def test_a_decoding_of_true_encodings_is_not_written_over_by_one_of_recovered_ones(tmp_path: Path) -> None:
    line = (
        f"decode {tmp_path / 'out'} --defense mixup:k=2 --decoder decode-oracle --knowledge encoding --images 3 --quiet"
    )
    assert CliRunner().invoke(app, [*line.split(), "--device", "cpu", "--redact"]).exit_code == 0
    before = (tmp_path / "out/decoding.json").read_bytes()
    # The attack that a spec names where nobody chose one.
    refused = CliRunner().invoke(app, [*line.split(), "--device", "cpu", "--redact", "--attack", "inverting-gradients"])
    assert (refused.exit_code, "another attack" in " ".join(refused.stderr.split())) == (2, True)
    assert (tmp_path / "out/decoding.json").read_bytes() == before
