"""Whether a search found all that an update gives away, or stopped before."""

import numpy as np

from gradveil.record import Outcome

ALMOST_ALL = 0.9
"""Of what images explain of an update beyond a grey square, what a search must reach that did not stop short."""


def stopped_short(outcome: Outcome) -> int | None:
    """Count the updates that what the model saw explains better than what was found.

    A grey square says where to count from: with its labels alone it explains much of some networks' updates. None if
    nobody compared, or if nothing was searched for but read off the update in one step.

    Example:
        >>> compared = {"found": [0.94, 0.999], "seen": [1.0, 1.0], "grey": [0.9, 0.9]}
        >>> stopped_short(Outcome(objective=[], diverged=[], steps=[300, 300], agreement=compared))
        1
    """
    if not outcome.agreement or max(outcome.steps, default=0) <= 1:
        return None
    found, seen, grey = (np.nan_to_num(outcome.agreement[name], nan=-1.0) for name in ("found", "seen", "grey"))
    return int(((seen > grey) & (found - grey < ALMOST_ALL * (seen - grey))).sum())


def medians(outcome: Outcome) -> dict[str, float]:
    """Return the median agreement of what was `found`, what was `seen`, and of `grey`; empty if nobody compared."""
    return {name: float(np.median(values)) for name, values in outcome.agreement.items()}
