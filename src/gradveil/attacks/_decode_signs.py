"""The sign that magnitudes leave open at every pixel, from neighbours and from the range of pixels."""

import numpy as np
import numpy.typing as npt
import torch
from scipy.sparse import coo_array
from scipy.sparse.csgraph import breadth_first_order, minimum_spanning_tree
from torch import Tensor

_NOISE = 0.02  # excess over [0, 1], as a root mean square over images, that says little about a sign
_FAINT = 1e-6  # evidence of nobody, which still connects everybody


def fix_signs(images: Tensor, center: Tensor) -> Tensor:
    """Flip pixels, each in all images at once, so that neighbours agree and pixels lie in [0, 1].

    Evidence of two kinds joins pixels into a graph: neighbours, and channels of one pixel, that are alike or opposite
    over all images; and how far a pixel and its negative leave [0, 1], which joins it to a root. Signs are read from
    the root outwards along the spanning tree of the strongest evidence. A border that is equally dark in all images
    and lies next to bright pixels may come out wrong.

    Args:
        images: (V, P, C, H, W) around the mean; every pixel may have the wrong sign.
        center: (C, 1, 1) the mean.

    Returns:
        (V, P, C, H, W) around the mean.

    Example:
        >>> ramp = torch.linspace(0, 1, 16).view(1, 1, 1, 4, 4) ** torch.tensor([1.0, 2.0]).view(1, 2, 1, 1, 1)
        >>> flips = torch.tensor([1.0, -1.0]).repeat(8).view(1, 1, 1, 4, 4)
        >>> center = torch.full((1, 1, 1), 0.3)
        >>> bool(((fix_signs((ramp - center) * flips, center) + center - ramp).abs() < 1e-6).all())
        True
    """
    return torch.stack([group * _signs(group, center).to(group) for group in images])


def _signs(images: Tensor, center: Tensor) -> Tensor:
    """Return (C, H, W) signs for one group."""
    shape = images.shape[1:]
    first, second = _neighbours(*shape)
    flat = images.flatten(1)
    alike = torch.cosine_similarity(flat[:, first], flat[:, second], dim=0)
    pixels, root = flat.shape[1], flat.shape[1]
    heads = np.concatenate([first, np.full(pixels, root)])
    tails = np.concatenate([second, np.arange(pixels)])
    evidence = torch.cat([alike, _range_evidence(images, center).flatten()]).double().cpu().numpy()
    return torch.from_numpy(_spread(heads, tails, evidence, root)[:pixels]).view(shape)


def _neighbours(channels: int, height: int, width: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """List the pairs of values that touch: left and right, above and below, one channel and the next."""
    numbers = np.arange(channels * height * width).reshape(channels, height, width)
    pairs = [
        (numbers[:-1], numbers[1:]),
        (numbers[:, :-1], numbers[:, 1:]),
        (numbers[:, :, :-1], numbers[:, :, 1:]),
    ]
    return np.concatenate([a.ravel() for a, _ in pairs]), np.concatenate([b.ravel() for _, b in pairs])


def _range_evidence(images: Tensor, center: Tensor) -> Tensor:
    """Return (C, H, W) in [-1, 1]: positive where the pixel stays in [0, 1] better than its negative."""

    def excess(values: Tensor) -> Tensor:
        pixels = values + center
        return (pixels - pixels.clamp(0, 1)).square().mean(0).sqrt()

    plain, flipped = excess(images), excess(-images)
    return (flipped - plain) / (flipped + plain + _NOISE)


def _spread(
    heads: npt.NDArray[np.int64], tails: npt.NDArray[np.int64], evidence: npt.NDArray[np.float64], root: int
) -> npt.NDArray[np.float64]:
    """Carry a sign from the root to every node, along the tree of the strongest evidence."""
    nodes = root + 1
    doubt = 1 + _FAINT - np.minimum(np.abs(evidence), 1)
    tree = minimum_spanning_tree(coo_array((doubt, (heads, tails)), shape=(nodes, nodes)).tocsr())
    order, parents = breadth_first_order(tree, root, directed=False)
    agreement = coo_array((np.where(evidence < 0, -1.0, 1.0), (heads, tails)), shape=(nodes, nodes)).tocsr()
    agreement = agreement + agreement.T
    signs = np.ones(nodes)
    for node in order[1:]:
        signs[node] = signs[parents[node]] * agreement[parents[node], node]
    return signs
