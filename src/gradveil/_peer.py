"""The peer that can be measured beside us, when a user has installed it."""

import contextlib
import importlib.util
import io
import time
from types import SimpleNamespace

import torch

from gradveil.types import Observation


def breaching_milliseconds(observation: Observation, *, iterations: int) -> float | None:
    """Return what an iteration of breaching's `invertinggradients` takes for one victim; None if it is not there."""
    if importlib.util.find_spec("breaching") is None:
        return None
    try:
        import breaching
    except (ImportError, RuntimeError):  # it needs a torchvision that fits the installed torch
        return None
    with contextlib.redirect_stdout(io.StringIO()):
        times = [_seconds(breaching, observation, count) for count in (3, 3, 3 + iterations)]
    return 1000 * (times[2] - times[1]) / iterations


def _seconds(breaching: object, observation: Observation, iterations: int) -> float:
    setup = {"device": observation.device, "dtype": torch.float32}
    settings = breaching.get_attack_config("invertinggradients", overrides=[f"optim.max_iterations={iterations}"])  # type: ignore[attr-defined]
    attacker = breaching.attacks.prepare_attack(observation.model, torch.nn.CrossEntropyLoss(), settings, setup)  # type: ignore[attr-defined]
    channels = observation.input_shape[1]
    about = SimpleNamespace(
        shape=observation.input_shape[1:], mean=[0.0] * channels, std=[1.0] * channels, modality="vision",
        classes=observation.num_classes,
    )  # fmt: skip
    sent = {
        "parameters": list(observation.model.parameters()),
        "buffers": list(observation.model.buffers()),
        "metadata": about,
    }
    assert observation.labels is not None
    shared = {
        "gradients": [tensor[0] for tensor in observation.update],
        "buffers": None,
        "metadata": {"num_data_points": 1, "labels": observation.labels[0], "local_hyperparams": None},
    }
    if observation.device.type == "cuda":
        torch.cuda.synchronize()
    began = time.perf_counter()
    attacker.reconstruct([sent], [shared], {}, dryrun=False)
    if observation.device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - began
