"""The average over random policies, against means by hand."""

import dataclasses

import pytest
from test_definitions import record

from gradveil.defenses import defenses
from gradveil.errors import RecordError, SpecError
from gradveil.policies import random_baseline, random_defenses
from gradveil.record import Identification
from gradveil.spec import build


def test_averages_policies_and_not_images() -> None:
    one = record([10.0, 20.0], [12.0, 12.0], defenses=("random-policy:seed=0",), accuracy=0.5)
    two = record([5.0, 6.0], [8.0, 8.0], defenses=("random-policy:seed=1",), accuracy=0.7)
    one = dataclasses.replace(one, identification={"pixels": Identification(ranks=[[0], [0]])})
    two = dataclasses.replace(two, identification={"pixels": Identification(ranks=[[0], [3]])})
    other = record([90.0], [90.0], defenses=("transform-policy",))
    (found,) = random_baseline([one, two, other, two])
    assert found.policies == 2
    assert found.private["psnr"].mean == pytest.approx((15 + 5.5) / 2)
    assert found.private["psnr"].error == pytest.approx((15 - 5.5) / 2)
    assert found.protected["psnr"].mean == 10
    assert found.identified["pixels"].mean == 0.75
    assert found.accuracy is not None
    assert found.accuracy.mean == pytest.approx(0.6)


def test_one_policy_has_no_error_and_an_unknown_accuracy_stays_unknown() -> None:
    (found,) = random_baseline([record([10.0], [12.0], defenses=("random-policy:seed=4",))])
    assert found.private["psnr"].error is None
    assert found.accuracy is None


def test_attacks_are_kept_apart() -> None:
    one = record([10.0], [12.0], defenses=("random-policy:seed=4",))
    assert len(random_baseline([one, dataclasses.replace(one, attack="dlg")])) == 2


def test_names_ten_different_policies_and_says_what_is_missing() -> None:
    drawn = [build(defenses, text).drawn.policy for text in random_defenses()]  # type: ignore[attr-defined]
    assert len(set(drawn)) == 10
    with pytest.raises(SpecError, match="at least 1"):
        random_defenses(0)
    with pytest.raises(RecordError, match="random-policy:seed=0"):
        random_baseline([record([1.0], [1.0])])
