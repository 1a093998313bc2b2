"""Concealed samples: what they match, where they start, and what leaves."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from defended import SIZE, VICTIMS, flat, loop_gradient, network, private, protected, update_of
from torch import Tensor

from gradveil.client import Client, stacked_network
from gradveil.defenses import DCS2, SPN, StackedNetwork
from gradveil.defenses._concealing import Pairs, Start, _paper_terms, _release_terms, conceal, pair, project
from gradveil.defenses.dcs2 import _PRESETS
from gradveil.engine import Runtime, normalized
from gradveil.errors import DataError
from gradveil.streams import Streams
from gradveil.types import Batch, Protected

STREAMS = Streams(seed=0, purpose="client").bind(VICTIMS)
ALL = torch.ones(VICTIMS, SIZE, dtype=torch.bool)


def stacked(data: Protected, *, pool: Tensor | None = None) -> StackedNetwork:
    client = Client(model=normalized(network(), [0.5], [0.25]), loss=F.cross_entropy, pool=pool)
    runtime = Runtime(precision="float32")
    return stacked_network(client, data, parameters={}, buffers={}, streams=STREAMS, runtime=runtime)


def pairs_of(batch: Batch, *, start: Start = "batch", copies: int = 1, pool: Tensor | None = None) -> Pairs:
    data = Protected.unchanged(batch)
    return pair(stacked(data, pool=pool), data, ALL, start=start, copies=copies, streams=STREAMS)


def cosines(pairs: Pairs, images: Tensor) -> Tensor:
    """Compare the gradients of images and of sensitive samples, one by one."""
    model, found = pairs.network.model, []
    for i in range(len(images)):
        one = loop_gradient(model, images[i], pairs.start_labels[i])
        other = loop_gradient(model, pairs.inputs[i], pairs.labels[i])
        first, second = (torch.cat([tensor.flatten() for tensor in gradient]) for gradient in (one, other))
        found.append(F.cosine_similarity(first, second, dim=0))
    return torch.stack(found)


@pytest.mark.parametrize("start", ["batch", "noise"])
def test_concealed_samples_get_the_gradient_of_sensitive_ones_and_look_different(start: Start) -> None:
    pairs = pairs_of(private(), start=start)
    hidden = conceal(pairs, objective="paper", alpha=0.1, beta=1e-3, steps=60)
    before, after = cosines(pairs, pairs.start_inputs), cosines(pairs, hidden)
    # Outputs near uniform bound what another label can reach: its bias gradient stays at an obtuse angle.
    assert float((after - before).mean()) > 0.3
    assert float((after - before).min()) > 0.1
    assert float((hidden - pairs.inputs).flatten(1).norm(dim=1).min()) > 1.0


def test_the_objectives_are_those_of_paper_and_release() -> None:
    apart = torch.tensor([2.0, 5.0])
    outputs, logits = torch.tensor([[[3.0, 4.0]], [[1.0, 0.0]]]), torch.tensor([[[0.0, 4.0]], [[1.0, 0.0]]])
    paper = torch.tensor([0.3 / 2 + 0.2 * 3, 0.3 / 5])
    release = 1 + torch.tensor([-0.6, -1.5]).exp() + 0.2 * (torch.tensor([3 / 4, 0.0]) - 0.01)
    torch.testing.assert_close(_paper_terms(apart, outputs, logits, 0.3, 0.2), paper)
    torch.testing.assert_close(_release_terms(apart, outputs, logits, 0.3, 0.2), release)


@pytest.mark.parametrize("start", ["batch", "pool", "noise"])
def test_a_concealed_sample_never_starts_with_the_sensitive_label(start: Start) -> None:
    pairs = pairs_of(private(), start=start, copies=3, pool=torch.full((2, 1, 6, 6), 0.5, dtype=torch.float64))
    assert len(pairs.owners) == VICTIMS * SIZE * 3
    assert bool((pairs.start_labels != pairs.labels).all())
    if start == "pool":
        assert bool((pairs.start_inputs == 0.5).all())
    if start == "batch":
        batch = private()
        for owner, image, label in zip(pairs.owners, pairs.start_inputs, pairs.start_labels, strict=True):
            ((row, *_),) = (batch.inputs[owner] == image).flatten(1).all(1).nonzero(as_tuple=True)
            assert batch.labels[owner, row] == label


def test_a_sample_without_a_partner_starts_at_noise() -> None:
    batch = private()
    same = Batch(batch.inputs, torch.ones_like(batch.labels))
    pairs = pairs_of(same)
    torch.testing.assert_close(pairs.start_inputs, pairs_of(same, start="noise").start_inputs)
    assert bool((pairs.start_labels != 1).all())


def test_starting_from_a_pool_needs_one() -> None:
    with pytest.raises(DataError, match="pool"):
        update_of(DCS2(start="pool", steps=1))


def test_projection_is_the_closed_form_and_never_points_back() -> None:
    generator = torch.Generator().manual_seed(0)
    changed, plain = (torch.randn(200, 50, generator=generator) for _ in range(2))
    projected = project((changed,), (plain,), margin=0.0)[0]
    assert bool(((projected.double() * plain.double()).sum(1) >= 0).all())
    for i in range(200):
        v = max(0.0, -float(changed[i] @ plain[i]) / float(plain[i] @ plain[i]))
        torch.testing.assert_close(projected[i], changed[i] + v * plain[i])
    against = (changed * plain).sum(1) < 0
    margin = project((changed,), (plain,), margin=0.5)[0]
    needed = (-(changed * plain).sum(1) / plain.square().sum(1)).clamp_min(0.5)
    torch.testing.assert_close(margin[against], (changed + needed[:, None] * plain)[against])
    assert torch.equal(margin[~against], changed[~against])


@pytest.mark.parametrize("length", [1e-6, 1.0, 1e6])
def test_rounding_does_not_turn_a_long_projected_gradient_back(length: float) -> None:
    generator = torch.Generator().manual_seed(1)
    plain = torch.randn(8, 300_000, generator=generator)
    changed = length * (torch.randn(8, 300_000, generator=generator) - torch.linspace(0, 10, 8)[:, None] * plain)
    projected = project((changed,), (plain,), margin=0.0)[0].double()
    product = (projected * plain.double()).sum(1)
    assert bool((product >= 0).all())
    against = (changed.double() * plain.double()).sum(1) < 0
    assert bool((product[against] <= 1e-5 * changed[against].double().norm(dim=1) * plain[against].norm(dim=1)).all())


def test_shares_the_mixed_gradient_of_batch_and_concealed_samples() -> None:
    defense = DCS2(steps=3, alpha=0.2, projection="none", concealed=2, mixing=0.4)
    batch, shared = private(), flat(update_of(defense))
    data = Protected.unchanged(batch)
    client = Client(model=network(), loss=F.cross_entropy)
    own = stacked_network(
        client, data, parameters={}, buffers={}, streams=STREAMS, runtime=Runtime(precision="float32")
    )
    pairs = pair(own, data, ALL, start="batch", copies=2, streams=STREAMS)
    hidden = conceal(pairs, objective="paper", alpha=0.2, beta=1e-3, steps=3)
    for victim in range(VICTIMS):
        mine = pairs.owners == victim
        images, model = hidden[mine].flatten(0, 1), network()
        terms = [
            (1.0, loop_gradient(model, batch.inputs[victim], batch.labels[victim])),
            (0.4, loop_gradient(model, images, pairs.start_labels[mine].flatten())),
            (0.6, loop_gradient(model, images, pairs.labels[mine].flatten())),
        ]
        expected = sum(weight * torch.cat([t.flatten() for t in gradient]) for weight, gradient in terms)
        torch.testing.assert_close(shared[victim], expected)


def test_protects_the_marked_samples_of_the_marked_victims_alone() -> None:
    batch, defense = private(), DCS2(steps=2)
    mask = torch.zeros(VICTIMS, SIZE, dtype=torch.bool)
    mask[1, 2] = True
    plain = flat(update_of(batch=batch))
    shared = flat(update_of(defense, batch=replace(batch, sensitive=mask)))
    assert [torch.equal(shared[v], plain[v]) for v in range(VICTIMS)] == [True, False, True]
    by_class = flat(update_of(replace(defense, classes=(int(batch.labels[1, 2]),)), batch=batch))
    torch.testing.assert_close(by_class[1], shared[1])


def test_agrees_with_the_plain_gradient_in_every_case() -> None:
    plain = flat(update_of())
    for settings in (DCS2(steps=5), DCS2(steps=5, preset="imprint"), DCS2(steps=5, objective="release", start="noise")):
        assert bool(((flat(update_of(settings)) * plain).sum(1) >= 0).all())


def test_tells_the_server_of_the_original_samples_alone() -> None:
    seen = protected([DCS2(steps=1, concealed=2)]).observation
    assert seen.input_shape[0] == SIZE
    assert seen.labels is not None
    assert torch.equal(seen.labels, private().labels)


def test_leaves_the_private_head_of_another_defense_alone() -> None:
    both, alone = protected([SPN(bits=8), DCS2(steps=2)]), protected([SPN(bits=8)])
    assert both.kept.keys() == alone.kept.keys()
    assert all(torch.equal(both.kept[name], alone.kept[name]) for name in alone.kept)
    assert not torch.allclose(flat(both.observation.update), flat(alone.observation.update))


def test_presets_are_those_of_the_paper() -> None:
    assert _PRESETS == {"matching": (0.1, 0.001, 1000), "imprint": (30, 100, 100), "generative": (1, 10, 1000)}
    with pytest.raises(ValueError, match="mixing"):
        DCS2(mixing=1.5)
    with pytest.raises(ValueError, match="concealed"):
        DCS2(concealed=0)
