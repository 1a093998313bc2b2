"""The server's half of central differential privacy: clients count equally, and the mean gets noise."""

from collections.abc import Sequence

from torch import Tensor

from gradveil.defenses import CentralDP, Defense
from gradveil.errors import SpecError
from gradveil.federated.settings import Federation
from gradveil.streams import Streams
from gradveil.types import State


def central_dp(defenses: Sequence[Defense]) -> CentralDP | None:
    """Return the defense whose noise the server adds, if there is one.

    Example:
        >>> central_dp([CentralDP(norm=2.0)])
        CentralDP(norm=2.0, noise_multiplier=1.0)
    """
    return next((defense for defense in defenses if isinstance(defense, CentralDP)), None)


def check_server(defenses: Sequence[Defense], settings: Federation) -> None:
    """Refuse central privacy where no server averages."""
    if central_dp(defenses) is not None and settings.algorithm not in {"fedavg", "fedsgd"}:
        raise SpecError(
            f"central-dp adds its noise where a server averages, which {settings.algorithm} does not; "
            "use fedavg or fedsgd, or local-dp"
        )


def finished(mean: State, central: CentralDP | None, *, clients: int, seed: int, number: int) -> dict[str, Tensor]:
    """Add the server's noise to the mean of a round, by the seed of the federation.

    Args:
        mean: of the clients' updates, in which each counted equally, by name in the order of the model.
        central: the defense; None changes nothing.
        clients: that were averaged.
        seed: of the federation.
        number: of the round.
    """
    if central is None:
        return dict(mean)
    streams = Streams(seed=seed, purpose="server").fork(f"noise-of-round-{number}").bind(1)
    noisy = central.finish(tuple(tensor[None] for tensor in mean.values()), clients=clients, streams=streams)
    return {name: tensor[0] for name, tensor in zip(mean, noisy, strict=True)}
