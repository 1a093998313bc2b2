"""Which defenses do not go together."""

from collections.abc import Sequence
from typing import Literal

from gradveil.defenses._base import Defense, ModelDefense, StepDefense
from gradveil.defenses.central_dp import CentralDP
from gradveil.defenses.local_dp import LocalDP
from gradveil.errors import SpecError


def check_combination(
    defenses: Sequence[Defense], *, shares: Literal["gradient", "difference", "weights"] = "gradient"
) -> None:
    """Refuse defenses that cannot be in one client step, in one sentence; what merely goes badly together is in cards.

    Args:
        defenses: of a client, in order.
        shares: what the client shares.
    """
    steps = [type(d).__name__ for d in defenses if isinstance(d, StepDefense)]
    if len(steps) > 1:
        raise SpecError(f"one step can be computed in one way only, got {', '.join(steps)}; keep one of them")
    parts = [type(d).__name__ for d in defenses if isinstance(d, ModelDefense)]
    twice = next((name for name in parts if parts.count(name) > 1), None)
    if twice:
        raise SpecError(f"a network can hold the parts of {twice} once, got {parts.count(twice)} of them; keep one")
    bounded = [type(d).__name__ for d in defenses if isinstance(d, CentralDP | LocalDP)]
    if bounded and shares == "weights":
        raise SpecError(
            f"{bounded[0]} bounds how far a client moves the model, but the client shares weights; share a difference"
        )
