"""How well images explain an update: what tells a search that stopped short from a defense that hides."""

from dataclasses import replace

import torch
from torch import Tensor

from gradveil.engine import Runtime, in_chunks, matching
from gradveil.engine.runtime import silent
from gradveil.streams import Streams
from gradveil.types import Gradients, Observation

_NOTHING = 1e-30  # is the norm of no update


@torch.no_grad()
def agreement(
    observation: Observation, inputs: Tensor, labels: Tensor, *, seed: int = 0, runtime: Runtime | None = None
) -> Tensor:
    """Return (V,), the cosine between the update and the one that images would give, as the adversary can compute it.

    1 means that the images explain the update. Images that explain it less well than those that the model saw are not
    what the update hides, but where the search stopped. Where a defense or unknown local training changed the update,
    those do not reach 1 either.

    Args:
        observation: what the adversary has.
        inputs: (V, B, C, H, W) as the model takes them.
        labels: (V, B) or (V, B, K).
        seed: of an order of samples that nobody knows.
        runtime: victims at once, and threads.

    Example:
        >>> model, inputs = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 3)), torch.rand(2, 1, 1, 2, 2)
        >>> from gradveil import Batch, observe
        >>> labels = torch.tensor([[0], [2]])
        >>> seen = observe(Batch(inputs, labels), model, torch.nn.functional.cross_entropy)
        >>> torch.allclose(agreement(seen, inputs, labels).float(), torch.ones(2))
        True
    """
    streams = Streams(seed=seed, purpose="agreement").bind(observation.victims)
    quiet = replace(runtime or Runtime(), precision="float32", store=None, progress=silent)

    def part(victims: slice, _: Runtime) -> Tensor:
        rows = list(range(*victims.indices(observation.victims)))
        match = matching(observation.select(rows), precision="float32", streams=streams.select(rows))
        return _cosine(match.gradients(inputs[victims], labels[victims]), match.target)

    with quiet.numerics():
        parts, _ = in_chunks(part, observation.victims, device=observation.device, runtime=quiet)
    return torch.cat(parts)


def _cosine(trial: Gradients, target: Gradients) -> Tensor:
    def product(one: Gradients, other: Gradients) -> Tensor:
        pairs = zip(one, other, strict=True)
        return torch.stack([(a.double() * b.double()).reshape(len(a), -1).sum(1) for a, b in pairs]).sum(0)

    norms = (product(trial, trial) * product(target, target)).sqrt()
    return product(trial, target) / norms.clamp_min(_NOTHING)
