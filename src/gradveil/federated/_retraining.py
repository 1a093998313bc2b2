"""Local training step by step, on the samples and random states that a client noted."""

import torch
from torch import Tensor, nn

from gradveil.engine._unrolled import move
from gradveil.engine.looped import looped_function
from gradveil.errors import RecordError
from gradveil.federated.granting import Granted
from gradveil.federated.recorder import About, Recorded
from gradveil.types import LossFn, State


def retrained(
    recorded: Recorded, model: nn.Module, loss: LossFn, granted: Granted, about: About, *, frozen: tuple[str, ...]
) -> State:
    """Return the update that a client of the stated settings makes of the noted steps, zero where it is frozen.

    More steps than were noted begin again at the first.
    """
    local, like = about.local(), next(model.parameters())
    names = tuple(name for name in recorded.update if name not in frozen)
    before = {name: model.get_parameter(name).detach()[None] for name in names}
    weights, buffers, momenta = before, dict[str, Tensor](), dict[str, Tensor]()
    inputs, labels = granted.inputs.to(like), granted.labels.to(like.device)
    steps = list(zip(inputs.split(granted.sizes.tolist()), labels.split(granted.sizes.tolist()), strict=True))
    with torch.random.fork_rng([like.device] if like.is_cuda else []):
        for number in range(local.steps):
            _set_random_state(granted.random_states[number % len(steps)], like)
            images, own = steps[number % len(steps)]
            function = looped_function(
                model,
                loss,
                names=names,
                mode=about.mode or "eval",
                parameters=weights,
                buffers=buffers,
                precision="float32",
            )
            found = function(images[None], own[None])
            buffers |= {name: tensor.detach() for name, tensor in found.buffers.items()}
            factor = len(images) if local.reduction == "sum" else 1
            gradients = {name: factor * g for name, g in zip(names, found.gradients, strict=True)}
            weights = gradients if local.shares == "gradient" else move(weights, gradients, local, momenta, number)
    made = weights if local.shares == "gradient" else {name: before[name] - weights[name] for name in names}
    return {n: made[n][0] if n in made else torch.zeros_like(tensor) for n, tensor in recorded.update.items()}


def _set_random_state(state: Tensor, like: Tensor) -> None:
    now = torch.cuda.get_rng_state(like.device) if like.is_cuda else torch.get_rng_state()
    if state.shape != now.shape:
        raise RecordError(
            f"the noted random state has {len(state)} bytes, but that of {like.device.type} here has {len(now)}; "
            "replay on the kind of device and version of torch that trained"
        )
    own = state.clone()  # torch reads it from the beginning of its memory
    if like.is_cuda:
        torch.cuda.set_rng_state(own, like.device)
    else:
        torch.set_rng_state(own)
