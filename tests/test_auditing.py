from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import pytest
import torch
import torch.nn.functional as F
from tiny_clients import (
    CLASSES,
    EVERYTHING,
    SIZE,
    VICTIMS,
    Mirror,
    Negate,
    SecretBias,
    SecretShift,
    ServerScale,
    Twice,
    autograd,
    network,
    private,
)
from torch import Tensor, nn
from typing_extensions import override

from gradveil._regions import perturbation_ratios, regions
from gradveil._scoring import Reference
from gradveil._serving import Granted, serve
from gradveil.attacks import ActiveAttack, Analytic, Attack, Imprint, InvertingGradients, TrapWeights
from gradveil.auditing import Audit, Judging, attack_and_judge, audit
from gradveil.client import Client
from gradveil.defenses import Adversary, DataDefense, Defense, GaussianNoise, InstaHide, Pruning
from gradveil.engine import Runtime
from gradveil.errors import DataError, KnowledgeError
from gradveil.metrics import LPIPS, MSE, PSNR, Metric
from gradveil.record import Numbers
from gradveil.streams import Streams
from gradveil.types import Auxiliary, Batch, Knowledge, LocalTraining, Observation, Paper, Protected, Reconstruction

PAPER = Paper(title="a test", authors="nobody", year=2024, url="")


@dataclass(frozen=True, kw_only=True)
class Scripted(Attack):
    """Return what the test wrote, and remember what it was shown."""

    paper: ClassVar[Paper] = PAPER

    inputs: Tensor
    labels: Tensor | None = None
    calls: list[tuple[Observation, Streams]] = field(default_factory=list)

    @override
    def run(self, observation: Observation, *, streams: Streams, runtime: Runtime) -> Reconstruction:
        self.calls.append((observation, streams))
        rows = [key[0] for key in streams.keys]
        return Reconstruction(
            inputs=self.inputs[rows],
            labels=None if self.labels is None else self.labels[rows],
            objective=torch.zeros(len(rows)),
            diverged=torch.zeros(len(rows), dtype=torch.bool),
            steps=torch.ones(len(rows), dtype=torch.long),
        )


@dataclass(frozen=True)
class Mix(DataDefense):
    """Mix every image with its neighbour, which weighs less."""

    adversary: ClassVar[Adversary] = Adversary(reason="a test")

    @override
    def protect(self, data: Protected, *, pool: Tensor | None, streams: Streams) -> Protected:
        neighbour = data.inputs.roll(-1, 1)
        numbers = data.origin.roll(-1, 1)
        weights = torch.tensor([0.3, 0.7], dtype=data.inputs.dtype).expand(*data.inputs.shape[:2], 2)
        inputs = 0.7 * data.inputs + 0.3 * neighbour
        return replace(data, inputs=inputs, origin=torch.cat([numbers, data.origin], 2), weights=weights)


def reference() -> Reference:
    streams = Streams(seed=9, purpose="test").bind(1)
    return Reference(streams.uniform("inputs", (20, 2, 4, 4))[0].double(), torch.arange(20) % CLASSES)


def audited(attack: Attack, batch: Batch | None = None, **settings: Any) -> Audit:
    return audit(batch or private(), network(), F.cross_entropy, attack=attack, metrics=(PSNR(), MSE()), **settings)


def mse(guess: Tensor, truth: Tensor) -> Tensor:
    return (guess - truth).square().mean((2, 3, 4))


def shuffled(inputs: Tensor) -> tuple[Tensor, Tensor]:
    """Bring every victim's samples into an order of its own."""
    orders = torch.stack([torch.arange(SIZE).roll(shift) for shift in range(1, VICTIMS + 1)])
    return torch.stack([images[order] for images, order in zip(inputs, orders, strict=True)]), orders


def test_a_guess_in_another_order_is_brought_into_that_of_the_batch() -> None:
    batch = private()
    noise = 0.01 * Streams(seed=3).bind(VICTIMS).normal("noise", batch.inputs.shape[1:]).double()
    blurred = (batch.inputs + noise).clamp(0, 1)
    guess, orders = shuffled(blurred)
    labels = batch.labels.gather(1, orders)
    labels[0, 0] = (labels[0, 0] + 1) % CLASSES
    result = audited(Scripted(inputs=guess, labels=labels), batch)
    assert torch.equal(result.guess.inputs, blurred)
    found = torch.tensor(result.scores["mse"].private)
    torch.testing.assert_close(found, mse(blurred, batch.inputs).float(), rtol=0, atol=1e-6)
    assert result.label_accuracy is not None
    torch.testing.assert_close(result.label_accuracy, torch.tensor([0.8, 1.0, 1.0]))
    assert torch.equal(result.truth, batch.inputs)
    assert torch.equal(result.labels, batch.labels)


def test_scores_are_taken_against_the_private_images_and_against_what_the_model_saw() -> None:
    batch = private()
    seen = torch.cat([batch.inputs.flip(-1), 1 - batch.inputs], 1)
    truth = torch.cat([batch.inputs, batch.inputs], 1)
    result = audited(Scripted(inputs=seen.flip(1)), batch, defenses=[Mirror()])
    assert torch.equal(result.truth, truth)
    assert torch.equal(result.labels, torch.cat([batch.labels, batch.labels], 1))
    assert result.scores["mse"].protected == [[0.0] * 2 * SIZE] * VICTIMS
    found = torch.tensor(result.scores["mse"].private)
    torch.testing.assert_close(found, mse(seen, truth).float(), rtol=0, atol=1e-6)


def test_a_mixture_is_compared_with_its_heaviest_component() -> None:
    batch = private()
    result = audited(Scripted(inputs=batch.inputs), batch, defenses=[Mix()])
    assert torch.equal(result.truth, batch.inputs)
    assert result.scores["mse"].private == [[0.0] * SIZE] * VICTIMS
    assert min(min(row) for row in result.scores["mse"].protected) > 0


def test_a_sample_without_a_guess_is_grey() -> None:
    batch = private()
    result = audited(Scripted(inputs=batch.inputs[:, :2]), batch)
    assert torch.equal(result.guess.inputs[:, :2], batch.inputs[:, :2])
    assert bool((result.guess.inputs[:, 2:] == 0.5).all())


def test_labels_that_were_granted_or_not_guessed_earn_nothing() -> None:
    batch = private()
    granted = audited(Scripted(inputs=batch.inputs, labels=batch.labels), batch, knowledge=Knowledge.LABELS)
    assert granted.label_accuracy is None
    assert audited(Scripted(inputs=batch.inputs), batch).label_accuracy is None


def test_without_a_reference_nobody_is_identified_and_there_are_no_null_lines() -> None:
    attack = Scripted(inputs=private().inputs)
    result = audited(attack)
    assert result.identification == {}
    assert result.scores["psnr"].nulls == {}
    assert len(attack.calls) == 1


def test_a_given_network_adds_a_view_to_identify_in() -> None:
    batch = private()
    result = audited(Scripted(inputs=batch.inputs), batch, reference=reference(), extractor=lambda x: x.flatten(1))
    assert result.identification["features"].ranks == [[0.0] * batch.inputs.shape[1]] * len(batch.inputs)
    assert "features" not in audited(Scripted(inputs=batch.inputs), batch, reference=reference()).identification


def test_with_a_reference_every_score_stands_beside_its_null_lines() -> None:
    batch, known = private(), reference()
    result = audited(Scripted(inputs=batch.inputs), batch, reference=known)
    nulls = result.scores["mse"].nulls
    lines = {"grey": VICTIMS, "own-mean": VICTIMS, "mean-image": VICTIMS, "other-of-class": 20 * VICTIMS}
    assert {name: len(rows) for name, rows in nulls.items()} == lines | {"random-gradient": VICTIMS}
    grey = mse(torch.full_like(batch.inputs, 0.5), batch.inputs)
    torch.testing.assert_close(torch.tensor(nulls["grey"]), grey.float(), rtol=0, atol=1e-6)
    mean = mse(known.inputs.mean(0).expand_as(batch.inputs), batch.inputs)
    torch.testing.assert_close(torch.tensor(nulls["mean-image"]), mean.float(), rtol=0, atol=1e-6)
    assert set(result.identification) == {"pixels", "blurred", "correlation"}
    assert result.identification["pixels"].ranks == [[0.0] * SIZE] * VICTIMS
    assert result.identification["pixels"].decoys == 20
    assert result.identification["pixels"].nulls.keys() == nulls.keys()


def judged(attack: Attack, judging: Judging, batch: Batch | None = None, **settings: Any) -> Audit:
    client = Client(model=network(), loss=F.cross_entropy, **settings)
    served = serve(batch or private(), client, attack, granted=Granted(), seed=0)
    return attack_and_judge(served, attack, judging=judging, seed=0, runtime=Runtime(chunk=VICTIMS))


def test_an_extractor_adds_its_features_to_the_views() -> None:
    batch = private()
    judging = Judging(reference=reference(), extractor=lambda images: images.mean((2, 3)), decoys=7, null_victims=0)
    result = judged(Scripted(inputs=batch.inputs), judging, batch)
    assert result.identification["features"].ranks == [[0.0] * SIZE] * VICTIMS
    assert result.identification["features"].decoys == 7


@pytest.mark.parametrize(("asked", "expected"), [(0, 0), (2, 2), (8, VICTIMS)])
def test_the_random_gradient_has_the_norms_of_the_real_one_and_nothing_else_of_it(asked: int, expected: int) -> None:
    attack = Scripted(inputs=private().inputs)
    result = judged(attack, Judging(reference=reference(), null_victims=asked))
    assert len(result.scores["psnr"].nulls.get("random-gradient", [])) == expected
    if not expected:
        assert len(attack.calls) == 1
        return
    (real, usual), (random, other) = attack.calls
    assert not {*usual.keys} & {*other.keys}
    for shared, drawn in zip(real.update, random.update, strict=True):
        clean, noise = shared[:expected].flatten(1), drawn.flatten(1)
        torch.testing.assert_close(noise.norm(dim=1), clean.norm(dim=1), rtol=1e-5, atol=0)
        assert not torch.allclose(noise, clean, rtol=0.1)


def test_random_gradients_are_attacked_in_the_stack_of_the_real_ones() -> None:
    attack, batch = Scripted(inputs=private().inputs), private()
    result = audited(attack, batch, reference=reference(), runtime=Runtime(chunk=2 * VICTIMS))
    (seen, streams), *others = attack.calls
    assert not others
    assert seen.victims == 2 * VICTIMS
    for draw in (streams.normal("start", (2,)), seen.update[0]):
        assert not (draw[:VICTIMS] == draw[VICTIMS:]).any()
    assert len(result.guess.inputs) == VICTIMS


def test_an_attack_on_a_random_gradient_reconstructs_nothing() -> None:
    batch = Batch(private().inputs[:, :1], private().labels[:, :1])
    attack = InvertingGradients(steps=60)
    result = audited(attack, batch, knowledge=Knowledge.LABELS, reference=reference())
    scores = result.scores["psnr"]
    assert max(max(row) for row in scores.nulls["random-gradient"]) < min(min(row) for row in scores.private)


def test_ratios_compare_the_gradient_with_what_was_done_to_it() -> None:
    attack = Scripted(inputs=private().inputs)
    assert audited(attack).ratios == {}
    noisy = audited(attack, defenses=[GaussianNoise(std=0.5)])
    evidence = noisy.step.evidence
    assert list(noisy.ratios) == list(noisy.step.observation.names)
    for ratio, clean, shared in zip(noisy.ratios.values(), evidence.clean, evidence.update, strict=True):
        for victim in range(VICTIMS):
            expected = clean[victim].norm() / (shared[victim] - clean[victim]).norm()
            torch.testing.assert_close(ratio[victim], expected)
    turned = audited(attack, defenses=[Negate()]).ratios
    assert all(torch.allclose(ratio, torch.tensor(0.5).double()) for ratio in turned.values())


def test_a_parameter_that_one_victim_alone_has_perturbed_has_a_ratio() -> None:
    clean, shared = torch.tensor([[3.0, 4.0], [3.0, 4.0]]), torch.tensor([[3.0, 4.0], [3.0, 9.0]])
    assert perturbation_ratios({"w": clean}, {"w": shared})["w"].tolist() == [torch.inf, 1.0]


@pytest.mark.parametrize("defense", [Mirror(), SecretShift(), SecretBias(), Twice()], ids=lambda d: type(d).__name__)
def test_a_defense_before_the_update_is_compared_with_the_plain_gradient_of_the_private_batch(defense: Defense) -> None:
    batch = private()
    result = audited(Scripted(inputs=batch.inputs), batch, defenses=[defense, GaussianNoise(std=0.01)])
    shared = result.step.evidence.update
    assert list(result.ratios) == list(result.step.observation.names)
    for victim in range(VICTIMS):
        plain = autograd(network(), batch, victim)
        for ratio, before, after in zip(result.ratios.values(), plain, shared, strict=True):
            torch.testing.assert_close(ratio[victim], before.norm() / (after[victim] - before).norm())


def test_parameters_that_the_plain_network_does_not_have_are_not_compared() -> None:
    assert audited(Scripted(inputs=private().inputs), defenses=[ServerScale()]).ratios == {}


def test_what_a_defense_leaves_alone_beside_what_it_changes_has_an_infinite_ratio() -> None:
    one, two = torch.tensor([[1.0]]), torch.tensor([[2.0]])
    ratios = perturbation_ratios({"a": one, "b": one, "d": one}, {"a": one, "b": two, "c": two})
    assert {name: ratio.tolist() for name, ratio in ratios.items()} == {"a": [torch.inf], "b": [1.0]}
    assert perturbation_ratios({"a": one}, {"a": one}) == {}


def test_shared_weights_are_compared_by_their_change() -> None:
    attack = Scripted(inputs=private().inputs)
    changes, weights = (
        audited(attack, defenses=[Twice()], local=LocalTraining(lr=0.5, shares=shares)).ratios
        for shares in ("difference", "weights")
    )
    for name, ratio in changes.items():
        torch.testing.assert_close(weights[name], ratio)


def test_a_layer_is_placed_by_its_bias_and_by_its_weights_if_that_was_left_alone() -> None:
    ratios = {
        "a.weight": torch.tensor([50.0, 60.0, 70.0]),
        "a.bias": torch.tensor([0.1, 0.9, 500.0]),
        "b.weight": torch.tensor([1.0, 9.9, 10.0]),
        "b.bias": torch.full((3,), torch.inf),
        "c.weight": torch.tensor([10.0, 10.0, 0.0]),
        "scale": torch.tensor([torch.inf] * 3),
    }
    assert regions(ratios) == {"a": "green", "b": "white", "c": "red", "scale": "red"}


# Malicious servers


def flat(width: int = 200) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Flatten(), nn.Linear(32, width), nn.ReLU(), nn.Linear(width, CLASSES)).double()


@pytest.mark.parametrize("attack", [Imprint(bins=400), TrapWeights()], ids=lambda attack: type(attack).__name__)
def test_clients_train_on_the_network_that_a_malicious_server_sends(attack: ActiveAttack) -> None:
    model, batch = flat(), private()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    public = Auxiliary(inputs=reference().inputs)
    settings = {"auxiliary": public, "knowledge": Knowledge.AUXILIARY}
    result = audit(batch, model, F.cross_entropy, attack=attack, metrics=(PSNR(),), **settings)  # type: ignore[arg-type]
    sent = result.step.observation.model
    assert sent is not model
    assert all(torch.equal(model.state_dict()[name], tensor) for name, tensor in before.items())
    assert any(not torch.equal(tensor, before.get(name, torch.zeros(0))) for name, tensor in sent.state_dict().items())
    exact = sum(value > 60 for row in result.scores["psnr"].private for value in row)
    assert exact >= VICTIMS * SIZE // 2


def test_public_images_reach_the_server_only_if_they_were_granted() -> None:
    public = Auxiliary(inputs=reference().inputs)
    with pytest.raises(KnowledgeError, match="imprint takes its bins from auxiliary images"):
        audit(private(), flat(), F.cross_entropy, attack=Imprint(), auxiliary=public)
    granted = audited(Scripted(inputs=private().inputs), auxiliary=public, knowledge=Knowledge.AUXILIARY)
    assert granted.step.observation.auxiliary is public
    assert audited(Scripted(inputs=private().inputs), auxiliary=public).step.observation.auxiliary is None


def test_an_honest_server_sends_the_network_as_it_is() -> None:
    model = network()
    result = audit(private(), model, F.cross_entropy, attack=Scripted(inputs=private().inputs))
    assert result.step.observation.model is model


# Pixels beyond [0, 1]


def flipped(knowledge: Knowledge) -> Audit:
    batch = Batch(private().inputs[:, :1].float(), private().labels[:, :1])
    model = network().float()
    defenses = [InstaHide(k=1, mean=(0.3, 0.6))]
    attack = InvertingGradients(steps=150, tv=1e-6)
    return audit(batch, model, F.cross_entropy, attack=attack, defenses=defenses, knowledge=knowledge, seed=2)


def test_flipped_pixels_are_compared_on_their_own_range() -> None:
    batch = private()
    shown = Scripted(inputs=torch.full_like(batch.inputs, 0.5))
    result = audited(shown, batch, defenses=[InstaHide(k=1, mean=(0.3, 0.6))])
    seen = result.step.evidence.protected.inputs
    low, high = (torch.tensor(bound).double()[:, None, None] for bound in ([-0.4, 0.0], [1.0, 1.2]))
    assert float(seen.min()) < 0
    assert float(seen.max()) > 1
    expected = mse((0.5 - low) / (high - low), (seen - low) / (high - low))
    torch.testing.assert_close(torch.tensor(result.scores["mse"].protected), expected.float(), rtol=0, atol=1e-6)


def test_who_knows_that_pixels_leave_their_range_finds_them_there() -> None:
    known, unknown = flipped(Knowledge.LABELS | Knowledge.DEFENSES), flipped(Knowledge.LABELS)
    assert known.guess.protected is not None
    assert unknown.guess.protected is None
    assert float(known.guess.protected.min()) < 0
    assert torch.equal(known.guess.protected.clamp(0, 1), known.guess.inputs)
    scores = [torch.tensor(found.scores["psnr"].protected).mean() for found in (known, unknown)]
    assert scores[0] > scores[1] + 20


def test_the_null_attack_looks_in_the_same_range() -> None:
    seen: list[Observation] = []

    @dataclass(frozen=True, kw_only=True)
    class Watched(Scripted):
        @override
        def run(self, observation: Observation, *, streams: Streams, runtime: Runtime) -> Reconstruction:
            seen.append(observation)
            return Scripted.run(self, observation, streams=streams, runtime=runtime)

    defenses = [InstaHide(k=1, mean=(0.3, 0.6))]
    attack = Watched(inputs=private().inputs)
    audited(attack, defenses=defenses, knowledge=Knowledge.DEFENSES, reference=reference())
    images = private().inputs[0]
    outputs = [observation.model(images) for observation in seen]
    assert [observation.victims for observation in seen] == [1, 4, 2 * VICTIMS], "measured twice, then in earnest"
    for found in outputs[1:]:
        torch.testing.assert_close(found, outputs[0])
    assert not torch.allclose(outputs[0], network()(images))


# Certificates


def test_the_auditor_certifies_with_the_plain_update_what_the_attack_cannot() -> None:
    batch = Batch(private().inputs[:, :1], private().labels[:, :1])
    clean, noisy = (
        audit(batch, flat(), F.cross_entropy, attack=Analytic(), defenses=defenses, metrics=(MSE(),))
        for defenses in ((), (GaussianNoise(std=1e-4),))
    )
    assert torch.equal(clean.certificate["condition"], torch.zeros(VICTIMS).double())
    plain = [autograd(flat(), batch, victim) for victim in range(VICTIMS)]
    shared = noisy.step.evidence.update
    for victim, (weight, bias, *_) in enumerate(plain):
        condition = (shared[1][victim] - bias).norm() / bias.norm()
        relative = (shared[0][victim] - weight).norm() / weight.norm()
        torch.testing.assert_close(noisy.certificate["condition"][victim], condition)
        torch.testing.assert_close(noisy.certificate["error bound"][victim], (condition + relative) / (1 - condition))
        error = (noisy.guess.inputs[victim] - batch.inputs[victim]).norm() / batch.inputs[victim].norm()
        assert error <= noisy.certificate["error bound"][victim]


def test_an_attack_that_proves_nothing_has_no_certificate() -> None:
    assert audited(Scripted(inputs=private().inputs)).certificate == {}


@pytest.mark.parametrize("defenses", [(), (GaussianNoise(std=0.01), Pruning(fraction=0.5))], ids=["none", "two"])
@pytest.mark.parametrize("chunk", [1, 2, None])
def test_a_victims_result_does_not_depend_on_the_stack(chunk: int | None, defenses: tuple[Defense, ...]) -> None:
    batch, attack = private(), InvertingGradients(steps=8, tv=1e-3)
    settings: dict[str, Any] = {"defenses": defenses, "reference": reference()}
    together = audited(attack, batch, runtime=Runtime(chunk=chunk), **settings)
    alone = audited(attack, batch.select([0]), runtime=Runtime(chunk=1), **settings)
    torch.testing.assert_close(together.guess.inputs[:1], alone.guess.inputs, rtol=0, atol=1e-9)
    for name, scores in together.scores.items():
        own = alone.scores[name]
        assert_close(scores.private[:1], own.private)
        assert_close(scores.protected[:1], own.protected)
        assert_close(scores.nulls["random-gradient"][:1], own.nulls["random-gradient"])
        assert_close(scores.nulls["other-of-class"][::VICTIMS], own.nulls["other-of-class"])
    for view, found in together.identification.items():
        assert found.ranks[:1] == alone.identification[view].ranks


def assert_close(found: Numbers, expected: Numbers) -> None:
    torch.testing.assert_close(torch.tensor(found), torch.tensor(expected), rtol=0, atol=5e-6)


def test_an_audit_repeats_itself_and_another_seed_gives_another_guess() -> None:
    attack = InvertingGradients(steps=3)
    first, second, other = (audited(attack, reference=reference(), seed=seed) for seed in (4, 4, 5))
    assert torch.equal(first.guess.inputs, second.guess.inputs)
    assert first.scores == second.scores
    assert first.identification == second.identification
    assert not torch.equal(first.guess.inputs, other.guess.inputs)


def test_an_attack_is_refused_what_it_was_not_granted() -> None:
    class Needy(Scripted):
        requires = Knowledge.BUFFERS | Knowledge.AUXILIARY

    with pytest.raises(KnowledgeError, match="Needy needs buffers, auxiliary, but the adversary knows labels"):
        audited(Needy(inputs=private().inputs), knowledge=Knowledge.LABELS)


def test_an_audit_says_what_it_did() -> None:
    attack, runtime = Scripted(inputs=private().inputs), Runtime(chunk=2)
    result = audited(attack, runtime=runtime)
    assert result.attack is attack
    assert result.runtime is runtime
    assert result.guess.chunk == 2
    assert set(result.seconds) == {"client", "attack", "judge"}


# The wall


@pytest.mark.parametrize("defenses", [(), (Mirror(),), (GaussianNoise(),)], ids=str)
def test_an_attack_never_touches_the_private_images(defenses: tuple[Defense, ...]) -> None:
    batch = private()
    attack = Scripted(inputs=torch.zeros(VICTIMS, SIZE, 2, 4, 4).double())
    result = audited(attack, batch, defenses=defenses, knowledge=EVERYTHING, reference=reference())
    private_tensors = (batch.inputs, result.step.evidence.protected.inputs, result.truth)
    secrets = {tensor.untyped_storage().data_ptr() for tensor in private_tensors}
    assert len(attack.calls) == 3, "measured twice, then in earnest"
    for observation, _ in attack.calls:
        reached = list(reachable(observation))
        assert len(reached) > len(observation.update)
        assert not secrets & {tensor.untyped_storage().data_ptr() for tensor in reached}
        assert not any(same_numbers(tensor, secret) for tensor in reached for secret in private_tensors)


def test_the_search_for_tensors_can_find_one() -> None:
    hidden = torch.ones(2)
    model = nn.Linear(1, 1)
    model.register_buffer("hidden", hidden)
    assert any(tensor is hidden for tensor in reachable({"deep": [model]}))
    assert any(tensor is hidden for tensor in reachable(lambda: hidden))


def same_numbers(tensor: Tensor, secret: Tensor) -> bool:
    return tensor.numel() == secret.numel() and torch.equal(tensor.flatten().double(), secret.flatten())


def reachable(value: object, seen: set[int] | None = None) -> Iterator[Tensor]:
    """Find every tensor that code with an object in its hands can get at: fields, containers, modules, closures."""
    seen = set() if seen is None else seen
    if id(value) in seen or isinstance(value, type | str | int | float):
        return
    seen.add(id(value))
    if isinstance(value, Tensor):
        yield value
    inner: list[object] = [value.grad] if isinstance(value, Tensor) else []
    inner += list(value.values()) if isinstance(value, dict) else []
    inner += list(value) if isinstance(value, list | tuple | set) else []
    inner += [cell.cell_contents for cell in getattr(value, "__closure__", None) or ()]
    inner += list(getattr(value, "__dict__", {}).values())
    inner += [getattr(value, name, None) for name in getattr(value, "__slots__", ()) if not name.startswith("__")]
    for item in inner:
        yield from reachable(item, seen)


def test_a_metric_that_cannot_score_says_so_before_the_attack() -> None:
    attack = Scripted(inputs=private().inputs)
    with pytest.raises(DataError, match="cannot read LPIPS weights from nowhere"):
        audit(private(), network(), F.cross_entropy, attack=attack, metrics=(PSNR(), LPIPS(weights="nowhere")))
    assert attack.calls == []


@dataclass(frozen=True, kw_only=True)
class Darkest(Metric):
    """A metric of somebody else."""

    title: ClassVar[str] = "darkest"
    unit: ClassVar[str] = ""
    higher_is_better: ClassVar[bool] = False

    @override
    def score(self, guess: Tensor, truth: Tensor) -> Tensor:
        return (guess - truth).flatten(1).amin(1)


@dataclass(frozen=True, kw_only=True)
class Brightest(Darkest):
    """Another one of the same file."""


def test_metrics_of_your_own_are_told_apart() -> None:
    attack = Scripted(inputs=private().inputs)
    result = audit(private(), network(), F.cross_entropy, attack=attack, metrics=(Darkest(), Brightest()))
    assert set(result.scores) == {"Darkest", "Brightest"}
