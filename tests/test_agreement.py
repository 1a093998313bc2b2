"""How well images explain an update."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gradveil import Batch, Knowledge, observe
from gradveil._agreement import agreement
from gradveil.attacks import SPEAR, Analytic, Fishing, InvertingGradients
from gradveil.auditing import audit
from gradveil.data import load
from gradveil.defenses import Defense, GaussianNoise, InstaHide, Mixup, TransformPolicy
from gradveil.engine import Runtime
from gradveil.models import build
from gradveil.types import LocalTraining, Observation

DIGITS = load("digits")
VICTIMS, SIZE = 3, 2
BATCH = Batch(
    DIGITS.train.inputs(range(VICTIMS * SIZE)).unflatten(0, (VICTIMS, SIZE)),
    DIGITS.train.labels[: VICTIMS * SIZE].view(VICTIMS, SIZE),
)
MODEL = build("mlp:hidden=32", input_shape=DIGITS.input_shape, num_classes=10, seed=0).eval()


def seen(*defenses: Defense, local: LocalTraining | None = None) -> Observation:
    knowledge = Knowledge.LABELS | Knowledge.LOCAL_TRAINING
    return observe(BATCH, MODEL, F.cross_entropy, defenses=defenses, knowledge=knowledge, local=local)


def test_it_is_the_cosine_of_gradients_one_victim_at_a_time() -> None:
    observation, guess = seen(GaussianNoise(std=0.01)), torch.rand(BATCH.inputs.shape)
    found = agreement(observation, guess, BATCH.labels, runtime=Runtime(chunk=2))
    for victim in range(VICTIMS):
        loss = F.cross_entropy(MODEL(guess[victim]), BATCH.labels[victim])
        gradients = torch.autograd.grad(loss, [p for p in MODEL.parameters() if p.requires_grad])
        mine = torch.cat([g.flatten() for g in gradients]).double()
        theirs = torch.cat([update[victim].flatten() for update in observation.update]).double()
        assert float(found[victim]) == pytest.approx(float(F.cosine_similarity(mine, theirs, dim=0)), abs=1e-5)


@pytest.mark.parametrize(
    "local",
    [
        None,
        LocalTraining(lr=0.1, shares="difference"),
        LocalTraining(lr=0.1, steps=3, local_batch_size=1, shares="weights"),
    ],
    ids=["gradient", "difference", "several steps"],
)
def test_private_images_explain_an_update_that_nobody_changed(local: LocalTraining | None) -> None:
    torch.testing.assert_close(
        agreement(seen(local=local), BATCH.inputs, BATCH.labels), torch.ones(VICTIMS).double(), atol=1e-4, rtol=0
    )
    assert float(agreement(seen(local=local), torch.rand(BATCH.inputs.shape), BATCH.labels).max()) < 0.99


def test_noise_lowers_it_and_an_empty_update_agrees_with_nothing() -> None:
    noisy = agreement(seen(GaussianNoise(std=1.0)), BATCH.inputs, BATCH.labels)
    assert float(noisy.max()) < 0.95
    plain = seen()
    empty = replace(plain, update=tuple(torch.zeros_like(tensor) for tensor in plain.update))
    assert torch.equal(agreement(empty, BATCH.inputs, BATCH.labels), torch.zeros(VICTIMS).double())


@pytest.mark.parametrize(
    "defense",
    [TransformPolicy(policy="3-1-7"), Mixup(k=2, classes=10), InstaHide(k=2, classes=10, mean=DIGITS.mean)],
    ids=["policy", "mixup", "instahide"],
)
def test_an_audit_compares_what_the_model_saw(defense: Defense) -> None:
    result = audit(
        BATCH,
        MODEL,
        F.cross_entropy,
        attack=InvertingGradients(steps=3),
        defenses=[defense],
        knowledge=Knowledge.LABELS,
    )
    torch.testing.assert_close(result.agreement["seen"], torch.ones(VICTIMS).double(), atol=1e-4, rtol=0)
    assert bool((result.agreement["found"] < 0.99).all())


def test_a_search_gets_nearer_with_more_steps_and_an_exact_attack_gets_there() -> None:
    def found(steps: int) -> Tensor:
        attack = InvertingGradients(steps=steps, tv=0.0)
        return audit(BATCH, MODEL, F.cross_entropy, attack=attack, knowledge=Knowledge.LABELS).agreement["found"]

    assert float(found(60).mean()) > float(found(3).mean()) + 0.05
    alone = Batch(BATCH.inputs[:, :1], BATCH.labels[:, :1])
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10)).eval()
    exact = audit(alone, model, F.cross_entropy, attack=Analytic())
    torch.testing.assert_close(exact.agreement["found"], torch.ones(VICTIMS).double(), atol=1e-4, rtol=0)


def test_a_shuffled_order_that_nobody_knows_is_drawn_from_the_seed() -> None:
    local = LocalTraining(lr=0.5, steps=2, local_batch_size=1, shuffled=True, shares="difference")
    first, second = (agreement(seen(local=local), BATCH.inputs, BATCH.labels, seed=seed) for seed in (3, 3))
    assert torch.equal(first, second)
    assert float(first.min()) > 0.5


@pytest.mark.parametrize("knowledge", [Knowledge.LABELS, Knowledge.NOTHING])
def test_images_that_were_read_off_explain_the_update_in_whatever_order_they_come(knowledge: Knowledge) -> None:
    result = audit(BATCH, MODEL, F.cross_entropy, attack=SPEAR(), knowledge=knowledge)
    assert min(map(min, result.scores["psnr"].private)) > 60
    torch.testing.assert_close(result.agreement["found"], torch.ones(VICTIMS).double(), atol=1e-4, rtol=0)


def test_nobody_compares_what_goes_for_one_sample_of_a_batch() -> None:
    attack = Fishing(target=int(BATCH.labels[0, 1]), steps=2)
    assert audit(BATCH, MODEL, F.cross_entropy, attack=attack, knowledge=Knowledge.LABELS).agreement == {}
