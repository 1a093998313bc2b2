import copy
import dataclasses
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from gradveil.data import Dataset, load
from gradveil.errors import DataError
from gradveil.models import checkpoints
from gradveil.models._resume import TrainingError
from gradveil.models.checkpoints import CheckpointError
from gradveil.models.generators import Autoencoder, Generator, GeneratorTraining, save, train_generator
from gradveil.models.generators import load as load_generator
from gradveil.storage import TensorFolder
from gradveil.streams import Streams

DIGITS = load("digits")
SHORT = GeneratorTraining(epochs=2, batch_size=32, latent_size=6, width=8)


def few(count: int = 96) -> Dataset:
    return dataclasses.replace(DIGITS, train=DIGITS.train.select(range(count)), test=DIGITS.test.select(range(40)))


def latents(count: int, size: int) -> Tensor:
    return Streams(seed=1, purpose="test").bind(1).normal("latents", (count, size))[0]


@pytest.mark.parametrize("shape", [(1, 8, 8), (1, 28, 28), (3, 32, 32), (3, 9, 13)])
def test_makes_images_of_any_shape_in_range(shape: tuple[int, int, int]) -> None:
    model = Autoencoder.build(shape, latent_size=5, width=8, num_classes=0, seed=0)
    made = model.generator(3 * latents(4, 5)).detach()
    assert made.shape == (4, *shape)
    assert 0 <= float(made.min()) < float(made.max()) <= 1
    assert model.reconstruct(made).shape == made.shape


def test_the_loss_is_the_evidence_bound_at_the_best_variance() -> None:
    model = Autoencoder.build((1, 8, 8), latent_size=3, width=8, num_classes=0, seed=0).double()
    images, noise = DIGITS.train.inputs(range(5), dtype=torch.float64), latents(5, 3).double()
    mean, log_variance = model.encoder(images)
    posterior = torch.distributions.Normal(mean, (log_variance / 2).exp())
    decoded = model.generator(posterior.loc + posterior.scale * noise)
    error = F.mse_loss(decoded, images)
    divergence = torch.distributions.kl_divergence(posterior, torch.distributions.Normal(0.0, 1.0)).sum(1).mean()
    likelihood = torch.distributions.Normal(decoded, error.sqrt()).log_prob(images).flatten(1).sum(1).mean()
    constant = 64 / 2 * (1 + torch.log(torch.tensor(2 * torch.pi)))
    found = model(images, noise)
    torch.testing.assert_close(found.total, divergence - likelihood - constant, check_dtype=False)
    torch.testing.assert_close(found.error, error, check_dtype=False, rtol=1e-5, atol=0)


def test_learns_digits_better_than_their_mean() -> None:
    found = train_generator(few(320), training=dataclasses.replace(SHORT, epochs=8, lr=1e-2, latent_size=16))
    inputs = DIGITS.test.inputs(range(40))
    mean = DIGITS.train.inputs(range(320)).mean(0)
    assert found.losses[-1] < found.losses[0] - 10
    assert found.error < 0.85 * float((inputs - mean).square().mean())
    assert not found.generator.training


def test_the_same_seed_gives_the_same_weights_and_another_one_others() -> None:
    first, again, other = (
        train_generator(few(), training=dataclasses.replace(SHORT, seed=seed)).generator.state_dict()
        for seed in (0, 0, 1)
    )
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["enter.weight"], other["enter.weight"])


def test_an_interrupted_training_goes_on_to_the_same_weights(tmp_path: Path) -> None:
    def stop(_task: str, done: int, _total: int) -> None:
        if done == 4:
            raise KeyboardInterrupt

    store, expected = TensorFolder(tmp_path), train_generator(few(), training=SHORT)
    with pytest.raises(KeyboardInterrupt):
        train_generator(few(), training=SHORT, store=store, progress=stop)
    state, seen = torch.get_rng_state(), []
    found = train_generator(few(), training=SHORT, store=store, progress=lambda _task, done, _total: seen.append(done))
    assert seen == [4, 5, 6]
    assert torch.equal(state, torch.get_rng_state())
    tensors = found.generator.state_dict()
    assert all(torch.equal(tensors[name], tensor) for name, tensor in expected.generator.state_dict().items())
    with pytest.raises(TrainingError, match="other settings"):
        train_generator(few(), training=dataclasses.replace(SHORT, lr=1e-3), store=store)


def test_images_of_a_stack_do_not_look_at_each_other() -> None:
    model = Autoencoder.build((3, 12, 12), latent_size=5, width=8, num_classes=0, seed=0).generator.double()
    drawn = latents(4, 5).double()
    torch.testing.assert_close(model(drawn)[2:3], model(drawn[2:3]), rtol=0, atol=1e-12)


def test_is_told_classes_hard_and_soft() -> None:
    model = Autoencoder.build((1, 8, 8), latent_size=4, width=8, num_classes=3, seed=0)
    drawn, labels = latents(3, 4), torch.tensor([0, 2, 1])
    hard = model.generator(drawn, labels)
    torch.testing.assert_close(hard, model.generator(drawn, F.one_hot(labels, 3).float()))
    assert not torch.allclose(hard, model.generator(drawn, labels.roll(1)), atol=1e-3)
    with pytest.raises(DataError, match="told one of 3 classes, got no labels"):
        model.generator(drawn)
    trained = train_generator(few(), training=dataclasses.replace(SHORT, conditional=True)).generator
    assert trained.num_classes == 10


def test_comes_back_from_a_file_with_its_settings(tmp_path: Path) -> None:
    model = Autoencoder.build((3, 10, 12), latent_size=5, width=16, num_classes=4, seed=7).generator
    save(model, tmp_path / "g.safetensors", about={"dataset": "digits"})
    found = load_generator(tmp_path / "g.safetensors")
    labels = torch.tensor([0, 1])
    assert torch.equal(found(latents(2, 5), labels), model(latents(2, 5), labels))
    assert (found.shape, found.latent_size, found.width, found.num_classes) == ((3, 10, 12), 5, 16, 4)
    assert checkpoints.read_about(tmp_path / "g.safetensors")["dataset"] == "digits"
    assert not any(parameter.requires_grad for parameter in found.parameters())
    copied = copy.deepcopy(found)
    assert torch.equal(copied(latents(2, 5), labels), found(latents(2, 5), labels))


def test_says_what_is_wrong(tmp_path: Path) -> None:
    checkpoints.save(torch.nn.Linear(1, 1), tmp_path / "m.safetensors", about={})
    with pytest.raises(CheckpointError, match="holds no generator; make one with `gradveil train generator`"):
        load_generator(tmp_path / "m.safetensors")
    with pytest.raises(CheckpointError, match="there is no checkpoint"):
        load_generator(tmp_path / "nothing.safetensors")
    for settings in ({"epochs": 0}, {"latent_size": 0}, {"width": 0}, {"lr": 0.0}):
        with pytest.raises(ValueError, match="must be"):
            dataclasses.replace(SHORT, **settings)


def test_the_width_follows_the_image_unless_it_is_given() -> None:
    assert GeneratorTraining().channels((3, 32, 32)) == 64
    assert GeneratorTraining(width=9).channels((3, 32, 32)) == 16
    assert isinstance(Generator((1, 8, 8)), torch.nn.Module)
