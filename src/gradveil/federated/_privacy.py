"""Epsilon of a federation, where an accountant can give one."""

import math
from collections.abc import Sequence
from dataclasses import replace

from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from gradveil.defenses import DPSGD, CentralDP, Defense, InstaHide, LocalDP, Loda, Mixup, UpdateDefense
from gradveil.federated.settings import Federation
from gradveil.privacy import Guarantee, account
from gradveil.privacy.accounting import AccountingError


def guarantee(
    defenses: Sequence[Defense], settings: Federation, *, rounds: int, held: int, delta: float
) -> Guarantee | None:
    """Return what a client is guaranteed after some rounds, or None where no accountant gives a number.

    Batches are disjoint parts of a shuffled pass, not drawn by Poisson sampling, so that no sampling helps: a sample
    counts as used in every pass, once, and as replaced by any other one, which moves a sum of clipped gradients by
    twice the norm; without it all batches would be dealt anew. Where a data defense makes samples of several private
    ones, no clipping bounds what one of these does. A defense after the first that has a guarantee only processes it
    further; that of the server comes last, so that central privacy needs its clipping to be the last thing a client
    does.

    Args:
        defenses: of the client.
        settings: of the federation.
        rounds: that the client took part in.
        held: samples of the client.
        delta: of the guarantee.
    """
    if any(isinstance(defense, Mixup | InstaHide | Loda) for defense in defenses):
        return None
    for defense in defenses:
        noisy = isinstance(defense, DPSGD | LocalDP | CentralDP) and defense.noise_multiplier > 0
        if not noisy or not rounds or (isinstance(defense, CentralDP) and defense is not _last_of_update(defenses)):
            continue
        steps = rounds * (passes(settings, held) if isinstance(defense, DPSGD) else 1)
        if isinstance(defense, DPSGD):
            defense = replace(defense, noise_multiplier=defense.noise_multiplier / 2)  # noqa: PLW2901
        try:
            return account(defense, steps=steps, delta=delta, accountant="rdp")
        except AccountingError:  # without opacus nobody computes epsilon, and none is printed
            return None
    return None


def statistics_leave(model: nn.Module, settings: Federation) -> bool:
    """Tell whether running statistics leave the clients, which no accountant here covers.

    Example:
        >>> statistics_leave(nn.BatchNorm2d(3), Federation()), statistics_leave(nn.GroupNorm(1, 3), Federation())
        (True, False)
    """
    tracked = any(isinstance(layer, _NormBase) and layer.track_running_stats for layer in model.modules())
    return tracked and settings.mode == "train" and settings.share_buffers


def _last_of_update(defenses: Sequence[Defense]) -> Defense | None:
    return next((defense for defense in reversed(defenses) if isinstance(defense, UpdateDefense)), None)


def passes(settings: Federation, held: int) -> int:
    """Return how often a client of `held` samples uses one of them in a round, at most.

    Example:
        >>> passes(Federation(local_epochs=2, batch_size=4), 9), passes(Federation(local_steps=3, batch_size=4), 9)
        (2, 2)
    """
    if settings.algorithm == "fedsgd":
        return 1
    count = min(settings.batch_size or held, held)
    steps = settings.local_steps or settings.local_epochs * (held // count)
    return math.ceil(steps / max(held // count, 1))
