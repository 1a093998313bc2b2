"""The statistics and claims of the measurements in `benchmarks/`."""

import importlib
from pathlib import Path
from types import ModuleType

import pytest
import torch

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
