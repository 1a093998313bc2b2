"""A last layer that lets one sample of a batch through."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gradveil._serving import Granted, Served, serve
from gradveil.attacks import Fishing
from gradveil.client import Client, Step, observe
from gradveil.defenses import PPDL, Defense, GaussianNoise
from gradveil.engine import Runtime
from gradveil.errors import KnowledgeError, UnsupportedModelError
from gradveil.metrics import PSNR
from gradveil.models import build
from gradveil.streams import Streams
from gradveil.types import Auxiliary, Batch, Knowledge, Observation, Reconstruction

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


# Several queries


def isolated(queries: int, seed: int, size: int = 8, victims: int = 10) -> Served:
    """Let clients with batches of one class answer a server that looks for a threshold."""
    streams = Streams(seed=seed, purpose="test").bind(victims)
    coarse = streams.uniform("private", (size, 1, 4, 4))
    batch = Batch(coarse.repeat_interleave(2, 3).repeat_interleave(2, 4), torch.full((victims, size), 2))
    client = Client(model=network(), loss=F.cross_entropy)
    granted = Granted(knowledge=Knowledge.AUXILIARY, auxiliary=public())
    return serve(batch, client, Fishing(by="feature", target=2, queries=queries), granted=granted, seed=seed)


def caught(served: Served) -> Tensor:
    seen = served.step.observation
    return -seen.input_shape[0] * seen.update[seen.names.index("fc.bias")][:, 2]


@pytest.mark.parametrize("seed", [7001, 7002])
def test_several_queries_isolate_one_sample_of_eight(seed: int) -> None:
    alone = (caught(isolated(16, seed)) - 1).abs() < 0.02
    assert int(alone.sum()) >= 9
    assert int(((caught(isolated(1, seed)) - 1).abs() < 0.02).sum()) <= 6


def test_each_victim_is_asked_by_a_threshold_of_its_own() -> None:
    parameters = isolated(6, 7003).step.observation.parameters
    assert parameters is not None
    assert list(parameters) == ["fc.bias"]
    assert len(parameters["fc.bias"][:, 2].unique()) > 5
    alone = isolated(6, 7003, victims=1).step.observation.parameters
    assert alone is not None
    torch.testing.assert_close(alone["fc.bias"], parameters["fc.bias"][:1])


def test_the_sample_that_was_isolated_is_reconstructed() -> None:
    served = isolated(16, 7004, victims=2)
    attack = Fishing(by="feature", target=2, steps=100, tv=1e-5, queries=16)
    found = attack(served.step.observation, streams=Streams(seed=0), runtime=Runtime(chunk=2))
    alone = (found.details["caught"] - 1).abs() < 0.02
    scores = PSNR()(found.inputs[:, :1].expand(-1, 8, -1, -1, -1), served.step.evidence.batch.inputs).amax(1)
    assert bool(alone.any())
    assert float(scores[alone].min()) > 22


def asked(queries: int, defense: Defense) -> Step:
    batch = Batch(images("private", 2, 2), torch.full((2, 2), 2))
    client = Client(model=network(), loss=F.cross_entropy, defenses=(defense,))
    granted = Granted(knowledge=Knowledge.AUXILIARY, auxiliary=public())
    attack = Fishing(by="feature", target=2, queries=queries)
    return serve(batch, client, attack, granted=granted, seed=5).step


def test_every_query_has_randomness_of_its_own() -> None:
    first, second, again = (asked(queries, GaussianNoise(std=1.0)).evidence for queries in (1, 2, 2))
    noise = [found.update[0] - found.clean[0] for found in (first, second, again)]
    assert torch.equal(noise[1], noise[2])
    assert not torch.allclose(noise[0], noise[1], atol=0.1)


def test_what_a_client_keeps_goes_on_from_query_to_query() -> None:
    first, second = (asked(queries, PPDL(theta=0.5)) for queries in (1, 2))
    name = next(iter(first.kept))
    held, shared = first.kept[name], second.evidence
    total = shared.clean[0] + held
    torch.testing.assert_close(shared.update[0] + second.kept[name], total)
    assert float(held.abs().sum()) > 0


def test_by_class_one_query_says_it_all() -> None:
    with pytest.raises(ValueError, match="queries must be 1 by class"):
        Fishing(queries=2)
    with pytest.raises(ValueError, match="queries must be at least 1"):
        Fishing(by="feature", queries=0)


def test_a_network_of_one_layer_leaves_nothing_to_read() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    attack = Fishing(target=3, steps=2)
    with pytest.raises(UnsupportedModelError, match="nothing before the last linear layer '1' is trained"):
        attack.poison(model, input_shape=(SIZE, 1, 8, 8), auxiliary=None, streams=Streams(seed=0, purpose="server"))
