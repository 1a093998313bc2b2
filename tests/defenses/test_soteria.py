"""Soteria against one backward pass per feature."""

import numpy as np
import pytest
import torch
from defended import VICTIMS, network, private, protected, update_of
from torch import Tensor, nn
from torch.nn import functional as F

from gradveil.client import Client, step
from gradveil.defenses import Soteria
from gradveil.engine._memory import peak
from gradveil.errors import UnknownNameError, UnsupportedModelError
from gradveil.streams import Streams
from gradveil.types import Batch, LocalTraining


def literal_mask(model: nn.Sequential, images: Tensor, before: int, *, percent: float, signed: bool) -> Tensor:
    """Score features one by one, as the paper's authors do."""
    images = images.clone().requires_grad_()
    representation = model[:before](images)
    scores = []
    for feature in range(representation.shape[1]):
        (moved,) = torch.autograd.grad(representation[:, feature].sum(), images, retain_graph=True)
        value = representation[:, feature] if signed else representation[:, feature].abs()
        scores.append(float((moved.flatten(1).norm(dim=1) / (value.detach() + 0.1)).sum()))
    threshold = np.percentile(scores, percent)
    return torch.tensor([0.0 if abs(score) < threshold else 1.0 for score in scores], dtype=torch.float64)


@pytest.mark.parametrize(("layer", "before", "tensor"), [("", 5, 4), ("3", 3, 2)])
@pytest.mark.parametrize("denominator", ["absolute", "signed"])
def test_agrees_with_one_backward_pass_per_feature(layer: str, before: int, tensor: int, denominator: str) -> None:
    batch, plain = private(), update_of()
    shared = update_of(Soteria(fraction=0.4, layer=layer, denominator=denominator))  # type: ignore[arg-type]
    pruned = 0
    for victim in range(VICTIMS):
        mask = literal_mask(network(), batch.inputs[victim], before, percent=40, signed=denominator == "signed")
        pruned += int((mask == 0).sum())
        torch.testing.assert_close(shared[tensor][victim], plain[tensor][victim] * mask)
    # By the signed rule the percentile of negative scores can be negative, and then nothing is pruned at all.
    assert pruned > 0 or (denominator == "signed" and layer == "3")
    others = [i for i in range(len(plain)) if i != tensor]
    assert all(torch.equal(shared[i], plain[i]) for i in others)


def test_scores_every_step_at_the_weights_of_its_own_victim() -> None:
    local = LocalTraining(lr=0.5, steps=2, shares="difference")
    update = update_of(Soteria(fraction=0.4), local=local)
    assert not torch.equal(update[4], update_of(local=local)[4])


class Looks(nn.Module):
    """Python that looks at numbers, which no map over victims takes."""

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs if float(inputs.mean()) < 9 else -inputs


@pytest.mark.parametrize(
    "local", [None, LocalTraining(lr=0.5, steps=2, shares="difference")], ids=["gradient", "steps"]
)
def test_a_network_that_cannot_be_mapped_is_scored_one_victim_after_another(local: LocalTraining | None) -> None:
    defense = Soteria(fraction=0.4)
    looking = protected([defense], model=nn.Sequential(Looks(), *network()), local=local).observation.update
    torch.testing.assert_close(looking, update_of(defense, local=local))


def test_an_informed_adversary_sees_which_columns_are_left() -> None:
    seen = protected([Soteria(fraction=0.4)]).observation
    masks = Soteria().visible(seen.update)
    assert torch.equal(masks[4], seen.update[4] != 0)
    assert all(bool(masks[i].all()) for i in (0, 1, 2, 3, 5))


def test_features_that_are_zero_tell_nothing_even_without_an_offset() -> None:
    model = network()
    model[4] = torch.nn.ReLU()
    plain, off, on = (
        protected(defenses, model=model).observation.update
        for defenses in ([], [Soteria(fraction=0.0, eps=0.0)], [Soteria(fraction=0.5, eps=0.0)])
    )
    assert all(torch.equal(one, other) for one, other in zip(plain, off, strict=True))
    assert bool((on[-2] != 0).flatten(1).any(1).all())
    assert not torch.equal(on[-2], plain[-2])


def test_refuses_a_layer_that_is_not_there_or_not_trained() -> None:
    with pytest.raises(UnknownNameError, match="no linear layer called '9'"):
        update_of(Soteria(layer="9"))
    model = network()
    model[5].weight.requires_grad_(False)
    with pytest.raises(UnsupportedModelError, match=r"5\.weight"):
        protected([Soteria()], model=model)
    with pytest.raises(UnsupportedModelError, match=r"nn\.Linear"):
        protected([Soteria()], model=nn.Sequential(nn.Conv2d(1, 4, 6), nn.Flatten()).double())


def test_memory_is_that_of_the_rows_at_once_not_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    convolutions = (nn.Conv2d(1, 16, 3), nn.Tanh(), nn.Conv2d(16, 40, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    client = Client(
        model=nn.Sequential(*convolutions, nn.Linear(40, 4)), loss=F.cross_entropy, defenses=(Soteria(fraction=0.4),)
    )
    batch, streams = Batch(torch.rand(1, 2, 1, 16, 16), torch.zeros(1, 2).long()), Streams(purpose="client").bind(1)

    def taken(rows: int) -> int:
        monkeypatch.setattr("gradveil.defenses.soteria._ROWS", rows)
        return peak(lambda: step(batch, client, streams=streams), torch.device("cpu"))

    assert taken(2) < 0.3 * taken(40)
