"""Small malicious models, and honest ones beside them."""

import copy
import math

import torch
from torch import Tensor, nn


def honest(seed: int = 0, *, width: int = 32, classes: int = 10) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        layers = (nn.Flatten(), nn.Linear(64, width), nn.ReLU(), nn.Linear(width, classes))
        return nn.Sequential(*layers)


def functional(kind: str, size: int) -> Tensor:
    """One row: what an imprint module measures of an image."""
    generator = torch.Generator().manual_seed(7)
    if kind == "average":
        return torch.full((size,), 1 / size)
    if kind == "cosine":
        return torch.cos(math.pi / size * (torch.arange(size) + 0.5) * 4) * 16 / size
    drawn = torch.randn(size, generator=generator)
    return (drawn - drawn.mean()) / drawn.std() / math.sqrt(size)


def imprint(
    kind: str = "cosine", *, bins: int = 10, gain: float = 1e-3, sparse: bool = False, noise: float = 0.0
) -> nn.Module:
    """Put bins of one measurement before an honest model; `sparse` scales each row by the width of its bin."""
    cuts = torch.distributions.Normal(0, 1).icdf((torch.arange(bins) + 0.5) / bins)
    row = functional(kind, 64)
    widths = torch.cat([cuts.diff(), cuts.diff()[-1:]]) if sparse else torch.ones(bins)
    first, second = nn.Linear(64, bins), nn.Linear(bins, 64)
    with torch.no_grad():
        first.weight.copy_(gain * row / widths[:, None])
        first.weight.add_(
            noise * first.weight.abs().mean() * torch.randn(bins, 64, generator=torch.Generator().manual_seed(3))
        )
        first.bias.copy_(-gain * cuts / widths)
        second.weight.fill_(1 / gain)
    return nn.Sequential(nn.Flatten(), first, nn.ReLU(), second, *list(honest())[1:])


def trapped(scale: float = 0.95, *, width: int = 32) -> nn.Module:
    """Make the positive half of each row a smaller copy of the negative half."""
    model = honest(width=width)
    layer = model[1]
    assert isinstance(layer, nn.Linear)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for row in layer.weight:
            places = torch.randperm(64, generator=generator)
            negative = torch.randn(32, generator=generator).abs() * 0.5
            row[places[:32]] = -negative
            row[places[32:]] = scale * negative[torch.randperm(32, generator=generator)]
    return model


def class_fishing(*, far: float = 1000.0) -> nn.Module:
    """Let samples of class 3 alone have a gradient."""
    model = honest()
    head = model[3]
    assert isinstance(head, nn.Linear)
    with torch.no_grad():
        others = torch.arange(10) != 3
        head.weight[others] *= 0.5
        head.bias[others] = far
    return model


def feature_fishing(*, factor: float = 300.0) -> nn.Module:
    """Split the samples by feature 5 of the last layer."""
    model = honest()
    head = model[3]
    assert isinstance(head, nn.Linear)
    with torch.no_grad():
        head.weight.zero_()
        head.weight[:, 5] = factor * torch.linspace(1, 2, 10)
        head.bias.copy_(-0.3 * head.weight[:, 5])
    return model


def one_class_left() -> nn.Module:
    """Keep the weights of class 3 alone."""
    model = copy.deepcopy(honest())
    head = model[3]
    assert isinstance(head, nn.Linear)
    with torch.no_grad():
        head.weight[torch.arange(10) != 3] = 0
    return model
