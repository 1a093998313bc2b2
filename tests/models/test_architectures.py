import dataclasses
from itertools import product

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from gradveil import models
from gradveil.errors import SpecError, UnknownNameError
from gradveil.models import zoo
from gradveil.models._base import Shape
from gradveil.types import Paper

SPECS = (
    "alexnet",
    "convnet:width=8",
    "convnet:width=4,kernel=5",
    "densenet121:growth=4",
    "densenet121:growth=4,stem=imagenet",
    "lenet",
    "lenet:convolutions=4,activation=tanh,init=uniform-0.3",
    "mlp:hidden=32+16",
    "resnet18:init=default",
    "resnet18:stem=imagenet",
    "resnet20-4",
    "resnet34",
    "vgg16",
    "vgg16:norm=group,groups=24,hidden=256,init=kaiming-uniform",
)
SHAPES: tuple[Shape, ...] = ((3, 32, 32), (1, 28, 28), (1, 8, 8), (4, 9, 13))
HEAVY = ("resnet18", "resnet34", "vgg16")
MARKED = [pytest.param(s, marks=pytest.mark.slow) if s.startswith(HEAVY) else s for s in SPECS]


def count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def test_every_architecture_is_in_the_table() -> None:
    assert {spec.partition(":")[0] for spec in SPECS} == set(models.architectures.names())


@pytest.mark.parametrize("spec", MARKED)
def test_makes_finite_outputs_of_the_right_shape_for_any_image(spec: str) -> None:
    for shape in SHAPES:
        model = models.build(spec, input_shape=shape, num_classes=7).eval()
        outputs = model(torch.rand(2, *shape, generator=torch.Generator().manual_seed(0)))
        assert outputs.shape == (2, 7)
        assert outputs.isfinite().all()
        assert not torch.equal(outputs[0], outputs[1])


@pytest.mark.parametrize("spec", MARKED)
def test_weights_depend_on_the_seed_and_not_on_the_global_random_state(spec: str) -> None:
    architecture, shape = models.architectures.build(spec), (1, 8, 8)
    with torch.random.fork_rng(devices=[]):
        first = architecture.build(input_shape=shape, num_classes=3, seed=5).state_dict()
        torch.rand(3)
        before = torch.get_rng_state()
        again = architecture.build(input_shape=shape, num_classes=3, seed=5).state_dict()
        assert torch.equal(before, torch.get_rng_state())

    assert all(torch.equal(tensor, again[name]) for name, tensor in first.items())
    other = architecture.build(input_shape=shape, num_classes=3, seed=6).state_dict()
    assert not torch.equal(first["fc.weight"], other["fc.weight"])


def test_builds_on_the_cpu_in_train_mode_whatever_the_default_device() -> None:
    with torch.device("meta"):
        model = models.build("lenet", input_shape=(1, 8, 8), num_classes=2)
    assert model.training
    assert {tensor.device.type for tensor in model.state_dict().values()} == {"cpu"}


PUBLISHED = (
    ("resnet18", (3, 32, 32), 10, 11_173_962),
    ("resnet18:stem=imagenet", (3, 224, 224), 1000, 11_689_512),
    ("resnet34", (3, 32, 32), 10, 21_282_122),
    ("resnet34:stem=imagenet", (3, 224, 224), 1000, 21_797_672),
    ("densenet121", (3, 32, 32), 10, 6_956_298),
    ("densenet121:stem=imagenet", (3, 224, 224), 1000, 7_978_856),
    ("vgg16", (3, 32, 32), 10, 14_728_266),
)


@pytest.mark.parametrize(("spec", "shape", "classes", "published"), PUBLISHED)
def test_has_as_many_parameters_as_published(spec: str, shape: Shape, classes: int, published: int) -> None:
    with torch.device("meta"):
        network = models.architectures.build(spec).network(input_shape=shape, num_classes=classes)
    assert count(network) == published


def test_lenet_has_the_layers_of_dlg() -> None:
    first, further = 3 * 12 * 25 + 12, 12 * 12 * 25 + 12
    three = models.build("lenet", input_shape=(3, 32, 32), num_classes=100)
    four = models.build("lenet:4", input_shape=(3, 32, 32), num_classes=10)
    assert count(three) == first + 2 * further + (768 * 100 + 100)
    assert count(four) == first + 3 * further + (768 * 10 + 10)


def test_resnet20_4_has_the_layers_of_ats() -> None:
    stem = 3 * 64 * 9 + 2 * 64
    blocks = 0
    inside = 64
    for outside in (64, 128, 256):
        for _ in range(3):
            shortcut = 0 if inside == outside else inside * outside + 2 * outside
            blocks += 9 * inside * outside + 9 * outside**2 + 4 * outside + shortcut
            inside = outside
    model = models.build("resnet20-4", input_shape=(3, 32, 32), num_classes=100)
    assert count(model) == stem + blocks + 256 * 100 + 100


OUTPUTS: tuple[tuple[str, Shape, dict[str, tuple[int, ...]]], ...] = (
    ("lenet", (3, 32, 32), {"conv1": (12, 16, 16), "conv2": (12, 8, 8), "conv3": (12, 8, 8)}),
    ("lenet", (1, 28, 28), {"flatten": (588,)}),
    ("lenet:4", (3, 32, 32), {"conv2": (12, 8, 8), "conv4": (12, 8, 8), "flatten": (768,)}),
    ("convnet", (3, 32, 32), {"conv6": (256, 32, 32), "pool6": (256, 10, 10), "pool8": (256, 3, 3)}),
    ("convnet:width=32,kernel=5", (3, 32, 32), {"conv1": (32, 32, 32), "conv8": (128, 10, 10), "flatten": (1152,)}),
    ("convnet", (1, 8, 8), {"pool6": (256, 2, 2), "pool8": (256, 1, 1)}),
    (
        "resnet20-4",
        (3, 32, 32),
        {"layer1.2.bn2": (64, 32, 32), "layer2.0.conv1": (128, 16, 16), "avgpool": (256, 1, 1)},
    ),
    ("resnet18", (3, 32, 32), {"conv1": (64, 32, 32), "layer4.1.bn2": (512, 4, 4)}),
    (
        "resnet18:imagenet",
        (3, 224, 224),
        {"conv1": (64, 112, 112), "maxpool": (64, 56, 56), "layer4.1.bn2": (512, 7, 7)},
    ),
    ("densenet121", (3, 32, 32), {"block1.5.conv2": (32, 32, 32), "transition3.pool": (512, 4, 4), "bn": (1024, 4, 4)}),
    ("densenet121:imagenet", (3, 224, 224), {"maxpool": (64, 56, 56), "bn": (1024, 7, 7)}),
    ("vgg16", (3, 32, 32), {"pool1": (64, 16, 16), "pool4": (512, 2, 2), "pool5": (512, 1, 1)}),
    ("alexnet", (3, 32, 32), {"pool1": (64, 16, 16), "conv3": (384, 8, 8), "pool5": (256, 4, 4), "hidden1": (256,)}),
)


@pytest.mark.parametrize(("spec", "shape", "expected"), OUTPUTS)
def test_feature_maps_have_the_sizes_of_the_papers(
    spec: str, shape: Shape, expected: dict[str, tuple[int, ...]]
) -> None:
    with torch.device("meta"):
        network = models.architectures.build(spec).network(input_shape=shape, num_classes=10)
    found = {layer.path: layer.output_shape for layer in models.describe(network, shape)}
    assert {path: found[path] for path in expected} == expected


def test_alexnet_has_the_shapes_of_table_4() -> None:
    model = models.build("alexnet", input_shape=(3, 32, 32), num_classes=10)
    weights = [tuple(p.shape) for name, p in model.named_parameters() if name.endswith("weight")]
    convolutions = [(64, 3, 5, 5), (192, 64, 5, 5), (384, 192, 3, 3), (256, 384, 3, 3), (256, 256, 3, 3)]
    assert weights == [*convolutions, (256, 4096), (10, 256)]


def test_vgg16_shares_groups_that_divide_the_channels() -> None:
    model = models.build("vgg16:norm=group,groups=48", input_shape=(3, 32, 32), num_classes=10)
    norms = [module for module in model.modules() if isinstance(module, nn.GroupNorm)]
    assert [norm.num_groups for norm in norms] == [16] * 13
    assert not any(isinstance(module, nn.BatchNorm2d) for module in model.modules())


@pytest.mark.parametrize("spec", SPECS)
def test_has_no_layer_that_works_in_place_and_ends_in_fc(spec: str) -> None:
    with torch.device("meta"):
        model = models.architectures.build(spec).network(input_shape=(3, 8, 8), num_classes=5)
    assert not any(getattr(module, "inplace", False) for module in model.modules())
    assert models.last_linear(model) == "fc"
    assert model.get_submodule("fc").out_features == 5


@pytest.mark.parametrize("spec", MARKED)
def test_stacked_gradients_equal_those_taken_one_at_a_time(spec: str) -> None:
    model = models.build(spec, input_shape=(3, 8, 8), num_classes=4).double().eval()
    generator = torch.Generator().manual_seed(3)
    inputs = torch.rand(2, 1, 3, 8, 8, generator=generator, dtype=torch.float64)
    labels = torch.tensor([[1], [3]])
    # Larger kernels would only cost memory: the gradient of the first layer goes through all of them.
    small = {name: parameter for name, parameter in model.named_parameters() if parameter.numel() < 100_000}
    parameters = {name: parameter.detach() for name, parameter in small.items()}
    assert "fc.weight" in small

    def loss(values: dict[str, Tensor], images: Tensor, classes: Tensor) -> Tensor:
        return F.cross_entropy(functional_call(model, values, (images,)), classes)

    stacked = vmap(grad(loss), in_dims=(None, 0, 0))(parameters, inputs, labels)

    for victim in range(2):
        outputs = model(inputs[victim])
        alone = torch.autograd.grad(F.cross_entropy(outputs, labels[victim]), list(small.values()))
        difference = sum(
            (stacked[name][victim] - one).square().sum() for name, one in zip(parameters, alone, strict=True)
        )
        size = sum(one.square().sum() for one in alone)
        assert size > 0
        assert difference <= 1e-20 * size


@pytest.mark.parametrize("name", models.architectures.names())
def test_rebuilds_from_its_text_and_names_its_paper(name: str) -> None:
    leaf = models.architectures.get(name)
    changed = leaf(init="uniform-0.3")  # type: ignore[call-arg]
    assert models.architectures.build(models.architectures.describe(changed)) == changed
    assert dataclasses.fields(leaf)[-1].name == "init"
    assert name == "mlp" or isinstance(leaf.paper, Paper)


@pytest.mark.parametrize(("name", "side"), [("lenet", 4), ("mlp", 1), ("convnet", 8), ("resnet18", 8)])
def test_refuses_images_that_are_too_small_and_names_the_smallest(name: str, side: int) -> None:
    models.build(name, input_shape=(3, side, side), num_classes=10)
    smaller: tuple[Shape, ...] = ((3, side - 1, side), (3, side, side - 1))
    for shape in smaller:
        with pytest.raises(SpecError, match=f"at least {side}x{side}" if side > 1 else r"\(channels, height, width\)"):
            models.build(name, input_shape=shape, num_classes=10)


def test_refuses_settings_that_make_no_network() -> None:
    with pytest.raises(ValueError, match="width must be at least 1, got 0"):
        zoo.ConvNet(width=0)
    with pytest.raises(ValueError, match="hidden must be at least 1"):
        zoo.MLP(hidden=(8, 0))
    with pytest.raises(ValueError, match="convolutions must be one of 3, 4, got 5"):
        zoo.LeNet(convolutions=5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"init must be one of uniform-0.5, .*default, got 'zeros'"):
        zoo.ResNet18(init="zeros")  # type: ignore[arg-type]
    with pytest.raises(SpecError, match=r"init must be one of uniform-0.5"):
        models.build("lenet:init=zeros", input_shape=(3, 32, 32), num_classes=10)
    with pytest.raises(SpecError, match="at least 1 class"):
        models.build("lenet", input_shape=(3, 32, 32), num_classes=0)
    with pytest.raises(UnknownNameError, match="did you mean resnet18"):
        models.build("resnet19", input_shape=(3, 32, 32), num_classes=10)


def test_mlp_without_hidden_layers_is_a_linear_classifier() -> None:
    model = models.build("mlp:hidden=", input_shape=(1, 4, 4), num_classes=3)
    assert count(model) == 16 * 3 + 3


def test_activations_are_those_asked_for() -> None:
    for spec, kind in product(["lenet", "mlp"], [nn.Sigmoid, nn.Tanh, nn.ReLU]):
        model = models.build(f"{spec}:activation={kind.__name__.lower()}", input_shape=(1, 8, 8), num_classes=2)
        assert any(isinstance(module, kind) for module in model.modules())
