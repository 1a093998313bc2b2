"""Defenses in one list: what works together, and what is refused."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
import torch
from defended import VICTIMS, flat, private, protected
from torch import Tensor, nn
from typing_extensions import override

from gradveil.defenses import (
    DCS2,
    DPSGD,
    SPN,
    Adversary,
    CentralDP,
    DataDefense,
    Defense,
    GaussianNoise,
    LocalDP,
    Mixup,
    Precode,
    Pruning,
    Soteria,
    TopK,
    TransformPolicy,
    check_combination,
)
from gradveil.errors import SpecError, UnsupportedModelError
from gradveil.streams import Streams
from gradveil.types import LocalTraining, Protected


@pytest.mark.parametrize(
    "defenses",
    [
        (DCS2(steps=2), GaussianNoise(std=1e-3)),
        (DCS2(steps=2), Pruning(fraction=0.5)),
        (TransformPolicy(), SPN(bits=8)),
        (Mixup(k=2, classes=4), Soteria(fraction=0.5)),
        (Precode(size=5), SPN(bits=8), DPSGD(), TopK(top=0.5, residual=True)),
        (SPN(bits=8), Soteria(fraction=0.5), LocalDP()),
    ],
    ids=lambda defenses: " + ".join(type(d).__name__ for d in defenses),
)
def test_these_work_together_for_several_steps_and_rounds(defenses: Sequence[Defense]) -> None:
    check_combination(defenses)
    local = LocalTraining(lr=0.1, steps=2, shares="difference")
    first = protected(defenses, local=local)
    second = protected(defenses, local=local, kept=first.kept, seed=1)
    assert bool(torch.isfinite(flat(second.observation.update)).all())


@pytest.mark.parametrize(
    ("defenses", "message"),
    [
        ((DCS2(), DPSGD()), "one way only, got DCS2, DPSGD"),
        ((SPN(), GaussianNoise(), SPN(bits=8)), "parts of SPN once, got 2"),
        ((Precode(), Precode(layer="3")), "parts of Precode once"),
    ],
    ids=["steps", "heads", "bottlenecks"],
)
def test_impossible_lists_are_refused_in_a_sentence(defenses: Sequence[Defense], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        check_combination(defenses)
    with pytest.raises(SpecError, match=message):
        protected(defenses)


@pytest.mark.parametrize("defense", [LocalDP(), CentralDP()], ids=repr)
def test_a_bounded_update_is_not_the_model_itself(defense: Defense) -> None:
    with pytest.raises(SpecError, match="share a difference"):
        protected([defense], local=LocalTraining(shares="weights"))


@dataclass(frozen=True)
class Halved(DataDefense):
    """Trains on the first half of the batch."""

    adversary: ClassVar[Adversary] = Adversary(reason="a test")

    @override
    def protect(self, data: Protected, *, pool: Tensor | None, streams: Streams) -> Protected:
        return Protected(*(tensor[:, :2] for tensor in (data.inputs, data.labels, data.origin, data.weights)))


def test_a_mask_follows_its_samples_into_what_another_defense_makes_of_them() -> None:
    batch, dcs2 = private(), DCS2(steps=1)
    gone, kept = (torch.arange(4).expand(VICTIMS, 4) == sample for sample in (3, 1))
    bare = flat(protected([Halved()], batch=batch).observation.update)
    assert torch.equal(flat(protected([Halved(), dcs2], batch=replace(batch, sensitive=gone)).observation.update), bare)
    found = flat(protected([Halved(), dcs2], batch=replace(batch, sensitive=kept)).observation.update)
    assert bool((found != bare).any(1).all())


def test_a_mixture_is_sensitive_if_it_holds_a_sensitive_sample() -> None:
    streams = Streams(seed=1, purpose="client").bind(VICTIMS)
    mixed = Mixup(k=2, classes=4).protect(Protected.unchanged(private()), pool=None, streams=streams)
    mask = torch.arange(4).expand(VICTIMS, 4) == 1
    found = mixed.marked(mask)
    assert found is not None
    assert torch.equal(found, (mixed.origin == 1).any(-1))
    assert float(found.sum(1).double().mean()) > 1


class TwoHeads(nn.Module):
    """Has a second head behind its first, which only training elsewhere uses."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.spare = nn.Linear(36, 4), nn.Linear(36, 4)

    def forward(self, images: Tensor) -> Tensor:
        found: Tensor = self.head(images.flatten(1))
        return found


@pytest.mark.parametrize("defense", [SPN(bits=8), Precode()], ids=str)
def test_a_layer_that_does_not_run_is_refused(defense: Defense) -> None:
    with pytest.raises(UnsupportedModelError, match="did not run"):
        protected([defense], model=TwoHeads().double())
