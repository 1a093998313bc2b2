"""The two scores of the automatic transformation search: what a policy hides, and what it leaves to learn."""

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

import torch.nn.functional as F
from torch import Tensor, nn

from gradveil.engine import Runtime
from gradveil.errors import SpecError
from gradveil.policies._accuracy import AccuracyScorer
from gradveil.policies._material import Material
from gradveil.policies._privacy import PrivacyScorer, Variant
from gradveil.streams import Streams
from gradveil.transforms import Hybrid, parse_policy
from gradveil.types import LossFn

THRESHOLDS: Final[Mapping[Variant, float]] = MappingProxyType({"paper": -1.34, "reference": -85.0})
"""Accuracy scores from which on a policy is kept: the published -85 for rounds of 63.4 classes, and per class."""


@dataclass(frozen=True, slots=True, eq=False)
class Score:
    """A score and how sure it is.

    Args:
        values: (n,) of each image, or of each round.
    """

    values: Tensor

    @property
    def mean(self) -> float:
        """The score."""
        return float(self.values.double().mean())

    @property
    def standard_error(self) -> float:
        """Of the mean over images or rounds; differences below it mean nothing. Not a number for a single value."""
        if len(self.values) < 2:
            return math.nan
        return float(self.values.double().std()) / math.sqrt(len(self.values))


def privacy_score(
    policy: Hybrid | str,
    model: nn.Module,
    inputs: Tensor,
    labels: Tensor,
    *,
    variant: Variant = "reference",
    intervals: int = 20,
    crop_and_flip: bool = True,
    loss: LossFn = F.cross_entropy,
    streams: Streams | None = None,
    runtime: Runtime | None = None,
) -> Score:
    """Return the privacy score S_pri of a policy (Eq. 7); lower is more private.

    On the straight way from noise to a transformed image, the similarity between the gradient there and the gradient of
    the image is integrated. `paper` takes the left end of K intervals and one cosine of the whole gradient. `reference`
    is the published program: the trapezoid rule over K + 1 points, and the plain mean of one cosine per parameter.

    Args:
        policy: parsed or as text.
        model: semi-trained; eats images in [0, 1] and is used in eval mode.
        inputs: (N, C, H, W) in [0, 1].
        labels: (N,) true classes.
        variant: `paper` or `reference`.
        intervals: K.
        crop_and_flip: crop and mirror before the policy, as published.
        loss: of outputs and labels.
        streams: randomness, one stream per image.
        runtime: precision and chunk.

    Returns:
        One value per image.

    Example:
        >>> import torch
        >>> model = nn.Sequential(nn.Flatten(), nn.Linear(48, 2))
        >>> score = privacy_score("3-1-7", model, torch.rand(5, 3, 4, 4), torch.tensor([0, 1, 0, 1, 1]))
        >>> score.values.shape, score.mean < 1
        (torch.Size([5]), True)
    """
    if intervals < 1:
        raise SpecError(f"intervals must be at least 1, got {intervals}")
    hybrid = _parsed(policy)
    material = Material.of(
        inputs, labels, length=hybrid.length, crop_and_flip=crop_and_flip, streams=streams or SEARCH.fork("privacy")
    )
    own = copy.deepcopy(model).eval()
    runtime = runtime or Runtime(precision="float32")
    scorer = PrivacyScorer.of(own, material, loss=loss, variant=variant, intervals=intervals, runtime=runtime)
    return Score(scorer([hybrid])[0])


def accuracy_score(
    policy: Hybrid | str,
    model: nn.Module,
    inputs: Tensor,
    labels: Tensor,
    *,
    variant: Variant = "reference",
    rounds: int = 10,
    crop_and_flip: bool = True,
    streams: Streams | None = None,
    runtime: Runtime | None = None,
) -> Score:
    """Return the accuracy score S_acc of a policy (Eq. 10); higher leaves more to learn.

    It is low where a random network reacts alike to different images. Both variants carry the minus sign without which
    a policy could not be kept for a high score. `paper` is the mean over all images of a round; its best is -1.
    `reference` is the published program: the sum over the first image of each class in a round; its best is minus the
    number of those classes.

    Args:
        policy: parsed or as text.
        model: randomly initialized; eats images in [0, 1] and is used in eval mode.
        inputs: (N, C, H, W) in [0, 1], cut into rounds in their order.
        labels: (N,) classes, at least two.
        variant: `paper` or `reference`.
        rounds: parts of equal size that are scored separately.
        crop_and_flip: crop and mirror before the policy, as published.
        streams: randomness, one stream per image.
        runtime: precision and chunk.

    Returns:
        One value per round.

    Example:
        >>> import torch
        >>> model = nn.Sequential(nn.Flatten(), nn.Linear(48, 8), nn.Tanh(), nn.Linear(8, 2))
        >>> score = accuracy_score("3-1-7", model, torch.rand(8, 3, 4, 4), torch.arange(8) % 2, rounds=2)
        >>> score.values.shape, score.mean < -2
        (torch.Size([2]), True)
    """
    hybrid = _parsed(policy)
    material = Material.of(
        inputs, labels, length=hybrid.length, crop_and_flip=crop_and_flip, streams=streams or SEARCH.fork("accuracy")
    )
    own = copy.deepcopy(model).eval().requires_grad_(False)
    runtime = runtime or Runtime(precision="float32")
    return Score(AccuracyScorer.of(own, material, rounds=rounds, variant=variant, runtime=runtime)([hybrid])[0])


def _parsed(policy: Hybrid | str) -> Hybrid:
    return parse_policy(policy) if isinstance(policy, str) else policy


SEARCH = Streams(purpose="search")
"""Where scores draw from unless told otherwise."""
