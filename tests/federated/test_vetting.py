"""Vetting: malicious models are found and named, honest ones pass."""

import copy
import doctest
import itertools
import warnings

import pytest
import torch
from malicious_models import class_fishing, feature_fishing, honest, imprint, one_class_left, trapped
from torch import nn

from gradveil.federated import _probing, vetting
from gradveil.federated.vetting import Probe, VettingError, compare_models, fingerprint, vet


def samples(count: int = 16) -> Probe:
    generator = torch.Generator().manual_seed(2)
    inputs = torch.rand(count, 1, 8, 8, generator=generator)
    return Probe(inputs=inputs, labels=torch.randint(10, (count,), generator=generator))


def kinds(model: nn.Module, **beside: object) -> set[str]:
    return {finding.kind for finding in vet(model, **beside).items}  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("measurement", "bins", "gain", "sparse"),
    list(itertools.product(["average", "cosine", "normal"], [3, 10, 100], [1e-3, 1.0, 30.0], [False, True])),
)
def test_an_imprint_module_is_found_whatever_its_settings(
    measurement: str, bins: int, gain: float, sparse: bool
) -> None:
    found = vet(imprint(measurement, bins=bins, gain=gain, sparse=sparse))
    assert found.verdict == "malicious"
    (first, *_) = [finding for finding in found.items if finding.kind == "imprint" and finding.where == "1"]
    assert f"{bins} of {bins} outputs" in first.reason
    assert f"{bins} different thresholds" in first.reason


def test_a_little_noise_does_not_hide_an_imprint_module() -> None:
    assert "imprint" in kinds(imprint(noise=0.1))


def test_some_bins_hidden_in_an_honest_layer_are_found() -> None:
    model = honest(width=64)
    layer = model[1]
    assert isinstance(layer, nn.Linear)
    with torch.no_grad():
        layer.weight[10:15] = layer.weight[10] * torch.tensor([1.0, 2.0, 0.5, 3.0, 1.0])[:, None]
    (finding,) = vet(model).items
    assert (finding.kind, finding.where) == ("imprint", "1")
    assert "5 of 64" in finding.reason


def test_outputs_that_learned_the_same_are_suspicious_but_not_refused() -> None:
    model = honest(width=64)
    layer = model[1]
    assert isinstance(layer, nn.Linear)
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        layer.weight[10:15] = layer.weight[10] + 0.005 * torch.randn(5, 64, generator=generator)
        layer.bias[10:15] = -0.3
    assert vet(model).verdict == "suspicious"
    with torch.no_grad():
        layer.bias[10:15] = torch.linspace(-0.5, 0.5, 5)
    assert vet(model).verdict == "malicious"


@pytest.mark.parametrize("scale", [0.5, 0.9, 0.99])
def test_trap_weights_are_found(scale: float) -> None:
    (finding,) = vet(trapped(scale)).items
    assert (finding.kind, finding.where, finding.severity) == ("trap-weights", "1", "malicious")
    assert f"times {scale:.3g}" in finding.reason


@pytest.mark.parametrize("model", [class_fishing(), class_fishing(far=50), feature_fishing(), one_class_left()])
def test_fishing_heads_are_found(model: nn.Module) -> None:
    found = vet(model)
    assert found.verdict == "malicious"
    assert ("fishing", "3") in {(finding.kind, finding.where) for finding in found.items}


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("width", [4, 32, 128])
def test_honest_models_pass(seed: int, width: int) -> None:
    assert vet(honest(seed, width=width), probe=samples()).items == ()


def test_an_honest_model_passes_after_training() -> None:
    model = honest()
    probe = samples(32)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    for _ in range(100):
        optimizer.zero_grad()
        probe.loss(model(probe.inputs), probe.labels).backward()
        optimizer.step()
    assert vet(model, honest()).verdict == "clean"


def test_small_and_empty_layers_pass() -> None:
    empty = nn.Linear(64, 3)
    nn.init.zeros_(empty.weight)
    model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(2, 9), empty)
    assert vet(model).items == ()


def test_numbers_that_are_none_are_found() -> None:
    model = honest()
    with torch.no_grad():
        next(model.parameters())[0, 0] = float("nan")
    assert "numbers" in kinds(model)


def test_a_reference_shows_what_was_inserted_and_what_was_taken_out() -> None:
    findings = vet({"a.weight": torch.eye(4), "b.weight": torch.eye(4)}, {"a.weight": torch.eye(3), "c": torch.eye(3)})
    assert [(finding.kind, finding.where) for finding in findings.items] == [
        ("architecture", "b.weight"),
        ("architecture", "c"),
        ("architecture", "a.weight"),
    ]


def test_a_reference_shows_a_layer_that_was_replaced() -> None:
    before, after = honest(), copy.deepcopy(honest())
    with torch.no_grad():
        for parameter in after.parameters():
            parameter.mul_(1.01)
    assert vet(after, before).items == ()
    with torch.no_grad():
        after.get_parameter("1.weight").copy_(3 * honest(seed=1).get_parameter("1.weight"))
    (finding,) = vet(after, before).items
    assert (finding.kind, finding.where, finding.severity) == ("change", "1.weight", "suspicious")


def test_own_samples_show_an_abnormal_loss() -> None:
    probe = samples()
    probe.labels[probe.labels == 3] = 4
    assert "loss" not in kinds(class_fishing(), probe=probe)
    probe.labels[7] = 3
    assert {"loss", "fishing"} <= kinds(class_fishing(), probe=probe)


def test_own_samples_show_a_gradient_that_singles_one_out() -> None:
    """A first layer that lets one bright image alone through."""
    model, probe = honest(), samples()
    layer = model[1]
    assert isinstance(layer, nn.Linear)
    with torch.no_grad():
        layer.weight.abs_()
        probe.inputs[3] = 1.0
        layer.bias.copy_(-(0.9 * layer.weight.sum(1)))
    findings = [finding for finding in vet(model, probe=probe).items if finding.kind == "isolation"]
    assert [(finding.where, finding.severity) for finding in findings] == [("1", "suspicious")]
    assert "one of 16 own samples" in findings[0].reason


def test_the_probe_leaves_the_model_alone() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.Linear(8, 10)).train()
    before = copy.deepcopy(model.state_dict())
    vet(model, probe=samples())
    assert model.training
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_policy_refuses_warns_or_continues() -> None:
    found = vet(trapped())
    with pytest.raises(VettingError, match="trap-weights in 1"):
        found.enforce("refuse")
    with pytest.warns(UserWarning, match="is malicious"):
        found.enforce("warn")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found.enforce("continue")
        vet(honest()).enforce("refuse")
    with pytest.raises(ValueError, match="policy must be"):
        found.enforce("panic")  # type: ignore[arg-type]


def test_suspicion_alone_is_no_reason_to_refuse() -> None:
    found = vet(
        {"a.weight": 5 * torch.eye(3), "b.weight": torch.eye(3)}, {"a.weight": torch.eye(3), "b.weight": torch.eye(3)}
    )
    assert found.verdict == "suspicious"
    with pytest.warns(UserWarning, match="suspicious"):
        found.enforce("refuse")


def test_clients_see_that_they_were_sent_different_models() -> None:
    same, other = fingerprint(honest()), fingerprint(honest(seed=1))
    assert compare_models({"a": same, "b": fingerprint(copy.deepcopy(honest()))}).items == ()
    (finding,) = compare_models({"a": same, "b": other, "c": same}).items
    assert (finding.kind, finding.where) == ("different-models", "b")


def test_a_fingerprint_sees_every_bit_and_name() -> None:
    state = {"w": torch.zeros(3), "count": torch.tensor(1)}
    changed = [
        {**state, "w": torch.tensor([0.0, 0.0, 1e-45])},
        {**state, "w": torch.zeros(3, 1)},
        {**state, "w": torch.zeros(3).half()},
        {**state, "count": torch.tensor(2)},
        {"v": torch.zeros(3), "count": torch.tensor(1)},
    ]
    assert len({fingerprint(one) for one in [state, *changed]}) == 6


def test_examples_run() -> None:
    for module in (vetting, _probing):
        assert doctest.testmod(module).failed == 0
