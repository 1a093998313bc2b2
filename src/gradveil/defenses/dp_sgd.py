"""DP-SGD: differential privacy of single samples."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor, nn
from typing_extensions import override

from gradveil.defenses._base import Adversary, StepDefense, StepResult
from gradveil.defenses._likelihoods import normal_log_likelihood
from gradveil.defenses._network import StackedNetwork
from gradveil.defenses._norms import check_noise, clip
from gradveil.errors import UnsupportedModelError
from gradveil.streams import Streams
from gradveil.types import Card, Gradients, Mode, Paper, Protected


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class DPSGD(StepDefense):
    """Clip the gradient of every sample, add them up, add Gaussian noise, and divide by the size of the batch.

    Protects every single sample; `gradveil.privacy.account` tells how well, for batches drawn by Poisson sampling.
    The loss must be an average over samples of what each gives alone.

    Weakened by a noise multiplier far below 1, by many steps, by counting one person's pictures as different samples,
    and by batch norm in train mode, which mixes the samples and is refused.

    Args:
        norm: bound C on the L2 norm of a sample's gradient, over all parameters together.
        noise_multiplier: standard deviation of the noise on the sum, in units of `norm`.
        expected_batch: what the sum is divided by; None divides by the samples that came, Poisson sampling by the
            number that was expected.
        at_once: samples of a client whose gradients are held in memory; it does not change the result.
    """

    paper: ClassVar[Paper | None] = Paper(
        title="Deep Learning with Differential Privacy",
        authors="Abadi, Chu, Goodfellow, McMahan, Mironov, Talwar, Zhang",
        year=2016,
        url="https://arxiv.org/abs/1607.00133",
    )
    adversary: ClassVar[Adversary] = Adversary(
        attack="bayes-optimal",
        reason="the bound holds against everybody; who knows the noise gets nearest, by its likelihood after clipping",
    )
    off: ClassVar[Mapping[str, object] | None] = {"norm": math.inf, "noise_multiplier": 0.0}
    card: ClassVar[Card] = Card(
        fails="to give an epsilon where batches are not drawn by Poisson sampling; at a noise multiplier far below "
        "1 it is plain noise",
        costs="one gradient per sample, in memory at_once at a time; accuracy",
        suggested="norm=1, noise_multiplier=1, large batches, group norm",
        interacts="batch norm in train mode is refused; dcs2 and soteria cannot be combined with it; mixup, "
        "InstaHide and LODA mix or choose by several samples, so that one sample touches several "
        "gradients and its epsilon does not hold for a private image; a private head (spn) is clipped "
        "together with the rest",
    )

    norm: float = 1.0
    noise_multiplier: float = 1.0
    expected_batch: int | None = None
    at_once: int = 64

    def __post_init__(self) -> None:
        check_noise(self.norm, self.noise_multiplier)
        for name in ("expected_batch", "at_once"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")

    @override
    def gradient(
        self, network: StackedNetwork, /, data: Protected, *, sensitive: Tensor | None, streams: Streams
    ) -> StepResult:
        refuse_mixing(network.model, network.mode)
        size = data.inputs.shape[1]
        parts = [
            self._clipped_sum(network, data, range(start, min(start + self.at_once, size)))
            for start in range(0, size, self.at_once)
        ]
        total = tuple(torch.stack(tensors).sum(0) for tensors in zip(*parts, strict=True))
        divisor = 1 if network.reduction == "sum" else self.expected_batch or size
        return StepResult(tuple(tensor / divisor for tensor in self._noisy(total, streams)), data)

    @override
    def log_likelihood(self, observed: Gradients, clean: Gradients) -> Tensor:
        """Return the log density of the noise around the clipped gradient, which is exact for a batch of one.

        The gradient of a larger batch does not tell those of its samples; it is clipped as a whole, and the noise is
        taken to be that of `expected_batch` samples, or of one.
        """
        if self.noise_multiplier == 0:
            raise NotImplementedError("clipping alone has no density")
        std = self.noise_multiplier * self.norm / (self.expected_batch or 1)
        return normal_log_likelihood(observed, clip(clean, self.norm), std)

    @override
    def resample(self, update: Gradients, *, streams: Streams) -> Gradients:
        """Clip a trial gradient as if it were one sample's."""
        return clip(update, self.norm)

    def _clipped_sum(self, network: StackedNetwork, data: Protected, samples: range) -> Gradients:
        """Add up the clipped gradients of some samples of every victim."""
        victims, count = len(data.inputs), len(samples)
        owners = [victim for victim in range(victims) for _ in samples]
        alone = network.samples(owners, [*samples] * victims)
        part = slice(samples.start, samples.stop)
        inputs, labels = (tensor[:, part].flatten(0, 1)[:, None] for tensor in (data.inputs, data.labels))
        clipped = clip(tuple(g.detach() for g in alone(inputs, labels).gradients), self.norm)
        return tuple(tensor.unflatten(0, (victims, count)).sum(1) for tensor in clipped)

    def _noisy(self, total: Gradients, streams: Streams) -> Gradients:
        if self.noise_multiplier == 0:
            return total
        std = self.noise_multiplier * self.norm
        return tuple(
            tensor + std * streams.normal(f"dp-sgd/{i}", tensor.shape[1:], like=tensor)
            for i, tensor in enumerate(total)
        )


def refuse_mixing(model: nn.Module, mode: Mode) -> None:
    """Refuse layers through which one sample changes the gradient of another."""
    if mode == "eval":
        return
    for path, layer in model.named_modules():
        if isinstance(layer, nn.modules.batchnorm._BatchNorm):
            raise UnsupportedModelError(
                f"dp-sgd needs the gradient of each sample alone, but {type(layer).__name__} '{path}' mixes the "
                "samples of a batch in train mode; replace it by nn.GroupNorm, or use eval mode"
            )
