"""Images sorted into bins by several statistics at once: one that is alone by any of them is taken out of all."""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from gradveil.attacks._bins import ImprintBlock

_REST = 1e-4  # share of the largest bias gradient below which nothing is left in a bin
_RIGHT = 2e-3  # relative difference up to which checks are right
_SAME = 0.02  # root mean square difference of two readings of one image, in standardized pixels


@dataclass(frozen=True, slots=True)
class Views:
    """Linear statistics of an image, the bins of each, and checks that tell an image from a mean of several.

    Args:
        directions: (G, d) weights of the statistics.
        thresholds: (G, k) in ascending order.
        checks: (m, d) weights of the checks, which are rectified: those of a mean are not the mean of those.
    """

    directions: Tensor
    thresholds: Tensor
    checks: Tensor

    @classmethod
    def of(cls, block: ImprintBlock) -> Self:
        """Read them off the block that was sent."""
        size, own = block.back.out_features, block.bins.weight.detach().double() / block.gain
        edges = -block.bins.bias.detach().double().unflatten(0, (block.views, -1)) / block.gain
        checks = own[:0, :size] if block.checks is None else block.checks.weight.detach().double()
        return cls(own[:: edges.shape[1], :size], edges, checks)

    def places(self, images: Tensor) -> Tensor:
        """Return the (V, n, G) rows, counted through all views, into which images (V, n, d) fall."""
        count, size = self.thresholds.shape
        values = (torch.nan_to_num(images) @ self.directions.mT).permute(2, 0, 1).flatten(1)
        own = (torch.searchsorted(self.thresholds, values.contiguous()) - 1).clamp(min=0)
        rows = own + size * torch.arange(count, device=own.device)[:, None]
        by_image: Tensor = rows.unflatten(1, images.shape[:2]).permute(1, 2, 0)
        return by_image

    def single(self, images: Tensor, checks: Tensor) -> Tensor:
        """Tell which of (V, n, d) are single images, by their (V, n, m) checks; none of them without any."""
        expected = (images @ self.checks.mT).relu()
        differences, lengths = (expected - checks).square().sum(2), checks.square().sum(2)
        return differences < _RIGHT**2 * lengths


def peel(weight: Tensor, bias: Tensor, views: Views, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Read images that are alone in a bin, take them out of their bins of the other views, and go on with what is left.

    Every image enters its bin of every view with the same weight, so that it can be subtracted once it is known.

    Args:
        weight: (V, G * k, d + m) gradients of each bin alone, those of the checks last.
        bias: (V, G * k), the sums of the weights with which images enter their bins.
        views: which images fall where.
        count: images of a victim.

    Returns:
        The (V, count, d) images, NaN for what did not come out, and what is left of (V, G * k, d) weight and of bias
        gradients.
    """
    weight, bias, least = weight.clone(), bias.clone(), _REST * bias.abs().amax(1, keepdim=True)
    size, numbers = views.directions.shape[1], torch.arange(bias.shape[1], device=bias.device)
    found = weight.new_full((len(weight), count + 1, size), torch.nan)  # the last one takes what is no new image
    taken = torch.zeros(len(weight), dtype=torch.long, device=weight.device)
    for _ in range(2 * count):
        readings = weight / torch.where(bias.abs() > least, bias, torch.nan)[:, :, None]
        images, checks = readings.split([size, readings.shape[2] - size], 2)
        single = views.single(images, checks)
        if not bool(single.any()):
            break
        # At the edge of a bin rounding may misplace an image; what that leaves behind is cleared where it lies.
        old = single & _same(images, found).any(2)
        new = single & ~old & ~(_same(images, images) & single[:, None]).tril(-1).any(2) & (taken < count)[:, None]
        places = torch.where(new, (taken[:, None] + new.cumsum(1) - 1).clamp(max=count), count)
        found.scatter_(1, _wide(places, found), torch.where(new[:, :, None], images, torch.nan))
        taken += new.sum(1)
        moved, share = weight.clone(), bias.clone()
        for view, rows in enumerate(views.places(images).unbind(2)):
            home = numbers // views.thresholds.shape[1] == view
            gone, there = new | (old & home), torch.where(home, numbers, rows)
            weight.scatter_add_(1, _wide(there, weight), torch.where(gone[:, :, None], -moved, 0))
            bias.scatter_add_(1, there, torch.where(gone, -share, 0))
    return found[:, :count], weight[:, :, :size], bias


def missing(images: Tensor) -> Tensor:
    """Tell which of (V, n, d) images are not there."""
    return images.isnan().any(2)


def present_first(images: Tensor) -> Tensor:
    """Move the (V, n, d) images that are not there to the end.

    Example:
        >>> present_first(torch.tensor([[[torch.nan], [1.0], [2.0]]])).flatten()
        tensor([1., 2., nan])
    """
    return images.gather(1, _wide(missing(images).sort(dim=1, stable=True).indices, images))


def _same(first: Tensor, second: Tensor) -> Tensor:
    """Tell which of (V, n, d) and (V, m, d) are the same image, (V, n, m)."""
    distances = torch.cdist(torch.nan_to_num(first, nan=1e6), torch.nan_to_num(second, nan=-1e6))
    return distances.le(_SAME * first.shape[2] ** 0.5)


def _wide(index: Tensor, like: Tensor) -> Tensor:
    """Repeat (V, n) along the last axis of (V, m, d)."""
    return index[:, :, None].expand(-1, -1, like.shape[2])
