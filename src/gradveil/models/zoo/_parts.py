"""Small parts that several networks share."""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Final, Literal, TypeAlias

from torch import nn

Activation: TypeAlias = Literal["sigmoid", "tanh", "relu"]

Stem: TypeAlias = Literal["cifar", "imagenet"]
"""`cifar`: a 3×3 convolution that keeps the size. `imagenet`: a 7×7 convolution and a max pool that quarter it."""

Size: TypeAlias = tuple[int, int]
"""Height and width of a feature map."""

_ACTIVATIONS: Final[Mapping[Activation, type[nn.Module]]] = {"sigmoid": nn.Sigmoid, "tanh": nn.Tanh, "relu": nn.ReLU}


def activate(name: Activation) -> nn.Module:
    """Make an activation that works out of place, as `torch.func` needs it."""
    return _ACTIVATIONS[name]()


def chain(layers: Mapping[str, nn.Module]) -> nn.Sequential:
    """Make a network that runs named layers one after the other."""
    return nn.Sequential(OrderedDict(layers))


def perceptron(
    features: int, hidden: Sequence[int], num_classes: int, *, activation: Activation = "relu"
) -> dict[str, nn.Module]:
    """Make the layers that lead from a feature map to the outputs.

    Args:
        features: of the flattened map.
        hidden: widths of the linear layers `hidden1`, `hidden2`, ... before the last, `fc`.
        num_classes: length of the output.
        activation: after every layer but the last.
    """
    layers: dict[str, nn.Module] = {"flatten": nn.Flatten()}
    for number, width in enumerate(hidden, start=1):
        layers[f"hidden{number}"] = nn.Linear(features, width)
        layers[f"hidden{number}_act"] = activate(activation)
        features = width
    return {**layers, "fc": nn.Linear(features, num_classes)}


def window(size: Size, length: int) -> Size:
    """Return the pooling window: `length` in both directions, but never longer than the feature map.

    Example:
        >>> window((10, 2), 3)
        (3, 2)
    """
    return min(length, size[0]), min(length, size[1])


def pooled(size: Size, length: int) -> Size:
    """Return the size of a feature map after pooling with that window and no overlap.

    Example:
        >>> pooled((32, 32), 3), pooled((2, 2), 3)
        ((10, 10), (1, 1))
    """
    height, width = window(size, length)
    return size[0] // height, size[1] // width


def stem_convolution(stem: Stem, channels: int, width: int) -> nn.Conv2d:
    """Make the first convolution of a residual or dense network."""
    if stem == "cifar":
        return nn.Conv2d(channels, width, kernel_size=3, padding=1, bias=False)
    return nn.Conv2d(channels, width, kernel_size=7, stride=2, padding=3, bias=False)


def stem_pool() -> nn.MaxPool2d:
    """Make the max pool of the `imagenet` stem."""
    return nn.MaxPool2d(kernel_size=3, stride=2, padding=1)
