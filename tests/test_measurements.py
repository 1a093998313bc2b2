"""The statistics and claims of the measurements in `benchmarks/`."""

import importlib
import itertools
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import nn

from gradveil import Batch, Runtime, Streams
from gradveil.attacks import Generative
from gradveil.defenses import DCS2
from gradveil.models import generators
from gradveil.reproducing import find_artefact, read_plan
from gradveil.types import Auxiliary

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


def load(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module(name)


def test_rmse_is_capped_sample_by_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    spn = load("spn", monkeypatch)
    truth = torch.rand(4, 1, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    null = torch.tensor([[0.2], [0.3], [0.5], [0.6]])
    stand = spn.Stand(batch=spn.Batch(truth, torch.zeros(4, 1, dtype=torch.long)), model=None, null=null, seed=0)
    assert stand.score(0.75 * truth)["rmse"]["values"] == pytest.approx([0.2, 0.25, 0.25, 0.25], rel=1e-4)


def test_only_in_units_of_the_caps_do_saturated_medians_share_a_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    spn = load("spn", monkeypatch)
    assert spn.correlation([0.1, 0.2, 0.3, 0.4, 0.4, 0.4, 0.4, 0.4]) == pytest.approx(0.8728715609)
    assert spn.correlation([0.4] * 8) is None
    null = [0.2, 0.3, 0.5, 0.6]
    lower = [0.2, 0.3, 0.4, 0.6]  # one of four below its cap
    rows = [[0.01] * 4, [0.02] * 4, [0.03] * 4, null, null, null, null, lower]
    cell = {f"alpha2 {alpha2:g}": {"rmse": {"values": row}} for alpha2, row in zip(spn.ALPHAS, rows, strict=True)}
    plain, shares = spn.correlated({"null": {"values": null}, **cell}, 4)
    assert (plain["holds"], shares["holds"]) == (False, True)
    assert shares["value"] == pytest.approx(0.8728715609)


def test_claims_name_the_convention_of_ssim_and_the_defense(monkeypatch: pytest.MonkeyPatch) -> None:
    dcs2 = load("dcs2", monkeypatch)
    scores = {f"{way} {name}": {"mean": 0.3} for way in ("index", "assigned") for name in dcs2.SCORES}
    lower = {**scores, "index padded ssim": {"mean": 0.2}}
    agreement = {row: {"smallest product": -1.0} for row in (*dcs2.PRESETS, dcs2.SCALED)}
    cells = {
        "mean image": scores,
        "gs": {"undefended": scores, "matching": lower},
        "imprint": {"imprint": {**scores, "index psnr": {"mean": 23.0}}, dcs2.SCALED: scores, "agreement": agreement},
    }
    holds = {one["claim"]: one["holds"] for one in dcs2.claims(cells, "mnist")}
    assert not holds["gs, index SSIM of windows inside the image"]
    assert holds["gs, index SSIM, zero-padded as the paper's"]
    assert not holds["gs, assigned SSIM, zero-padded as the paper's"]
    assert not holds["attack imprint; defense imprint: index PSNR"]
    assert holds["attack imprint; defense imprint, scaled: index PSNR"]
    assert not holds["imprint; defense imprint, scaled: product with the plain gradient"]


def test_the_recipe_of_a_generator_stands_in_the_settings_of_its_own_part_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dcs2 = load("dcs2", monkeypatch)
    weights = {}
    for seed in (0, 1):
        made = generators.Autoencoder.build((1, 8, 8), latent_size=4, width=8, num_classes=0, seed=seed).generator
        about = {"dataset": "digits", "training": '{"epochs": 1}', "error": "0.5", "torch": "2"}
        generators.save(made, tmp_path / f"{seed}.safetensors", about=about)
        weights[seed] = dcs2.made(tmp_path / f"{seed}.safetensors")["sha256 of weights"]
    assert weights[0] != weights[1]
    chosen = {"parts": ["mnist", dcs2.SEARCH], "out": tmp_path, "device": "cpu", "budget": 1.0, "seed": 3}
    own = {"generator": tmp_path / "1.safetensors", "generative_victims": 2, "generative_steps": 5}
    plain, search = dcs2.opened(Namespace(**chosen, **own))
    assert plain.spec == {"part": "mnist", "seed": 3}
    assert search.spec["generator"]["sha256 of weights"] == weights[1]
    assert (search.spec["generator"]["training"], search.spec["generative_steps"]) == ({"epochs": 1}, 5)


def test_a_generator_is_searched_under_every_defense_without_knowing_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    dcs2 = load("dcs2", monkeypatch)
    generator = generators.Autoencoder.build((1, 8, 8), latent_size=2, width=8, num_classes=3, seed=0).generator.eval()
    labels = torch.tensor([[0, 1], [2, 0]])
    latents = Streams(seed=4).bind(2).normal("truth", (2, 2)).flatten(0, 1)
    images = generator(latents, labels.flatten()).detach().view(2, 2, 1, 8, 8)
    batch = Batch(images, labels, sensitive=torch.tensor([[False, True]] * 2))
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
    defenses = {"undefended": (), "matching": (DCS2(steps=2),)}
    stand = dcs2.Stand(batch, model, public=Auxiliary(), mean=images[0, 0], defenses=defenses, seed=0)
    seen = [replace(one, auxiliary=Auxiliary(generator=generator)) for one in stand.updates(model)]
    attack = Generative(optimizer="adam", steps=60, objective="cosine", weight=0.0, defense="ignored")
    found = dcs2.attacked(stand, attack, seen, Runtime())
    assert found["undefended"]["index psnr"]["mean"] > 5 + found["matching"]["index psnr"]["mean"]
    for noise, gradient in zip(dcs2.random_like(seen[0], 0).update, seen[0].update, strict=True):
        assert torch.allclose(noise.flatten(1).norm(dim=1), gradient.flatten(1).norm(dim=1))
        assert not torch.equal(noise, gradient)


def test_commands_run_side_by_side_each_after_what_it_waits_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    side = load("side_by_side", monkeypatch)
    order: list[str] = []

    class Ended:
        """A command that takes two looks; the one called `bad` fails."""

        def __init__(self, words: list[str], **_: object) -> None:
            self.name, self.looks = words[-1], 0
            order.append(self.name)

        def poll(self) -> int | None:
            self.looks += 1
            return None if self.looks < 2 else int(self.name == "bad")

    monkeypatch.setattr(side.subprocess, "Popen", Ended)
    plan = tmp_path / "plan.toml"
    plan.write_text(
        '[jobs.a]\nrun = "a"\n[jobs.big]\nrun = "big"\nshare = 3.0\n[jobs.b]\nrun = "b"\n[jobs.bad]\nrun = "bad"\n'
        '[jobs.never]\nrun = "never"\nafter = ["bad"]\n[jobs.lonely]\nrun = "lonely"\nalone = true\nafter = ["a"]\n'
    )

    def run() -> dict[str, str]:
        bench = side.Bench(side.read(plan), tmp_path / "out", 2.0)
        together = []
        while bench.turn():
            together.append({name for name, job in bench.jobs.items() if job.state == "running"})
        assert all(len(names) == 1 for names in together if names & {"lonely", "big"})
        assert {"a", "b"} in together or order[:2] != ["a", "b"]
        return {name: job.state for name, job in bench.jobs.items()}

    assert run() == {"a": "done", "big": "done", "b": "done", "bad": "failed", "never": "left", "lonely": "done"}
    assert order[:2] == ["a", "b"]
    order.clear()
    assert run()["bad"] == "failed"
    assert order == ["bad"], "what was done is not run again"


def test_a_plan_that_waits_for_nobody_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    side = load("side_by_side", monkeypatch)
    (tmp_path / "plan.toml").write_text('[jobs.a]\nrun = "a"\nafter = ["b"]\n')
    with pytest.raises(SystemExit, match="the job a waits for b, which is not in"):
        side.read(tmp_path / "plan.toml")


@pytest.mark.parametrize("plan", [file.name for file in BENCHMARKS.glob("*.toml")])
def test_plans_name_parts_and_folders_that_there_are(plan: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for job in load("side_by_side", monkeypatch).read(BENCHMARKS / plan).values():
        words = job.run.split()
        if words[0] == "reproduce":
            spec = find_artefact(BENCHMARKS.parent / "experiments", words[1]).folder / "spec.toml"
            known = {part.name for part in read_plan(spec, "small", out=Path("runs")).parts}
            assert {after for word, after in itertools.pairwise(words) if word == "--part"} <= known
