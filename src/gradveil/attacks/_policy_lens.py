"""How a private image becomes what the model saw, under a known transformation policy: a shift, then operations."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal, Protocol, TypeAlias, runtime_checkable

import torch
from torch import Tensor

from gradveil.attacks._priors import ImageSpace
from gradveil.errors import KnowledgeError
from gradveil.streams import Streams
from gradveil.transforms import OPERATIONS, Variants, smooth_transformation
from gradveil.transforms.applying import PADDING
from gradveil.types import Observation

Fill: TypeAlias = Literal["mean", "black"]
Policies: TypeAlias = tuple[tuple[int, ...], ...]

PUBLISHED: Final[Mapping[Policies, tuple[float, float]]] = MappingProxyType(
    {
        ((3, 1, 7),): (1.1, 0.2),
        ((43, 18, 18),): (0.4, 0.4),
        ((3, 1, 7), (43, 18, 18)): (1.1, 0.4),
    }
)
"""The largest shifts, in halves of width and height, that the published attack allowed by policy."""


@runtime_checkable
class KnownPolicy(Protocol):
    """A defense that draws one of several variants for each image, perhaps after a crop and a mirror."""

    @property
    def crop_and_flip(self) -> bool:
        """Whether images are cropped and mirrored before."""

    def variants(self) -> Variants:
        """List the (n, L) operations and signs that an image may go through."""


def known_policy(observation: Observation) -> KnownPolicy:
    """Return the transformation policy among the known defenses."""
    found = [defense for defense in observation.defenses or () if isinstance(defense, KnownPolicy)]
    if len(found) != 1:
        names = ", ".join(type(defense).__name__ for defense in observation.defenses or ()) or "none"
        raise KnowledgeError(
            f"policy-aware attacks one known transformation policy, but the known defenses are: {names}; "
            "use it against transform-policy or random-policy"
        )
    return found[0]


@dataclass(frozen=True, slots=True)
class Lens:
    """What the model sees of standardized images (V, B, C, H, W) and their shifts (V, B, 2).

    Args:
        space: of the images.
        fill: what moves in from outside while searching: the `mean` colour, or `black` as it was at the client.
        limits: (2,) the largest shift to either side, in halves of width and height.
        operations: on pixels (V * B, C, H, W) after the shift; None for none.
    """

    space: ImageSpace
    fill: Fill
    limits: Tensor
    operations: Callable[[Tensor], Tensor] | None = None

    def see(self, images: Tensor, shifts: Tensor) -> Tensor:
        """Return the pixels that the model sees in the search."""
        if self.fill == "mean":
            return self._operate(self.space.pixels(translate(images, shifts)))
        return self._operate(translate(self.space.pixels(images), shifts))

    def show(self, images: Tensor, shifts: Tensor) -> Tensor:
        """Return the guess of what the model saw, in [0, 1] and with black around it."""
        return self._operate(translate(self.space.pixels(images).clamp(0, 1), shifts)).clamp(0, 1)

    def starts(self, streams: Streams, restarts: int) -> Tensor:
        """Return (V, B, 2) shifts to start from: 0 for the first restart of a victim, any whole pixels for others."""
        batch, _, height, width = self.space.shape
        halves = torch.tensor((width / 2, height / 2), dtype=self.limits.dtype, device=self.limits.device)
        drawn = 2 * streams.uniform("shift", (batch, 2), like=self.space.like) - 1
        whole = (drawn * self.limits * halves).round() / halves
        whole[::restarts] = 0
        return whole.clamp(-self.limits, self.limits)

    def _operate(self, pixels: Tensor) -> Tensor:
        if self.operations is None:
            return pixels
        return self.operations(pixels.flatten(0, 1)).view(pixels.shape)


def shift_lens(seen: Observation, policy: KnownPolicy, *, fill: Fill, limits: tuple[float, float] | None) -> Lens:
    """Return the lens of the published attack: a shift and nothing else."""
    space = ImageSpace.of(seen)
    chosen = limits or largest_shifts(policy, seen.input_shape[2:])
    return Lens(space, fill, torch.tensor(chosen, dtype=seen.dtype, device=seen.device))


def variant_lens(seen: Observation, policy: KnownPolicy, chosen: Tensor, *, crop: bool) -> Lens:
    """Return the lens through one variant of the policy for each victim of the stack, after a crop where there is one.

    Args:
        seen: by victims with one image each.
        policy: that is known.
        chosen: (V,) numbers of the variants, on the host.
        crop: whether the place of the client's crop is searched for too.
    """
    codes, signs = policy.variants()
    operations = smooth_transformation(Variants(codes[chosen], signs[chosen]), device=seen.device)
    height, width = seen.input_shape[2:]
    reach = PADDING if crop and policy.crop_and_flip else 0
    limits = torch.tensor((2 * reach / width, 2 * reach / height), dtype=seen.dtype, device=seen.device)
    return Lens(ImageSpace.of(seen), "black", limits, operations)


def largest_shifts(policy: KnownPolicy, size: tuple[int, int]) -> tuple[float, float]:
    """Return how far images may be shifted across and down, in halves of width and height.

    The published limits where there are some, else what the translations of a policy and the crop add up to.
    """
    policies: Policies = tuple(dict.fromkeys(tuple(row) for row in policy.variants().codes.tolist()))
    if policies in PUBLISHED:
        return PUBLISHED[policies]
    height, width = size
    cropped = PADDING if policy.crop_and_flip else 0
    across = max(_total(codes, "translate-x") for codes in policies) + cropped / width
    down = max(_total(codes, "translate-y") for codes in policies) + cropped / height
    return 2 * across, 2 * down


def _total(codes: tuple[int, ...], kind: str) -> float:
    return sum(OPERATIONS[code].value for code in codes if code >= 0 and OPERATIONS[code].kind == kind)


def translate(images: Tensor, shifts: Tensor) -> Tensor:
    """Shift images bilinearly, differentiably in both; zeros move in.

    Args:
        images: (..., C, H, W).
        shifts: (..., 2) across and down, in halves of width and height; a positive one moves the content to the left
            and up.

    Example:
        >>> translate(torch.arange(4.0).view(1, 1, 4), torch.tensor([0.5, 0.0])).tolist()
        [[[1.0, 2.0, 3.0, 0.0]]]
    """
    across = _along_rows(images, shifts[..., 0] * images.shape[-1] / 2)
    return _along_rows(across.mT, shifts[..., 1] * images.shape[-2] / 2).mT


def _along_rows(images: Tensor, pixels: Tensor) -> Tensor:
    """Let every output pixel x take what lies at x + pixels, between its two neighbours."""
    width = images.shape[-1]
    position = torch.arange(width, device=images.device) + pixels[..., None]
    left = position.detach().floor()
    share = (position - left)[..., None, None, :]
    here, after = _column(images, left), _column(images, left + 1)
    # At whole pixels, where every search begins, the two sides have different slopes; either one alone would push all
    # shifts to its own side, since a shift by parts of a pixel smooths the noise that images start from.
    both_sides = (after - _column(images, left - 1)) / 2
    return here + share * torch.where(share == 0, both_sides, after - here)


def _column(images: Tensor, source: Tensor) -> Tensor:
    """Take the columns (..., W) of images (..., C, H, W); zeros for those outside."""
    width = images.shape[-1]
    inside = ((source >= 0) & (source < width))[..., None, None, :]
    index = source.clamp(0, width - 1).long()[..., None, None, :].expand(images.shape)
    return images.gather(-1, index).where(inside, 0)
