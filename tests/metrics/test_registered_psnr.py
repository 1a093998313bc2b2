import pytest
import torch
from torch import Tensor

from gradveil.metrics import PSNR, RegisteredPSNR


def images(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed))


def brute_force(guess: Tensor, truth: Tensor, down: int, right: int) -> float:
    """Try every shift of one image and of its mirror image."""
    scores = [
        PSNR()(variant.roll((dy, dx), (-2, -1))[None, None], truth[None, None]).item()
        for variant in (guess, guess.flip(-1))
        for dy in range(-down, down + 1)
        for dx in range(-right, right + 1)
    ]
    return max(scores)


@pytest.mark.parametrize(("max_shift", "down", "right"), [(0.25, 2, 3), (0.0, 0, 0), (0.5, 4, 6), (0.4, 3, 4)])
def test_agrees_with_trying_every_shift(max_shift: float, down: int, right: int) -> None:
    guess, truth = images(2, 3, 3, 8, 12), images(2, 3, 3, 8, 12, seed=1)
    scores = RegisteredPSNR(max_shift=max_shift)(guess, truth)
    for victim in range(2):
        for sample in range(3):
            reference = brute_force(guess[victim, sample], truth[victim, sample], down, right)
            assert scores[victim, sample].item() == pytest.approx(reference, abs=1e-4)


def test_finds_a_shifted_mirrored_copy() -> None:
    truth = images(3, 1, 3, 16, 16)
    shifted = torch.stack([truth[0].roll((4, -3), (-2, -1)), truth[1].flip(-1), truth[2].flip(-1).roll(2, -2)])
    torch.testing.assert_close(RegisteredPSNR()(shifted, truth), torch.full((3, 1), 140.0))


def test_does_not_look_beyond_the_largest_shift() -> None:
    truth = images(1, 1, 1, 16, 16)
    assert RegisteredPSNR()(truth.roll(5, -1), truth).item() < 20


def test_is_never_below_plain_psnr() -> None:
    guess, truth = images(20, 1, 1, 8, 8), images(20, 1, 1, 8, 8, seed=1)
    assert (RegisteredPSNR()(guess, truth) >= PSNR()(guess, truth) - 1e-5).all()


def test_refuses_a_shift_beyond_half_the_side() -> None:
    with pytest.raises(ValueError, match="max_shift"):
        RegisteredPSNR(max_shift=0.6)
