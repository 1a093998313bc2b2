"""Tiny networks, one per way of using parameters, and the path that the engine is to take for each."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gradveil.engine import normalized

SHAPE = (3, 6, 6)
CLASSES = 4


class Case(NamedTuple):
    """A network, whether the fast path takes it, and whether it can be trained on a batch of one."""

    name: str
    make: Callable[[], nn.Module]
    fast: bool
    alone: bool = True


def build(case: Case) -> nn.Module:
    """Make a network in float64 whose weights, norms and running statistics are all far from trivial."""
    with torch.random.fork_rng():
        torch.manual_seed(len(case.name))
        model = case.make().double()
        for name, parameter in model.named_parameters():
            if "norm" in name or parameter.ndim == 1:
                parameter.data.uniform_(0.5, 1.5)
        for name, buffer in model.named_buffers():
            if "running" in name:
                buffer.uniform_(0.5, 1.5)
    return model


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm1 = nn.Conv2d(3, 4, 3, 2, 1, bias=False), nn.BatchNorm2d(4)
        self.second, self.norm2 = nn.Conv2d(4, 4, 3, 1, 1, bias=False), nn.BatchNorm2d(4)
        self.shortcut, self.fc = nn.Conv2d(3, 4, 1, 2), nn.Linear(4, CLASSES)

    def forward(self, inputs: Tensor) -> Any:
        inner = self.norm2(self.second(F.relu(self.norm1(self.first(inputs)))))
        inner += self.shortcut(inputs)
        return self.fc(F.relu(inner).mean((2, 3)))


class Tied(nn.Module):
    """One linear layer that runs twice, and a second one with the same weight."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.inner, self.again, self.fc = (
            nn.Linear(108, 5),
            nn.Linear(5, 5),
            nn.Linear(5, 5),
            nn.Linear(5, CLASSES),
        )
        self.again.weight = self.inner.weight

    def forward(self, inputs: Tensor) -> Any:
        hidden = torch.tanh(self.embed(inputs.flatten(1)))
        for layer in (self.inner, self.again, self.inner):
            hidden = torch.tanh(layer(hidden))
        return self.fc(hidden)


class TwiceNormed(nn.Module):
    """A batch norm that runs twice, and so moves its statistics twice."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.fc = nn.BatchNorm2d(3), nn.Linear(108, CLASSES)

    def forward(self, inputs: Tensor) -> Any:
        return self.fc((self.norm(inputs) + self.norm(inputs**2)).flatten(1))


class Tokens(nn.Module):
    """Pixels as tokens (B, 36, 4), then a block, then the mean token."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.embed, self.block, self.fc = nn.Linear(3, 4), block, nn.Linear(4, CLASSES)

    def forward(self, inputs: Tensor) -> Any:
        tokens = self.embed(inputs.flatten(2).transpose(1, 2))
        return self.fc(self.block(tokens).mean(1))


class PlainAttention(nn.Module):
    """Attention from linear layers and `scaled_dot_product_attention`, with layer norm and a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.mixed, self.out = nn.LayerNorm(4), nn.Linear(4, 12), nn.Linear(4, 4)

    def forward(self, tokens: Tensor) -> Any:
        parts = self.mixed(self.norm(tokens)).unflatten(-1, (3, 2, 2)).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(*parts.unbind(0))
        return tokens + self.out(mixed.transpose(1, 2).flatten(2))


class SelfAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)

    def forward(self, tokens: Tensor) -> Any:
        return self.attention(tokens, tokens, tokens, need_weights=False)[0]


class Scaled(nn.Module):
    """A parameter outside any layer."""

    def __init__(self, *, frozen: bool = False) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.rand(3, 1, 1) + 0.5, requires_grad=not frozen)
        self.fc = nn.Linear(108, CLASSES)

    def forward(self, inputs: Tensor) -> Any:
        return self.fc((self.scale * inputs).flatten(1))


class Centered(nn.Module):
    """Each sample minus some of the mean over the batch."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self.share, self.hidden, self.fc = share, nn.Linear(108, 5), nn.Linear(5, CLASSES)

    def forward(self, inputs: Tensor) -> Any:
        flat = inputs.flatten(1)
        return self.fc(torch.tanh(self.hidden(flat - self.share * flat.mean(0))))


class Curious(nn.Module):
    """Reads shape and format of its weights, which is no use of their values."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(108, CLASSES)

    def forward(self, inputs: Tensor) -> Any:
        rows = inputs.to(self.fc.weight.dtype).reshape(-1, self.fc.weight.shape[1])
        return self.fc(rows)


class Hyper(nn.Module):
    """A linear layer whose weight is computed from the inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.fc = nn.Linear(36, 4), nn.Linear(9, CLASSES)

    def forward(self, inputs: Tensor) -> Any:
        tokens = self.embed(inputs.flatten(2))
        return self.fc(torch.stack([F.linear(sample, torch.tanh(sample)) for sample in tokens]).flatten(1))


class Stopped(nn.Module):
    """A gradient that is stopped on its way to the inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.fc = nn.Linear(108, 5), nn.Linear(5, CLASSES)

    def forward(self, inputs: Tensor) -> Any:
        return self.fc(torch.tanh(self.hidden(inputs.flatten(1).detach())) + inputs.flatten(1)[:, :5])


class Idle(nn.Module):
    """A layer that never runs."""

    def __init__(self) -> None:
        super().__init__()
        self.idle, self.fc = nn.Linear(7, 2), nn.Linear(108, CLASSES)

    def forward(self, inputs: Tensor) -> Any:
        return self.fc(inputs.flatten(1))


def convolution(*args: int, **kwargs: int | str | bool) -> Callable[[], nn.Module]:
    """Make a network with one convolution of the given settings."""

    def make() -> nn.Module:
        layer = nn.Conv2d(3, 6, *args, **kwargs)  # type: ignore[arg-type]
        features = layer(torch.zeros(1, *SHAPE)).numel()
        return nn.Sequential(layer, nn.Tanh(), nn.Flatten(), nn.Linear(features, CLASSES))

    return make


def with_norm(norm: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3), norm, nn.Tanh(), nn.Flatten(), nn.Linear(64, CLASSES))


def on_features(norm: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(108, 6), norm, nn.Tanh(), nn.Linear(6, CLASSES))


def frozen_first() -> nn.Module:
    model = with_norm(nn.BatchNorm2d(4))
    model[0].requires_grad_(False)  # type: ignore[index]
    return model


def in_place() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, bias=False), nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16, CLASSES)
    )


CASES = [
    Case("plain convolution", convolution(3), True),
    Case("convolution without bias", convolution(3, bias=False), True),
    Case("strided convolution", convolution(3, 2, 1), True),
    Case("stride that leaves pixels over", convolution(2, 3), True),
    Case("dilated convolution", convolution(3, 1, 2, dilation=2), True),
    Case("grouped convolution", convolution(3, groups=3), True),
    Case("pointwise convolution", convolution(1), True),
    Case("convolution of the same size", convolution(3, padding="same", dilation=2), True),
    Case("convolution padded on one side", convolution(2, padding="same"), False),
    Case("circular convolution", convolution(3, padding=1, padding_mode="circular"), True),
    Case(
        "transposed convolution",
        lambda: nn.Sequential(nn.ConvTranspose2d(3, 2, 2, 3), nn.Flatten(), nn.Linear(578, CLASSES)),
        False,
    ),
    Case(
        "convolution along one axis",
        lambda: nn.Sequential(nn.Flatten(2), nn.Conv1d(3, 2, 5), nn.Tanh(), nn.Flatten(), nn.Linear(64, CLASSES)),
        False,
    ),
    Case("linear layers", lambda: on_features(nn.Identity()), True),
    Case("batch norm", lambda: with_norm(nn.BatchNorm2d(4)), True),
    Case("batch norm without weights", lambda: with_norm(nn.BatchNorm2d(4, affine=False)), True),
    Case("batch norm without statistics", lambda: with_norm(nn.BatchNorm2d(4, track_running_stats=False)), True),
    Case("batch norm with a cumulative mean", lambda: with_norm(nn.BatchNorm2d(4, momentum=None)), True),
    Case("batch norm of features", lambda: on_features(nn.BatchNorm1d(6)), True, alone=False),
    Case("batch norm that runs twice", TwiceNormed, True),
    Case("group norm", lambda: with_norm(nn.GroupNorm(2, 4)), True),
    Case("group norm of features", lambda: on_features(nn.GroupNorm(2, 6)), True),
    Case("layer norm", lambda: with_norm(nn.LayerNorm([4, 4, 4])), True),
    Case("layer norm of features", lambda: on_features(nn.LayerNorm(6, bias=False)), True),
    Case("instance norm", lambda: with_norm(nn.InstanceNorm2d(4, affine=True)), False),
    Case("residual block", Residual, True),
    Case("activation in place", in_place, True),
    Case("tied weights", Tied, True),
    Case("frozen convolution", frozen_first, True),
    Case("layer that never runs", Idle, True),
    Case("attention from linear layers", lambda: Tokens(PlainAttention()), True),
    Case("multi-head attention", lambda: Tokens(SelfAttention()), False),
    Case("transformer", lambda: Tokens(nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)), False),
    Case("parameter outside a layer", Scaled, False),
    Case("frozen parameter outside a layer", lambda: Scaled(frozen=True), True),
    Case("operation across samples", lambda: Centered(1.0), False),
    Case("faint operation across samples", lambda: Centered(1e-5), False),
    Case("layer that reads its format", Curious, True),
    Case("weight made from the inputs", Hyper, True),
    Case("gradient that is stopped", Stopped, False),
    Case("standardized pixels", lambda: normalized(convolution(3)(), [0.5, 0.4, 0.3], [0.2, 0.3, 0.4]), True),
    Case("weight norm", lambda: on_features(nn.utils.parametrizations.weight_norm(nn.Linear(6, 6))), False),
    Case("spectral norm", lambda: on_features(nn.utils.parametrizations.spectral_norm(nn.Linear(6, 6))), False),
]
BY_NAME = {case.name: case for case in CASES}
