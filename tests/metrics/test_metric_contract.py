"""What every metric promises; a new file in `gradveil/metrics` is tested without a new line here."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from gradveil.errors import DataError
from gradveil.metrics import Metric, metrics
from gradveil.metrics._perceptual import expected_shapes


@pytest.fixture(scope="module")
def random_lpips_weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    generator = torch.Generator().manual_seed(0)
    path = tmp_path_factory.mktemp("weights") / "random-alex.safetensors"
    shapes = expected_shapes("alex").items()
    save_file(
        {name: torch.rand(shape, generator=generator) - 0.5 * ("features" in name) for name, shape in shapes}, path
    )
    return path


@pytest.fixture(params=metrics.names())
def metric(request: pytest.FixtureRequest, random_lpips_weights: Path) -> Metric:
    settings = f":weights={random_lpips_weights}" if request.param == "lpips" else ""
    return metrics.build(request.param + settings)


def images(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed))


def test_scores_every_sample(metric: Metric) -> None:
    assert metric(images(3, 2, 3, 12, 10), images(3, 2, 3, 12, 10, seed=1)).shape == (3, 2)


@pytest.mark.parametrize("shape", [(2, 1, 1, 8, 8), (2, 1, 3, 9, 13), (1, 2, 1, 28, 28)])
def test_takes_digits_and_odd_sizes(metric: Metric, shape: tuple[int, ...]) -> None:
    assert metric(images(*shape), images(*shape, seed=1)).isfinite().all()


def test_ranks_a_copy_over_a_near_guess_over_a_far_one(metric: Metric) -> None:
    truth, noise = images(4, 1, 3, 12, 12), images(4, 1, 3, 12, 12, seed=1) - 0.5
    copy, near, far = (metric(truth + scale * noise, truth) for scale in (0.0, 0.05, 1.0))
    sign = 1 if metric.higher_is_better else -1
    assert (sign * copy > sign * near).all()
    assert (sign * near > sign * far).all()


def test_gives_each_victim_what_it_gets_alone(metric: Metric) -> None:
    guess, truth = images(3, 2, 3, 12, 12), images(3, 2, 3, 12, 12, seed=1)
    alone = torch.cat([metric(guess[v : v + 1], truth[v : v + 1]) for v in range(3)])
    torch.testing.assert_close(metric(guess, truth), alone, rtol=1e-5, atol=1e-6)


def test_takes_what_is_not_a_number_for_grey_and_clamps_the_rest(metric: Metric) -> None:
    guess, truth = images(1, 2, 3, 12, 12) * 4 - 2, images(1, 2, 3, 12, 12, seed=1)
    guess[0, 0, :, 3:9, 3:9] = float("nan")
    torch.testing.assert_close(metric(guess, truth), metric(guess.nan_to_num(nan=0.5).clamp(0, 1), truth))


def test_leaves_its_arguments_alone(metric: Metric) -> None:
    guess, truth = images(1, 2, 3, 12, 12) * 3, images(1, 2, 3, 12, 12, seed=1)
    before = guess.clone(), truth.clone()
    metric(guess, truth)
    assert torch.equal(guess, before[0])
    assert torch.equal(truth, before[1])


def test_keeps_double_precision_and_raises_half(metric: Metric) -> None:
    guess, truth = images(1, 2, 3, 12, 12), images(1, 2, 3, 12, 12, seed=1)
    assert metric(guess.double(), truth).dtype == torch.float64
    assert metric(guess.bfloat16(), truth.half()).dtype == torch.float32
    torch.testing.assert_close(metric(guess.double(), truth).float(), metric(guess, truth), rtol=1e-4, atol=1e-5)


def test_refuses_shapes_that_differ(metric: Metric) -> None:
    with pytest.raises(DataError, match="align first"):
        metric(images(1, 3, 3, 12, 12), images(1, 2, 3, 12, 12))
    with pytest.raises(DataError, match="V, B, C, H, W"):
        metric(images(3, 12, 12), images(3, 12, 12))


def test_is_rebuilt_from_its_description(metric: Metric) -> None:
    assert metrics.build(metrics.describe(metric)) == metric


def test_names_title_unit_and_direction(metric: Metric) -> None:
    assert metric.title
    assert metric.unit in {"", "dB"}
    assert isinstance(metric.higher_is_better, bool)


def test_files_of_the_folder_are_the_names() -> None:
    assert metrics.names() == ("lpips", "mse", "psnr", "registered-psnr", "rmse", "ssim")
