import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import grad, vmap

from gradveil import models
from gradveil.errors import UnknownNameError, UnsupportedModelError
from gradveil.models import layers


def tiny(spec: str = "lenet:activation=tanh") -> nn.Module:
    return models.build(spec, input_shape=(1, 8, 8), num_classes=3).double().eval()


def images(*shape: int) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def weights(model: nn.Module) -> dict[str, Tensor]:
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def hooks(model: nn.Module) -> int:
    return sum(len(module._forward_hooks) for module in model.modules())


def test_the_default_layer_is_the_last_linear_one() -> None:
    model = tiny("mlp:hidden=6+5")
    assert layers.find(model) == layers.last_linear(model) == "fc"
    assert layers.first_linear(model) == "hidden1"
    assert layers.parameters_of(model) == ("fc.weight", "fc.bias")
    assert layers.parameters_of(model, "hidden2") == ("hidden2.weight", "hidden2.bias")


def test_finds_layers_inside_layers() -> None:
    model = tiny("resnet20-4")
    assert layers.find(model, "layer2.0.downsample.0") == "layer2.0.downsample.0"
    inside = layers.parameters_of(model, "layer1.0")
    assert len(inside) == 6
    assert all(name.startswith("layer1.0.") for name in inside)


def test_a_path_is_not_the_beginning_of_another() -> None:
    model = nn.ModuleDict({"conv1": nn.Conv2d(1, 1, 1), "conv10": nn.Conv2d(1, 1, 1)})
    assert layers.parameters_of(model, "conv1") == ("conv1.weight", "conv1.bias")


def test_an_unknown_layer_is_answered_with_near_ones_or_the_outermost() -> None:
    model = tiny("resnet20-4")
    with pytest.raises(UnknownNameError, match=r"no layer called 'layer1.0.conv3'; did you mean layer1"):
        layers.find(model, "layer1.0.conv3")
    with pytest.raises(
        UnknownNameError, match=r"known are avgpool, bn1, conv1, fc, flatten, layer1, layer2, layer3, relu$"
    ):
        layers.find(model, "quux")
    with pytest.raises(UnsupportedModelError, match=r"no nn.Linear"):
        layers.find(nn.Sequential(nn.ReLU()))


def test_reads_what_enters_and_leaves_a_layer() -> None:
    model, inputs = tiny(), images(2, 1, 8, 8)
    outputs, taps = layers.run_with(model, {}, inputs, paths=["conv1", "fc"])
    assert isinstance(model, nn.Sequential)
    torch.testing.assert_close(taps["conv1"].inputs, inputs)
    torch.testing.assert_close(taps["conv1"].outputs, model[0](inputs))
    torch.testing.assert_close(taps["fc"].inputs, model[:-1](inputs))
    torch.testing.assert_close(taps["fc"].outputs, outputs)
    torch.testing.assert_close(outputs, model(inputs))


def test_runs_with_the_weights_it_is_given_and_leaves_the_model_alone() -> None:
    model, inputs = tiny(), images(2, 1, 8, 8)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    outputs, taps = layers.run_with(model, {"fc.weight": torch.zeros(3, 48).double()}, inputs, paths=["fc"])
    torch.testing.assert_close(outputs, model.get_parameter("fc.bias").expand(2, 3))
    torch.testing.assert_close(taps["fc"].outputs, outputs)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert hooks(model) == 0


def test_readings_can_be_differentiated_for_many_victims_at_once() -> None:
    model, inputs, labels = tiny(), images(3, 2, 1, 8, 8), torch.tensor([[0, 1], [1, 2], [2, 2]])
    shared = weights(model)

    def loss(values: dict[str, Tensor], pixels: Tensor, classes: Tensor) -> tuple[Tensor, Tensor]:
        outputs, taps = layers.run_with(model, values, pixels, paths=["conv2", "fc"])
        features = taps["fc"].inputs
        return F.cross_entropy(outputs, classes) + taps["conv2"].outputs.square().sum() + features.sum(), features

    stacked, features = vmap(grad(loss, has_aux=True), in_dims=(None, 0, 0))(shared, inputs, labels)

    assert features.shape == (3, 2, 48)
    assert isinstance(model, nn.Sequential)
    for victim in range(3):
        middle = model[:3](inputs[victim])
        deep = model[3:-1](middle)
        total = F.cross_entropy(model[-1](deep), labels[victim]) + middle.square().sum() + deep.sum()
        alone = torch.autograd.grad(total, list(model.parameters()))
        torch.testing.assert_close(features[victim], deep)
        for name, expected in zip(shared, alone, strict=True):
            torch.testing.assert_close(stacked[name][victim], expected)


def test_readings_work_with_a_stack_of_weights_and_a_second_derivative() -> None:
    model, inputs = tiny("mlp:hidden=6,activation=tanh"), images(2, 1, 1, 8, 8)
    stack = {name: torch.stack([w, 2 * w]) for name, w in weights(model).items()}

    def matching(pixels: Tensor, values: dict[str, Tensor]) -> Tensor:
        def loss(trial: dict[str, Tensor]) -> Tensor:
            return layers.run_with(model, trial, pixels, paths=["fc"])[1]["fc"].outputs.square().sum()

        return sum((g.square().sum() for g in grad(loss)(values).values()), torch.zeros(()).double())

    stacked = vmap(grad(matching))(inputs, stack)

    for victim in range(2):
        alone = grad(matching)(inputs[victim], {name: w[victim] for name, w in stack.items()})
        torch.testing.assert_close(stacked[victim], alone)
        assert alone.abs().max() > 0


def test_outputs_can_be_differentiated_with_respect_to_a_reading() -> None:
    model, inputs = tiny(), images(2, 1, 8, 8)
    outputs, taps = layers.run_with(model, {}, inputs, paths=["fc"])
    (slope,) = torch.autograd.grad(outputs[:, 1].sum(), taps["fc"].inputs)
    torch.testing.assert_close(slope, model.get_parameter("fc.weight")[1].expand(2, -1))


def test_an_activation_that_works_in_place_does_not_change_the_reading() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, 2))
    inputs = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
    _, taps = layers.run_with(model, {}, inputs, paths=["0"])
    assert taps["0"].outputs.min() < 0
    torch.testing.assert_close(taps["0"].outputs, model[0](inputs))


def test_hooks_are_removed_after_an_error() -> None:
    model = tiny()
    with pytest.raises(RuntimeError):
        layers.run_with(model, {}, images(2, 5, 8, 8), paths=["conv1", "fc"])
    assert hooks(model) == 0


def test_one_reading_inside_another_disturbs_neither() -> None:
    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))

        def forward(self, inputs: Tensor) -> Tensor:
            outputs, taps = layers.run_with(self.inner, {}, inputs, paths=["0"])
            return outputs + taps["0"].outputs.sum()

    model, inputs = Outer(), torch.rand(2, 3, generator=torch.Generator().manual_seed(0))
    outputs, taps = layers.run_with(model, {}, inputs, paths=["inner.0"])
    torch.testing.assert_close(taps["inner.0"].outputs, model.inner[0](inputs))
    torch.testing.assert_close(outputs, model(inputs))
    assert hooks(model) == 0


def test_a_layer_that_does_not_run_or_is_no_tensor_function_is_an_error() -> None:
    class Lazy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.spare, self.cell = nn.Linear(2, 2), nn.Linear(2, 2), nn.LSTM(2, 2)

        def forward(self, inputs: Tensor) -> Tensor:
            return torch.add(self.used(inputs), self.cell(inputs)[0])

    with pytest.raises(UnsupportedModelError, match="'spare' did not run"):
        layers.run_with(Lazy(), {}, torch.rand(1, 2), paths=["spare"])
    with pytest.raises(UnsupportedModelError, match="LSTM at 'cell' does not turn one tensor into another"):
        layers.run_with(Lazy(), {}, torch.rand(1, 2), paths=["cell"])


@pytest.mark.parametrize("spec", ["lenet", "resnet20-4", "vgg16"])
def test_describes_every_layer_that_holds_parameters(spec: str) -> None:
    model = tiny(spec).train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    table = layers.describe(model, (1, 8, 8))
    assert sum(line.parameters for line in table) == sum(p.numel() for p in model.parameters())
    assert table[-1] == ("fc", "Linear", (3,), sum(p.numel() for p in model.get_submodule("fc").parameters()))
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert hooks(model) == 0
