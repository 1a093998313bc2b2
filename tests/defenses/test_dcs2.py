"""Concealed samples: what they match, where they start, and what leaves."""

import copy
import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from defended import SIZE, VICTIMS, flat, loop_gradient, network, private, protected, update_of
from torch import Tensor

from gradveil.client import Client, stacked_network
from gradveil.defenses import DCS2, SPN, StackedNetwork
from gradveil.defenses._concealing import (
    RECIPES,
    Objective,
    Pairs,
    Preset,
    Recipe,
    Start,
    _paper_terms,
    _release_terms,
    choose_sensitive,
    conceal,
    pair,
    project,
)
from gradveil.engine import Runtime, normalized
from gradveil.errors import DataError
from gradveil.streams import Streams
from gradveil.types import Batch, LocalTraining, Protected

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
    hidden = conceal(pairs, Recipe("paper", 0.1, 1e-3, 60))
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


def literally_scaled(pairs: Pairs, index: int, *, alpha: float, beta: float, steps: int) -> Tensor:
    """Conceal one sample as the formula is written, one image at a time."""
    model, parameters = pairs.network.model, list(pairs.network.model.parameters())
    inputs, labels, start_inputs, start_labels = (
        tensor[index] for tensor in (pairs.inputs, pairs.labels, pairs.start_inputs, pairs.start_labels)
    )
    aim = torch.cat([tensor.flatten() for tensor in loop_gradient(model, inputs, labels)])
    logits, unit = model(inputs).detach(), (model(start_inputs) - model(inputs)).norm().detach()
    image, trial = (inputs - 0.5) / 0.25, ((start_inputs - 0.5) / 0.25).requires_grad_()
    optimizer = torch.optim.Adam([trial], lr=0.1)
    best, kept = torch.inf, trial.detach().clone()
    for step in range(steps + 1):
        outputs = model(trial * 0.25 + 0.5)
        loss = F.cross_entropy(outputs, start_labels)
        found = torch.cat([g.flatten() for g in torch.autograd.grad(loss, parameters, create_graph=True)])
        value = (
            alpha / (trial - image).norm()
            + beta * (outputs - logits).norm() / unit
            - F.cosine_similarity(found, aim, dim=0)
        )
        if value < best:
            best, kept = value.item(), trial.detach().clone()
        optimizer.param_groups[0]["lr"] *= 0.1 if step in {int(steps * part) for part in (3 / 8, 5 / 8, 7 / 8)} else 1
        (trial.grad,) = torch.autograd.grad(value, [trial])
        optimizer.step()
    return kept * 0.25 + 0.5


def test_the_scaled_objective_measures_logits_in_units_of_their_distance_at_the_start() -> None:
    pairs = pairs_of(private())
    hidden = conceal(pairs, Recipe("scaled", 2.0, 0.7, 8))
    for index in (0, 5, 10):
        torch.testing.assert_close(hidden[index], literally_scaled(pairs, index, alpha=2.0, beta=0.7, steps=8))
    unscaled = conceal(pairs, Recipe("paper", 2.0, 0.7, 8))
    assert float((hidden - unscaled).abs().flatten(1).amax(1).median()) > 1e-2


def with_small_logits(pairs: Pairs) -> Pairs:
    model = copy.deepcopy(pairs.network.model)
    *_, weight, bias = model.parameters()
    with torch.no_grad():
        weight.mul_(1e-4)
        bias.mul_(1e-4)
    return replace(pairs, network=replace(pairs.network, model=model))


def test_only_the_scaled_objective_brings_small_logits_together() -> None:
    pairs = with_small_logits(pairs_of(private()))
    alpha, beta = RECIPES["imprint"].alpha, RECIPES["imprint"].beta

    def left(objective: Objective) -> Tensor:
        hidden = conceal(pairs, Recipe(objective, alpha, beta, 40))
        truth, begun, found = (pairs.network.model(x.flatten(0, 1)) for x in (pairs.inputs, pairs.start_inputs, hidden))
        shares: Tensor = (found - truth).norm(dim=1) / (begun - truth).norm(dim=1)
        return shares.detach()

    assert float(left("scaled").max()) < 0.5
    assert float(left("paper").median()) > 0.9


def test_a_start_with_the_sensitive_logits_keeps_the_unit_of_the_paper_and_others_their_own() -> None:
    pairs = pairs_of(private())
    starts = torch.cat([pairs.inputs[:1], pairs.start_inputs[1:]])
    same = replace(pairs, start_inputs=starts)
    scaled, paper = (conceal(same, Recipe(objective, 2.0, 0.7, 4)) for objective in ("scaled", "paper"))
    assert bool(scaled.isfinite().all())
    assert torch.equal(scaled[0], paper[0])
    torch.testing.assert_close(scaled[1:], conceal(pairs, Recipe("scaled", 2.0, 0.7, 4))[1:])


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
    changed, plain = (torch.randn(200, 50, generator=generator, dtype=torch.float64) for _ in range(2))
    projected = project((changed,), (plain,), margin=0.0)[0]
    assert bool(((projected * plain).sum(1) >= 0).all())
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
    assert bool((product[against] <= 2e-5 * changed[against].double().norm(dim=1) * plain[against].norm(dim=1)).all())


def test_agrees_with_a_plain_gradient_that_somebody_else_computed() -> None:
    generator = torch.Generator().manual_seed(2)
    plain = torch.randn(64, 1000, generator=generator)
    sideways = torch.randn(64, 1000, generator=generator)
    sideways -= (sideways * plain).sum(1, keepdim=True) / plain.square().sum(1, keepdim=True) * plain
    # Some point clearly back, some hardly, and some hardly forward.
    changed = 30 * sideways + torch.linspace(-1e-4, 1e-4, 64)[:, None] * plain
    changed[:8] -= plain[:8]
    projected = project((changed,), (plain,), margin=0.0)[0].double()
    worst = plain.double() - 2e-6 * plain.norm(dim=1, keepdim=True) * F.normalize(projected, dim=1)
    assert bool(((projected * worst).sum(1) >= 0).all())
    assert float(((changed.double() * worst).sum(1) < 0).double().mean()) > 0.4


@pytest.mark.parametrize("objective", ["paper", "scaled"])
def test_shares_the_mixed_gradient_of_batch_and_concealed_samples(objective: Objective) -> None:
    defense = DCS2(steps=3, alpha=0.2, projection="none", concealed=2, mixing=0.4, objective=objective)
    batch, shared = private(), flat(update_of(defense))
    data = Protected.unchanged(batch)
    client = Client(model=network(), loss=F.cross_entropy)
    own = stacked_network(
        client, data, parameters={}, buffers={}, streams=STREAMS, runtime=Runtime(precision="float32")
    )
    pairs = pair(own, data, ALL, start="batch", copies=2, streams=STREAMS)
    hidden = conceal(pairs, Recipe(objective, 0.2, 1e-3, 3))
    for victim in range(VICTIMS):
        mine = pairs.owners == victim
        images, model = hidden[mine].flatten(0, 1), network()
        terms = [
            (1.0, loop_gradient(model, batch.inputs[victim], batch.labels[victim])),
            (2 * 0.4, loop_gradient(model, images, pairs.start_labels[mine].flatten())),  # twice as many as samples
            (2 * 0.6, loop_gradient(model, images, pairs.labels[mine].flatten())),
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
    for settings in (
        DCS2(steps=5),
        DCS2(steps=5, preset="imprint", objective="scaled"),
        DCS2(steps=5, objective="release", start="noise"),
    ):
        assert bool(((flat(update_of(settings)) * plain).sum(1) >= 0).all())


@pytest.mark.parametrize(
    ("preset", "objective"), [("matching", "paper"), ("imprint", "scaled"), ("generative", "paper")]
)
def test_each_preset_has_its_objective(preset: Preset, objective: Objective) -> None:
    as_it_comes = DCS2(preset=preset, steps=3)
    torch.testing.assert_close(flat(update_of(as_it_comes)), flat(update_of(replace(as_it_comes, objective=objective))))


def test_concealed_samples_weigh_as_one_of_the_batch_each_or_together_as_the_batch() -> None:
    heavy = DCS2(steps=3, concealed=2, projection="none")
    plain = flat(update_of())
    for sensitive in (1, SIZE):
        own = replace(heavy, fraction=sensitive / SIZE)
        together = flat(update_of(replace(own, weight="batch"))) - plain
        each = flat(update_of(own)) - plain
        torch.testing.assert_close(each, together * 2 * sensitive / SIZE)


def test_weighs_the_same_where_losses_are_summed() -> None:
    for defense in (DCS2(steps=3, fraction=0.25), DCS2(steps=3, fraction=0.25, weight="batch")):
        mean, total = (
            flat(protected([defense], local=LocalTraining(reduction=way)).observation.update) for way in ("mean", "sum")
        )
        torch.testing.assert_close(total, SIZE * mean)


def test_a_share_of_the_batch_is_rounded_up() -> None:
    data = Protected.unchanged(private())
    counts = [
        choose_sensitive(data, None, fraction=fraction, classes=(), streams=STREAMS).sum(1).tolist()
        for fraction in (0.0, 0.01, 0.5, 0.51, 1.0)
    ]
    assert counts == [[count] * VICTIMS for count in (0, 1, 2, 3, 4)]


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
    found = {preset: (recipe.alpha, recipe.beta, recipe.steps) for preset, recipe in RECIPES.items()}
    assert found == {"matching": (0.1, 0.001, 1000), "imprint": (30, 100, 100), "generative": (1, 10, 1000)}
    with pytest.raises(ValueError, match="mixing"):
        DCS2(mixing=1.5)
    with pytest.raises(ValueError, match="concealed"):
        DCS2(concealed=0)
    with pytest.raises(ValueError, match="alpha"):
        DCS2(alpha=math.nan)
    with pytest.raises(DataError, match=r"classes lie in 0 \.\. 3, got 12"):
        update_of(DCS2(steps=1, classes=(12,)))
