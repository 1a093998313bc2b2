"""How much of a private image comes back from its transformed form, to somebody who knows the transformation.

The private image is looked for by what it looks like after the transformation, from a grey square and some other starts
on: what the transformation shows is found, and what it hides stays as it was. No network takes part, so this is what an
informed adversary can at least make of a gradient by recovering everything that the network saw.
"""

from typing import Final

import torch
from torch import Tensor

from gradveil.transforms import Variants, transform_smoothly

_STEPS: Final = 60
_STEP: Final = 0.05  # of the first step
_GREY: Final = 0.5
_DARK, _BRIGHT = 0.125, 0.875
_SMALLEST: Final = (0.1 / 255) ** 2


def share_undone(seen: Tensor, private: Tensor, variants: Variants) -> Tensor:
    """Return (N,), how much of the private images (N, C, H, W) comes back, from 0 to 1.

    It is the squared correlation of the undone and the private image: the share of what varies in the private image
    that the undone one explains, whatever its brightness and contrast, which do not hide what an image shows. 0 is a
    transformation that leaves nothing, 1 one that hides nothing. Of several starts, grey, dark, bright, what was seen
    and its negative, the one counts that ends nearest to the private image, since an adversary knows what images look
    like: a stretched contrast, for one, explains itself, and so does a very faint image; and what two brightnesses are
    turned into, as by a solarization, is found from the side on which most of an image lies.

    Args:
        seen: (N, C, H, W) transformed images in [0, 1].
        private: (N, C, H, W) what they were.
        variants: codes and signs (N, L) that each went through.

    Example:
        >>> private, invert = torch.rand(1, 3, 4, 4), Variants(torch.tensor([[0]]), torch.tensor([[1]]))
        >>> round(share_undone(1 - private, private, invert).item(), 3)
        1.0
    """
    starts = (*(torch.full_like(seen, level) for level in (_GREY, _DARK, _BRIGHT)), seen, 1 - seen)
    return torch.stack([_explained(undo(seen, variants, start=start), private) for start in starts]).amax(0)


def undo(seen: Tensor, variants: Variants, *, start: Tensor, steps: int = _STEPS) -> Tensor:
    """Look for the images that a known transformation turns into what was seen.

    Plain gradient descent, not Adam: a pixel that shows only in the mean of an image, through contrast, shall hardly
    move. Each image has its own step size, which grows while its error falls and is halved where it does not.

    Args:
        seen: (N, C, H, W) transformed images in [0, 1].
        variants: codes and signs (N, L) that each went through.
        start: (N, C, H, W); pixels that do not show stay as they are here.
        steps: of descent on the squared difference.
    """
    best, (error, slope) = start, _error(start, seen, variants)
    size = torch.full_like(error, _STEP)
    for _ in range(steps):
        trial = (best - size.view(-1, 1, 1, 1) * slope).clamp(0, 1)
        new_error, new_slope = _error(trial, seen, variants)
        better = new_error < error
        size = torch.where(better, size * 1.2, size / 2)
        error, mask = torch.where(better, new_error, error), better.view(-1, 1, 1, 1)
        best, slope = torch.where(mask, trial, best), torch.where(mask, new_slope, slope)
    return best


def margin_over_grey(guess: Tensor, private: Tensor) -> Tensor:
    """Return (N,), the PSNR of a guess minus that of a grey square, in dB; below 0 where grey would have been better.

    Example:
        >>> round(margin_over_grey(torch.zeros(1, 1, 2, 2), torch.ones(1, 1, 2, 2)).item(), 2)
        -6.02
    """
    return 10 * (_mean_square(private - _GREY) / _mean_square(private - guess)).log10()


def _error(guess: Tensor, seen: Tensor, variants: Variants) -> tuple[Tensor, Tensor]:
    """Return (N,) squared errors and their derivative."""
    with torch.enable_grad():
        trial = guess.detach().requires_grad_()
        errors = (transform_smoothly(trial, variants) - seen).square().sum((1, 2, 3))
        (slope,) = torch.autograd.grad(errors.sum(), trial)
    return errors.detach(), slope


def _explained(guess: Tensor, private: Tensor) -> Tensor:
    """Return (N,), squared correlations; 0 where they are negative, or where the guess does not vary."""
    first, second = (images.flatten(1).double() for images in (guess, private))
    first, second = first - first.mean(1, keepdim=True), second - second.mean(1, keepdim=True)
    squares = (first.square().mean(1) * second.square().mean(1)).clamp(min=_SMALLEST**2)
    correlation = (first * second).mean(1).clamp(min=0) / squares.sqrt()
    return correlation.square().clamp(max=1).to(guess.dtype)


def _mean_square(difference: Tensor) -> Tensor:
    """Return (N,), at least a hundredth of a level squared, so that no image is infinitely good."""
    return difference.square().mean((1, 2, 3)).clamp(min=_SMALLEST)
