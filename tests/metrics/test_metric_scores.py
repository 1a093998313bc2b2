"""Plain scores against scikit-image and torchmetrics."""

import itertools
import math

import pytest
import torch
from skimage.metrics import peak_signal_noise_ratio, structural_similarity
from torch import Tensor
from torchmetrics.functional.image import structural_similarity_index_measure

from gradveil.metrics import MSE, PSNR, RMSE, SSIM
from gradveil.metrics._filters import blur


def pair(*shape: int, noise: float = 0.2) -> tuple[Tensor, Tensor]:
    """Smooth pictures and noisy versions of them."""
    generator = torch.Generator().manual_seed(0)
    truth = blur(torch.rand(shape, generator=generator, dtype=torch.float64), 1.0)
    guess = (truth + noise * torch.randn(shape, generator=generator, dtype=torch.float64)).clamp(0, 1)
    return guess[None], truth[None]


def test_psnr_agrees_with_scikit_image() -> None:
    guess, truth = pair(4, 3, 16, 16)
    reference = [
        peak_signal_noise_ratio(t.numpy(), g.numpy(), data_range=1) for g, t in zip(guess[0], truth[0], strict=True)
    ]
    torch.testing.assert_close(PSNR()(guess, truth)[0], torch.tensor(reference, dtype=torch.float64))


def test_psnr_of_a_copy_is_140_db() -> None:
    _, truth = pair(2, 1, 8, 8)
    torch.testing.assert_close(PSNR()(truth, truth), torch.full((1, 2), 140.0, dtype=torch.float64))


def test_psnr_of_grey_against_black_and_white_is_6_db() -> None:
    truth = torch.stack([torch.zeros(3, 4, 4), torch.ones(3, 4, 4)])[None]
    torch.testing.assert_close(PSNR()(torch.full_like(truth, 0.5), truth), torch.full((1, 2), 6.0206))


def test_mse_and_relative_error_follow_their_formulas() -> None:
    guess, truth = pair(3, 3, 8, 8)
    for index, (g, t) in enumerate(zip(guess[0], truth[0], strict=True)):
        assert MSE()(guess, truth)[0, index].item() == pytest.approx(((g - t) ** 2).mean().item())
        assert RMSE()(guess, truth)[0, index].item() == pytest.approx(((g - t).norm() / t.norm()).item())


def test_relative_error_of_a_black_image_is_finite() -> None:
    assert RMSE()(torch.rand(1, 1, 1, 4, 4), torch.zeros(1, 1, 1, 4, 4)).isfinite().all()


def scikit_ssim(guess: Tensor, truth: Tensor, sigma: float) -> Tensor:
    scores = [
        structural_similarity(
            t.numpy(),
            g.numpy(),
            channel_axis=0,
            gaussian_weights=True,
            sigma=sigma,
            use_sample_covariance=False,
            data_range=1,
        )
        for g, t in zip(guess[0], truth[0], strict=True)
    ]
    return torch.tensor(scores, dtype=torch.float64)[None]


@pytest.mark.parametrize("shape", [(3, 3, 32, 32), (2, 1, 28, 28), (2, 3, 11, 40), (2, 1, 12, 11)])
def test_ssim_agrees_with_scikit_image(shape: tuple[int, int, int, int]) -> None:
    guess, truth = pair(*shape)
    reference = scikit_ssim(guess, truth, 1.5)
    torch.testing.assert_close(SSIM()(guess, truth), reference, rtol=0, atol=1e-10)
    torch.testing.assert_close(SSIM()(guess.float(), truth.float()).double(), reference, rtol=0, atol=1e-5)


@pytest.mark.parametrize(("side", "window"), [(8, 7), (10, 9), (5, 5), (4, 3)])
def test_ssim_of_small_images_shrinks_window_and_sigma_alike(side: int, window: int) -> None:
    guess, truth = pair(3, 1, side, side)
    torch.testing.assert_close(SSIM()(guess, truth), scikit_ssim(guess, truth, 1.5 * window / 11), rtol=0, atol=1e-10)


def test_ssim_agrees_with_torchmetrics_away_from_the_border() -> None:
    guess, truth = (images[0] for images in pair(3, 3, 32, 32))
    _, maps = structural_similarity_index_measure(guess, truth, data_range=1.0, return_full_image=True)
    reference = maps[..., 5:-5, 5:-5].flatten(1).mean(1)
    torch.testing.assert_close(SSIM()(guess[None], truth[None])[0], reference, rtol=0, atol=1e-4)


def looped_ssim(guess: Tensor, truth: Tensor, *, window: int, sigma: float) -> float:
    """Average over all pixels of (C, H, W), one window after another; what lies outside the image is black."""
    half, (channels, height, width) = window // 2, truth.shape
    scores = []
    for channel, row, column in itertools.product(range(channels), range(height), range(width)):
        sums, total = [0.0] * 5, 0.0
        for down, right in itertools.product(range(-half, half + 1), repeat=2):
            weight = math.exp(-(down**2 + right**2) / (2 * sigma**2))
            total += weight
            if 0 <= row + down < height and 0 <= column + right < width:
                g, t = (float(image[channel, row + down, column + right]) for image in (guess, truth))
                sums = [s + weight * value for s, value in zip(sums, (g, t, g * g, t * t, g * t), strict=True)]
        g, t, gg, tt, gt = (value / total for value in sums)
        luminance = (2 * g * t + 0.01**2) / (g**2 + t**2 + 0.01**2)
        scores.append(luminance * (2 * (gt - g * t) + 0.03**2) / (gg - g**2 + tt - t**2 + 0.03**2))
    return sum(scores) / len(scores)


@pytest.mark.parametrize(("shape", "window"), [((2, 1, 12, 9), 11), ((1, 2, 6, 6), 11), ((1, 1, 8, 8), 5)])
def test_padded_ssim_is_that_of_windows_around_every_pixel(shape: tuple[int, int, int, int], window: int) -> None:
    guess, truth = pair(*shape)
    reference = [looped_ssim(g, t, window=window, sigma=1.5) for g, t in zip(guess[0], truth[0], strict=True)]
    found = SSIM(window=window, padding="zeros")(guess, truth)
    torch.testing.assert_close(found, torch.tensor([reference], dtype=torch.float64), rtol=0, atol=1e-12)
    assert not torch.allclose(found, SSIM(window=window)(guess, truth), atol=1e-3)


def test_ssim_refuses_a_window_without_a_middle() -> None:
    with pytest.raises(ValueError, match="odd"):
        SSIM(window=10)
    with pytest.raises(ValueError, match="sigma"):
        SSIM(sigma=0)
