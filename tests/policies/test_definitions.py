"""Definitions 1 and 2 against counts by hand."""

import dataclasses
import json
import math
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gradveil.cli.search import app
from gradveil.errors import RecordError, SpecError
from gradveil.policies import definitions
from gradveil.policies.definitions import delta
from gradveil.record import Network, Outcome, Record, Run, Scores, Threat, write


def record(
    private: list[float], protected: list[float], *, defenses: tuple[str, ...] = (), accuracy: float | None = None
) -> Record:
    scores = Scores(private=[[value] for value in private], protected=[[value] for value in protected], unit="dB")
    return Record(
        spec={},
        status="done",
        title=" + ".join(defenses) or "no defense",
        attack="inverting-gradients",
        defenses=list(defenses),
        threat=Threat(knowledge=["labels"]),
        network=Network(spec="resnet20-4", state="trained", mode="eval", parameters=1, accuracy=accuracy),
        outcome=Outcome(objective=[], diverged=[], steps=[]),
        scores={"psnr": scores},
        identification={},
        labels=[[0] for _ in private],
        run=Run(date="", seconds={}, chunk=1, device="", versions={}),
    )


def test_counts_how_often_an_attack_reaches_epsilon() -> None:
    plain = record([20.0, 12.0, 15.0, math.nan], [20.0, 12.0, 15.0, math.nan], accuracy=0.75)
    policy = record([8.0, 9.0, 7.0, 20.0], [14.9, 15.0, 16.0, 8.0], defenses=("transform-policy",), accuracy=0.7)
    first, second = definitions([plain, policy], epsilon=15.0)
    assert (first.attack.share, first.policy.share, first.gamma) == (0.5, 0.5, 0.0)
    assert (second.attack.share, second.attack_protected.share) == (0.75, 0.5)
    assert (second.policy.share, second.policy_private.share) == (0.5, 0.25)
    assert second.gamma == pytest.approx(0.05)
    assert second.images == 4


def test_a_given_accuracy_goes_before_that_of_a_record_and_none_is_not_invented() -> None:
    policy = record([8.0], [8.0], defenses=("transform-policy",), accuracy=0.7)
    assert definitions([policy], epsilon=10)[0].gamma is None
    assert definitions([policy], epsilon=10, plain_accuracy=0.8)[0].gamma == pytest.approx(0.1)


def test_the_bound_shrinks_with_images_and_covers_the_share() -> None:
    assert delta(5, 10).upper > delta(50, 100).upper > 0.5
    assert delta(100, 100).upper == 1
    # Wilson at 95 %, one-sided, for 3 of 20 by hand: z² = 2.7055; middle (0.15 + 0.06764) and spread
    # 1.64485 * (0.15 * 0.85 / 20 + 2.7055 / 1600) ** 0.5 = 0.14773, over 1 + 0.13528.
    assert delta(3, 20).upper == pytest.approx((0.21764 + 0.14773) / 1.13528, abs=1e-4)


def test_needs_a_finished_audit_with_a_psnr() -> None:
    done = record([1.0], [1.0])
    for useless in (dataclasses.replace(done, status="failed"), dataclasses.replace(done, scores={})):
        with pytest.raises(RecordError, match="scored by PSNR"):
            definitions([useless], epsilon=15)
    with pytest.raises(SpecError, match="finite"):
        definitions([done], epsilon=math.nan)
    with pytest.raises(SpecError, match="between 0 and 1, got 76"):
        definitions([done], epsilon=15, plain_accuracy=76)


def test_the_command_reads_run_folders(tmp_path: Path) -> None:
    write(record([20.0, 12.0], [20.0, 12.0], accuracy=0.75), tmp_path)
    done = CliRunner().invoke(app, ["definitions", str(tmp_path), "--epsilon", "15", "--json"], catch_exceptions=False)
    (row,) = json.loads(done.output)
    assert (row["attack"]["share"], row["gamma"]) == (0.5, 0.0)
    shown = CliRunner().invoke(app, ["definitions", str(tmp_path)], catch_exceptions=False)
    assert "epsilon 15 dB" in shown.output
