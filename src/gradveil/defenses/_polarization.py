"""How the two losses of a secret polarization network pull at the shared layers."""

from dataclasses import replace

import torch.nn.functional as F
from torch import Tensor, nn

from gradveil.defenses.spn import SPN
from gradveil.engine import gradient_function, trainable
from gradveil.streams import Streams
from gradveil.types import Batch, Gradients, LossFn, Mode, State


def polarization_cosines(
    spn: SPN,
    model: nn.Module,
    batch: Batch,
    *,
    streams: Streams,
    loss: LossFn = F.cross_entropy,
    private: State | None = None,
    mode: Mode = "eval",
) -> dict[str, Tensor]:
    """Compare the gradients of the polarization loss and of the given one, layer by layer (the paper's Figure 4).

    Args:
        spn: the defense; its weights alpha do not matter.
        model: without the private head.
        batch: of V clients.
        streams: of the clients, for heads and codes that are not given.
        loss: the given one.
        private: (V, *shape) heads and codes by name, such as a client keeps them; drawn if None.
        mode: of batch norm.

    Returns:
        (V,) cosines by parameter, of those that both losses reach; the public head is not among them.

    Example:
        >>> import torch
        >>> model = nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))
        >>> batch = Batch(torch.rand(5, 2, 1, 2, 2), torch.zeros(5, 2, dtype=torch.long))
        >>> {name: tuple(c.shape) for name, c in polarization_cosines(SPN(), model, batch, streams=Streams()).items()}
        {'1.weight': (5,), '1.bias': (5,)}
    """
    own = spn.start(model, streams=streams.bind(batch.victims)) if private is None else private
    names, secret = trainable(model), replace(spn, alpha1=0.0, alpha2=1.0)
    plain = gradient_function(model, loss, names=names, mode=mode, precision="float32")
    network = secret.trained(secret.wrap(model))
    polarized = gradient_function(
        network, secret.wrap_loss(loss), names=names, mode=mode, parameters=own, precision="float32"
    )
    first, second = (function(batch.inputs, batch.labels).gradients for function in (plain, polarized))
    return _cosines(names, first, second)


def _cosines(names: tuple[str, ...], first: Gradients, second: Gradients) -> dict[str, Tensor]:
    pairs = {
        name: (a.detach().flatten(1), b.detach().flatten(1)) for name, a, b in zip(names, first, second, strict=True)
    }
    return {name: F.cosine_similarity(a, b, dim=1) for name, (a, b) in pairs.items() if bool(a.any()) and bool(b.any())}
