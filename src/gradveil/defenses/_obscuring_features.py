"""What an extractor's layers say about images, as one vector, and the layer sets of LODA."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn
from typing_extensions import override

from gradveil.errors import DataError, UnsupportedModelError, unknown_name
from gradveil.streams import Streams

Variant: TypeAlias = Literal["loda1", "loda2", "loda3"]
Reading: TypeAlias = Literal["paper", "program"]

INPUT = ":input"
"""Ends the name of a layer of which the input is meant: `fc:input` are the pooled features of a ResNet."""


class LayerFeatures(nn.Module):
    """Maps images (N, C, H, W) to the outputs of some layers, (N, F), in eval mode and without gradients of weights.

    Runs no further than to the last of the layers. The network given is copied, not changed.

    Args:
        model: any network of one tensor.
        layers: module paths, such as `layer1.0.conv1`; `fc:input` means what enters `fc`.
    """

    def __init__(self, model: nn.Module, layers: Sequence[str]) -> None:
        super().__init__()
        if not layers:
            raise UnsupportedModelError("a feature extractor needs at least one layer to read; name some")
        paths = [path for path, _ in model.named_modules() if path]
        for layer in layers:
            if layer.removesuffix(INPUT) not in paths:
                raise unknown_name("layer", layer.removesuffix(INPUT), paths)
        self.model = copy.deepcopy(model).requires_grad_(False).eval()
        self.layers = tuple(layers)

    @override
    def train(self, mode: bool = True) -> "LayerFeatures":
        """Stay in eval mode."""
        return super().train(False)

    @override
    def forward(self, images: Tensor) -> Tensor:
        """Return (N, F)."""
        return torch.cat([output.flatten(1) for output in self.outputs(images)], 1)

    def outputs(self, images: Tensor) -> tuple[Tensor, ...]:
        """Return what the layers give, (N, ...) each, in their order and as they lie in memory."""
        seen: dict[str, Tensor] = {}
        handles = [self._hook(layer, seen) for layer in self.layers]
        try:
            self.model(images)
        except _AllSeenError:
            pass
        except RuntimeError as error:
            if not any(word in str(error) for word in ("shape", "channels")):
                raise
            raise self._misfit(images, seen, error) from error
        finally:
            for handle in handles:
                handle.remove()
        missing = [layer for layer in self.layers if layer not in seen]
        if missing:
            raise UnsupportedModelError(f"layer '{missing[0]}' did not run on these images; name a layer that does")
        return tuple(seen[layer] for layer in self.layers)

    def _misfit(self, images: Tensor, seen: dict[str, Tensor], error: RuntimeError) -> DataError:
        """Say which layer did not come; networks with linear layers often take images of one size alone."""
        layer = next(name for name in self.layers if name not in seen)
        came, reason = tuple(images.shape[1:]), str(error).partition("\n")[0]
        return DataError(f"layer '{layer}' takes no images of {came} ({reason}); name layers before it")

    def _hook(self, layer: str, seen: dict[str, Tensor]) -> Any:
        module = self.model.get_submodule(layer.removesuffix(INPUT))
        if layer.endswith(INPUT):
            return module.register_forward_pre_hook(_reader(layer, seen, len(self.layers), from_input=True))
        return module.register_forward_hook(_reader(layer, seen, len(self.layers), from_input=False))


class _AllSeenError(Exception):
    """Ends a forward pass of which nothing more is needed."""


def _reader(layer: str, seen: dict[str, Tensor], count: int, *, from_input: bool) -> Callable[..., None]:
    def read(_module: nn.Module, arguments: tuple[Any, ...], *outputs: Any) -> None:
        value = arguments[0] if from_input else outputs[0]
        if not isinstance(value, Tensor):
            raise UnsupportedModelError(f"layer '{layer}' does not turn one tensor into another; name another")
        # A copy, because an activation that works in place must not change what was read.
        seen[layer] = value.clone()
        if len(seen) == count:
            raise _AllSeenError

    return read


def layer_set(model: nn.Module, variant: Variant, reading: Reading) -> tuple[str, ...]:
    """List the layers of a LODA variant, as the paper says or as the authors' program has them.

    Convolutions are counted in the order of the modules, shortcuts included. Paper: the first five; all; the last five
    and the linear layers. Program: the first five; the first fifteen, which leaves out the last stage of a ResNet18;
    the fifteenth to eleventh last, the last stage and the pooled features.

    Example:
        >>> model = nn.Sequential(*(nn.Conv2d(1, 1, 1) for _ in range(6)), nn.Flatten(), nn.Linear(4, 2))
        >>> layer_set(model, "loda3", "paper")
        ('1', '2', '3', '4', '5', '7')
    """
    convolutions = [path for path, module in model.named_modules() if isinstance(module, nn.Conv2d)]
    linears = [path for path, module in model.named_modules() if isinstance(module, nn.Linear)]
    if not convolutions:
        raise UnsupportedModelError(f"{type(model).__name__} has no nn.Conv2d to align; name layers by their paths")
    last_stage = "layer4" if "layer4" in dict(model.named_modules()) else convolutions[-1]
    sets: dict[tuple[Variant, Reading], list[str]] = {
        ("loda1", "paper"): convolutions[:5],
        ("loda2", "paper"): convolutions,
        ("loda3", "paper"): [*convolutions[-5:], *linears],
        ("loda1", "program"): convolutions[:5],
        ("loda2", "program"): convolutions[:15],
        ("loda3", "program"): [*convolutions[-15:-10], last_stage, *(f"{path}{INPUT}" for path in linears[-1:])],
    }
    return tuple(sets[variant, reading])


@dataclass(frozen=True, slots=True)
class Extractor:
    """A network for features, known by the name or the checkpoint that records hold; two of one name are equal.

    Args:
        name: such as `resnet18-cifar100`, or the path of a checkpoint of `gradveil train extractor`.
        model: eats images in [0, 1]; None until the checkpoint is loaded, by `gradveil.obscuring.bound`.
        channels: of the images that it was trained on; 0 where nobody says.
    """

    name: str
    model: nn.Module | None = field(default=None, compare=False, repr=False)
    channels: int = field(default=0, compare=False, repr=False)

    def __str__(self) -> str:
        return self.name

    def network(self, images: Tensor) -> nn.Module:
        """Return the model, after checking that it is there and takes images (N, C, H, W) like these."""
        if self.model is None:
            raise DataError(f"the extractor {self.name} is not loaded; pass the defense through obscuring.bound first")
        if self.channels and self.channels != images.shape[1]:
            came = f"{images.shape[1]} channels, the extractor {self.name} takes {self.channels}"
            raise DataError(f"images have {came}; train one on images of that kind")
        return self.model


def untrained(channels: int, *, c: float, like: Tensor) -> nn.Module:
    """Make six random convolutions and a linear layer, always the same, for trials without a trained extractor.

    Args:
        channels: of the images.
        c: weight of looking different, which the strength of the features follows: stronger ones would draw an
            obscured image onto the private one, weaker ones would keep nothing of it.
        like: number format and device.
    """
    widths = (channels, 16, 16, 16, 32, 32, 32)
    layers: list[nn.Module] = []
    strength = 0.6 * (max(c, 1.0) / 20) ** 0.5
    streams = Streams(purpose="untrained-extractor").bind(1)
    for number, (inside, outside) in enumerate(pairwise(widths)):
        convolution = nn.utils.skip_init(nn.Conv2d, inside, outside, 3, padding=1, stride=2 if number == 3 else 1)
        layers += [
            _filled(convolution, streams.fork(f"{number}"), gain=strength * (2 / (9 * inside)) ** 0.5),
            nn.ReLU(),
        ]
        strength = 1.0
    linear = nn.utils.skip_init(nn.Linear, widths[-1], 10)
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), _filled(linear, streams, gain=widths[-1] ** -0.5)]
    return nn.Sequential(*layers).to(like)


@torch.no_grad()
def _filled(layer: nn.Module, streams: Streams, *, gain: float) -> nn.Module:
    for name, parameter in layer.named_parameters():
        drawn = streams.normal(name, parameter.shape)[0] * gain
        parameter.copy_(drawn if name == "weight" else torch.zeros_like(drawn))
    return layer
