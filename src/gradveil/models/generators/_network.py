"""A decoder from latents to images, and the encoder that it is trained with.

A variational autoencoder and not a generative adversarial network: it trains by plain descent on one loss, with nothing
to balance, for any number of channels and images; it has to cover every training image, where an adversarial one may
drop modes that then no search can find; and its latents are standard normal by construction, which is what the search
assumes. The price is that fine detail comes out soft.
"""

from typing import NamedTuple, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from typing_extensions import override

from gradveil.errors import DataError
from gradveil.models._base import Shape
from gradveil.models._init import initialize

_GROUPS = 8
_LARGEST_LOG_VARIANCE = 8.0


class Generator(nn.Module):
    """Maps latents to images in [0, 1]; images of a stack do not look at each other.

    Args:
        shape: (C, H, W) of one image.
        latent_size: length of a latent, which is standard normal.
        width: channels of the last hidden map, a multiple of 8; the maps before it have two and four times as many.
        num_classes: K of a generator that is told the class; 0 for one that is not.
    """

    def __init__(self, shape: Shape, *, latent_size: int = 128, width: int = 64, num_classes: int = 0) -> None:
        super().__init__()
        self.shape, self.latent_size, self.width, self.num_classes = shape, latent_size, width, num_classes
        self._small = (4 * width, -(-shape[1] // 4), -(-shape[2] // 4))
        self.enter = nn.Linear(latent_size + num_classes, self._small[0] * self._small[1] * self._small[2])
        self.norm = nn.GroupNorm(_GROUPS, 4 * width)
        self.conv1, self.norm1 = nn.Conv2d(4 * width, 2 * width, 3, padding=1), nn.GroupNorm(_GROUPS, 2 * width)
        self.conv2, self.norm2 = nn.Conv2d(2 * width, width, 3, padding=1), nn.GroupNorm(_GROUPS, width)
        self.leave = nn.Conv2d(width, shape[0], 3, padding=1)

    @override
    def forward(self, latents: Tensor, labels: Tensor | None = None) -> Tensor:
        """Return (N, C, H, W).

        Args:
            latents: (N, latent_size).
            labels: (N,) classes or (N, K) soft labels, for a generator that is told the class.
        """
        told = with_classes(latents, labels, self.num_classes)
        hidden = F.silu(self.norm(self.enter(told).unflatten(1, self._small)))
        hidden = F.silu(self.norm1(self.conv1(_doubled(hidden))))
        hidden = F.silu(self.norm2(self.conv2(_doubled(hidden))))
        images: Tensor = self.leave(hidden)
        return images[..., : self.shape[1], : self.shape[2]].sigmoid()


class Encoder(nn.Module):
    """Maps images to the mean and the logarithm of the variance of their latents; the mirror image of a generator."""

    def __init__(self, generator: Generator) -> None:
        super().__init__()
        width, (channels, height, across) = generator.width, generator.shape
        self.num_classes = generator.num_classes
        self.enter = nn.Conv2d(channels, width, 3, padding=1)
        self.conv1, self.norm1 = nn.Conv2d(width, 2 * width, 3, 2, padding=1), nn.GroupNorm(_GROUPS, 2 * width)
        self.conv2, self.norm2 = nn.Conv2d(2 * width, 4 * width, 3, 2, padding=1), nn.GroupNorm(_GROUPS, 4 * width)
        features = 4 * width * -(-height // 4) * -(-across // 4)
        self.leave = nn.Linear(features + self.num_classes, 2 * generator.latent_size)

    @override
    def forward(self, images: Tensor, labels: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return two (N, latent_size) tensors for images (N, C, H, W)."""
        hidden = F.silu(self.enter(images))
        hidden = F.silu(self.norm1(self.conv1(hidden)))
        hidden = F.silu(self.norm2(self.conv2(hidden))).flatten(1)
        mean, log_variance = self.leave(with_classes(hidden, labels, self.num_classes)).chunk(2, 1)
        return mean, log_variance.clamp(-_LARGEST_LOG_VARIANCE, _LARGEST_LOG_VARIANCE)


class Loss(NamedTuple):
    """What a step of training minimizes, and the error in it.

    Args:
        total: () evidence bound per image, up to a constant.
        error: () mean squared error over pixels.
    """

    total: Tensor
    error: Tensor


class Autoencoder(nn.Module):
    """A generator with its encoder.

    Args:
        generator: to train.
    """

    def __init__(self, generator: Generator) -> None:
        super().__init__()
        self.generator = generator
        self.encoder = Encoder(generator)

    @classmethod
    def build(cls, shape: Shape, *, latent_size: int, width: int, num_classes: int, seed: int) -> Self:
        """Make both on the CPU; the same seed gives the same bits everywhere."""
        with torch.device("meta"):
            model = cls(Generator(shape, latent_size=latent_size, width=width, num_classes=num_classes))
        model = model.to_empty(device="cpu")
        initialize(model, "default", generator=torch.Generator().manual_seed(seed))
        return model

    @override
    def forward(self, images: Tensor, noise: Tensor, labels: Tensor | None = None) -> Loss:
        """Encode, draw a latent by standard normal noise (N, latent_size), decode and compare.

        The variance of pixels around the decoded image is the one that fits the batch best (Rybkin et al. 2021), so
        that no weight between error and divergence is to be tuned.
        """
        mean, log_variance = self.encoder(images, labels)
        decoded = self.generator(mean + noise * (log_variance / 2).exp(), labels)
        error = (decoded - images).float().square().mean()
        divergence = (mean.square() + log_variance.exp() - 1 - log_variance).float().sum(1).mean() / 2
        pixels = images[0].numel()
        return Loss(pixels / 2 * error.clamp_min(1e-6).log() + divergence, error.detach())

    def reconstruct(self, images: Tensor, labels: Tensor | None = None) -> Tensor:
        """Return (N, C, H, W), what the generator makes of the latents that the encoder takes for the likeliest."""
        decoded: Tensor = self.generator(self.encoder(images, labels)[0], labels)
        return decoded


def with_classes(features: Tensor, labels: Tensor | None, classes: int) -> Tensor:
    """Append soft labels (N, K) to features (N, F), where classes are told.

    Example:
        >>> with_classes(torch.zeros(1, 2), torch.tensor([1]), 3).tolist()
        [[0.0, 0.0, 0.0, 1.0, 0.0]]
    """
    if not classes:
        return features
    if labels is None:
        raise DataError(f"this generator is told one of {classes} classes, got no labels; give them")
    soft = F.one_hot(labels, classes) if labels.ndim == 1 else labels
    return torch.cat([features, soft.to(features)], 1)


def _doubled(images: Tensor) -> Tensor:
    """Repeat every pixel of (N, C, H, W) twice in both directions; its gradient repeats its bits on a GPU."""
    size, channels, height, width = images.shape
    spread = images[:, :, :, None, :, None].expand(size, channels, height, 2, width, 2)
    return spread.reshape(size, channels, 2 * height, 2 * width)
