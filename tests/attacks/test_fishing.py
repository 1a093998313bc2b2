"""A last layer that lets one sample of a batch through."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gradveil.attacks import Fishing
from gradveil.client import observe
from gradveil.engine import Runtime
from gradveil.errors import KnowledgeError, UnsupportedModelError
from gradveil.metrics import PSNR
from gradveil.models import build
from gradveil.streams import Streams
from gradveil.types import Auxiliary, Batch, Observation, Reconstruction

VICTIMS, SIZE = 5, 4


def images(name: str, count: int, victims: int) -> Tensor:
    coarse = Streams(seed=511, purpose="test").bind(victims).uniform(name, (count, 1, 4, 4))
    return coarse.repeat_interleave(2, 3).repeat_interleave(2, 4)


def network() -> nn.Module:
    return build("lenet", input_shape=(1, 8, 8), num_classes=10, seed=29)


def public() -> Auxiliary:
    return Auxiliary(inputs=images("public", 500, 1)[0])


def seen(attack: Fishing, labels: Tensor) -> Observation:
    model = attack.poison(
        network(), input_shape=(SIZE, 1, 8, 8), auxiliary=public(), streams=Streams(seed=0, purpose="server")
    )
    return observe(Batch(images("private", SIZE, VICTIMS), labels), model, F.cross_entropy)


def guess(attack: Fishing, observation: Observation) -> Reconstruction:
    return attack(observation, streams=Streams(seed=0), runtime=Runtime(chunk=VICTIMS))


def best_psnr(found: Reconstruction) -> Tensor:
    """Return (V,), how near the fished image is to the nearest of its batch."""
    private = images("private", SIZE, VICTIMS)
    scores = [PSNR()(found.inputs[:, :1], private[:, number : number + 1]) for number in range(SIZE)]
    return torch.cat(scores, 1).amax(1)


LABELS = torch.tensor([[3, 1, 2, 0], [4, 3, 5, 6], [1, 2, 0, 4], [3, 3, 1, 2], [9, 8, 7, 3]])


def test_fishes_the_only_sample_of_its_class() -> None:
    attack = Fishing(target=3, steps=100, tv=1e-5)
    found = guess(attack, seen(attack, LABELS))
    torch.testing.assert_close(found.details["caught"], (LABELS == 3).sum(1).float(), atol=1e-4, rtol=0)
    alone = (LABELS == 3).sum(1) == 1
    assert float(best_psnr(found)[alone].min()) > 22
    assert torch.equal(found.inputs[2], torch.full((SIZE, 1, 8, 8), 0.5))
    assert torch.equal(found.inputs[:, 1:], torch.full((VICTIMS, SIZE - 1, 1, 8, 8), 0.5))


def test_samples_of_other_classes_leave_no_trace_before_the_last_layer() -> None:
    observation = seen(Fishing(target=3), LABELS)
    early = [t for n, t in zip(observation.names, observation.update, strict=True) if not n.startswith("fc.")]
    assert all(float(tensor[2].abs().max()) == 0 for tensor in early)
    assert all(float(tensor[0].abs().max()) > 0 for tensor in early)


def test_fishes_by_feature_in_a_batch_of_one_class() -> None:
    attack = Fishing(by="feature", target=2, steps=100, tv=1e-5)
    found = guess(attack, seen(attack, torch.full((VICTIMS, SIZE), 2)))
    alone = (found.details["caught"] - 1).abs() < 0.02
    assert int(alone.sum()) >= 1
    assert float(best_psnr(found)[alone].min()) > 22


def test_the_threshold_lets_one_auxiliary_image_in_a_batch_through() -> None:
    attack = Fishing(by="feature", target=2)
    model = attack.poison(network(), input_shape=(SIZE, 1, 8, 8), auxiliary=public(), streams=Streams(seed=0))
    inputs = public().inputs
    assert inputs is not None
    with torch.no_grad():
        below = model(inputs)[:, 2] < 0
    assert int(below.sum()) == pytest.approx(500 / SIZE, abs=2)


def test_refuses_what_it_cannot_fish_in() -> None:
    with pytest.raises(UnsupportedModelError, match="10 classes; got target 10"):
        seen(Fishing(target=10), LABELS)
    with pytest.raises(KnowledgeError, match="auxiliary images"):
        Fishing(by="feature").poison(network(), input_shape=(4, 1, 8, 8), auxiliary=None, streams=Streams(seed=0))
    with pytest.raises(UnsupportedModelError, match="needs a last linear layer"):
        Fishing().poison(nn.Flatten(), input_shape=(4, 1, 8, 8), auxiliary=None, streams=Streams(seed=0))
