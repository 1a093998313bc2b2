"""Identification: is the true image nearer to its reconstruction than other images of the same data set?

A score such as PSNR says how close a guess is; identification says whether it gives a person away. It also survives
what ruins scores: signed attacks return pictures of the wrong contrast that everybody recognizes.
"""

import copy
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeAlias

import torch
from torch import Tensor, nn

from gradveil.errors import DataError
from gradveil.metrics._base import clean
from gradveil.metrics._filters import blur
from gradveil.streams import Streams

View: TypeAlias = Callable[[Tensor], Tensor]
"""What is compared: (N, C, H, W) images in [0, 1] to (N, D) vectors; nearness is Euclidean."""

_TIE = 1e-6  # Relative: distances that differ by rounding only are equal.
_COPY = 1e-5  # Absolute: two 8-bit images that differ at all are 0.004 apart.
_CHUNK = 1024


def pixels(images: Tensor) -> Tensor:
    """See the pixels as they are.

    Example:
        >>> pixels(torch.zeros(2, 3, 8, 8)).shape
        torch.Size([2, 192])
    """
    return images.flatten(1)


def blurred(images: Tensor) -> Tensor:
    """See the pixels after a Gaussian blur of 1/16 of the shorter side: small shifts and noise count less.

    Example:
        >>> blurred(torch.ones(1, 1, 8, 8)).mean().item()
        1.0
    """
    return blur(images, min(images.shape[-2:]) / 16).flatten(1)


def correlation(images: Tensor) -> Tensor:
    """See each image with mean 0 and length 1, so that nearness is correlation, blind to brightness and contrast.

    An image without contrast (standard deviation below 1e-4) becomes nearly zero and equally far from all others.

    Example:
        >>> ramp = torch.linspace(0, 1, 16).reshape(1, 1, 4, 4)
        >>> bool(torch.allclose(correlation(ramp), correlation(0.3 + 0.2 * ramp), atol=1e-6))
        True
    """
    centred = images.flatten(1) - images.flatten(1).mean(1, keepdim=True)
    length: Tensor = torch.linalg.vector_norm(centred, dim=1, keepdim=True)
    return centred / length.clamp(min=1e-4 * centred.shape[1] ** 0.5)


def features(network: nn.Module) -> View:
    """See what a network gives out, flattened; the network is copied and run in eval mode.

    Example:
        >>> features(nn.Conv2d(3, 5, 1))(torch.zeros(2, 3, 4, 4)).shape
        torch.Size([2, 80])
    """
    frozen = copy.deepcopy(network).eval()
    return lambda images: frozen(images).flatten(1)


VIEWS: Mapping[str, View] = MappingProxyType({"pixels": pixels, "blurred": blurred, "correlation": correlation})
"""The views that need nothing but images, by the name that records use."""


@torch.no_grad()
def identify(guess: Tensor, truth: Tensor, decoys: Tensor, *, view: View) -> Tensor:
    """Rank the true image among decoys by distance to the reconstruction.

    Up to rounding, decoys that are copies of a truth do not compete with it, and a decoy as far as the truth counts
    half: a guess without content, which is equally far from everything, lands in the middle and not first.

    Args:
        guess: (V, B, C, H, W), matched to the truth.
        truth: (V, B, C, H, W).
        decoys: (N, C, H, W) other images of the same data set, see `draw_decoys`.
        view: what is compared, such as `correlation`.

    Returns:
        (V, B) float32 ranks in 0 .. N, where 0 means that the true image is the nearest of all and halves are ties.

    Example:
        >>> images = torch.rand(6, 1, 4, 4, generator=torch.Generator().manual_seed(0))
        >>> identify(images[None, :1] * 0.9, images[None, :1], images[1:], view=pixels).item()
        0.0
    """
    if guess.shape != truth.shape or truth.ndim != 5 or decoys.shape[1:] != truth.shape[2:]:
        came = ", ".join(str(tuple(images.shape)) for images in (guess, truth, decoys))
        raise DataError(f"identify needs (V, B, C, H, W) twice and decoys (N, C, H, W) of the same images, got {came}")

    return identify_all({"": guess}, truth, decoys, views={"": view})[""][""]


@torch.no_grad()
def identify_all(
    guesses: Mapping[str, Tensor], truth: Tensor, decoys: Tensor, *, views: Mapping[str, View]
) -> dict[str, dict[str, Tensor]]:
    """Rank the true images among decoys in several views and for several guesses, as `identify` does for one.

    Args:
        guesses: by name, (n, B, C, H, W), of the first n victims, or of all of them several times over.
        truth: (V, B, C, H, W).
        decoys: (N, C, H, W).
        views: by name.

    Returns:
        (n, B) ranks, by view and by guess.

    Example:
        >>> images = torch.rand(6, 1, 4, 4, generator=torch.Generator().manual_seed(0))
        >>> guesses = {"dark": images[None, :1] * 0.9, "wrong": images[None, 1:2]}
        >>> ranks = identify_all(guesses, images[None, :1], images[1:], views={"pixels": pixels})
        >>> ranks["pixels"]["dark"].item(), ranks["pixels"]["wrong"].item() >= 1
        (0.0, True)
    """
    private, others = clean(truth).flatten(0, 1), clean(decoys.to(truth))
    copies = _distances(_look(private, pixels), _look(others, pixels)) < _COPY
    ranks: dict[str, dict[str, Tensor]] = {}
    for name, view in views.items():
        lineup = _Lineup(view=view, private=_look(private, view), others=_look(others, view), copies=copies)
        ranks[name] = {what: lineup.ranks(guess.to(truth)) for what, guess in guesses.items()}
    return ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class _Lineup:
    """What a view shows of the private images (V · B, D) and the decoys (N, D), and which of these are copies."""

    view: View
    private: Tensor
    others: Tensor
    copies: Tensor

    def ranks(self, guess: Tensor) -> Tensor:
        """Return (n, B)."""
        images = clean(guess).flatten(0, 1)
        rows = torch.arange(len(images), device=images.device) % len(self.private)
        parts = [self._ranks(self.view(part).double(), own) for part, own in _paired(images, rows)]
        return torch.cat(parts).reshape(guess.shape[:2])

    def _ranks(self, seen: Tensor, rows: Tensor) -> Tensor:
        own = torch.linalg.vector_norm(seen - self.private[rows], dim=1)[:, None]
        distance = _distances(seen, self.others)
        points = torch.where((distance - own).abs() <= _TIE * own, 0.5, (distance < own).float())
        return points.masked_fill(self.copies[rows], 0).sum(1)


def draw_decoys(reference: Tensor, *, count: int = 1000, streams: Streams) -> Tensor:
    """Draw decoys without replacement, the same ones for every victim and every stack of victims.

    Args:
        reference: (N, C, H, W), the data set.
        count: how many; a smaller data set gives all it has.
        streams: only the seed and purpose matter.

    Returns:
        (min(count, N), C, H, W).

    Example:
        >>> draw_decoys(torch.rand(20, 1, 4, 4), count=5, streams=Streams(seed=0, purpose="audit")).shape
        torch.Size([5, 1, 4, 4])
    """
    shared = Streams(seed=streams.seed, purpose=streams.purpose).bind(1)
    order = shared.permutation("decoys", len(reference), device=reference.device)[0]
    return reference[order[:count]]


def _look(images: Tensor, view: View) -> Tensor:
    """Apply a view in parts; float64, because distances are taken by a matrix product, which cancels digits."""
    return torch.cat([view(part).double() for part in images.split(_CHUNK)])


def _paired(images: Tensor, rows: Tensor) -> Iterable[tuple[Tensor, Tensor]]:
    return zip(images.split(_CHUNK), rows.split(_CHUNK), strict=True)


def _distances(left: Tensor, right: Tensor) -> Tensor:
    distances: Tensor = torch.cdist(left, right, compute_mode="use_mm_for_euclid_dist")
    return distances
