"""How a federation trains."""

import math
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from gradveil.errors import GradVeilError, SpecError
from gradveil.registry import parse_settings
from gradveil.types import LocalTraining, Mode

Algorithm: TypeAlias = Literal["fedavg", "fedsgd", "round-robin", "decentralized"]
View: TypeAlias = Literal["server", "aggregate", "next", "neighbour"]

_VIEWS: dict[str, tuple[View, ...]] = {
    "fedavg": ("server", "aggregate"),
    "fedsgd": ("server", "aggregate"),
    "round-robin": ("next", "server"),
    "decentralized": ("neighbour",),
}


class FederationError(GradVeilError):
    """A federation that cannot go on, or that cannot be continued from its checkpoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Federation:
    """How a federation trains, and who watches.

    Args:
        algorithm: `fedavg`: clients train from the same model, the server averages their updates by number of samples;
            `fedsgd`: they share the gradient of one step; `round-robin`: the model goes from client to client;
            `decentralized`: every client has a model and averages it with those of its neighbours.
        rounds: of training.
        fraction: share of the clients that is drawn for a round; at least one is.
        local_epochs: passes of a client over its samples in a round; samples that fill no batch are left out of a pass.
        local_steps: optimizer steps of a client in a round; None counts epochs.
        batch_size: samples of a local step; None or more than a client has takes all of its samples.
        local: optimizer, learning rate and loss reduction of the clients; its steps and batches are those above.
        server_lr: factor on the averaged update. Of `fedsgd` the step is `server_lr` times the clients' rate.
        mode: of batch norm and dropout while training.
        share_buffers: average running statistics too; otherwise they stay with the clients and the server keeps its.
        graph: neighbours of `decentralized`: `ring`, `complete` or edges such as `0-1+1-2+2-0`.
        view: what the adversary sees: each client's update (`server`), the weighted mean of a round alone, as under
            secure aggregation or as any participant (`aggregate`), the difference of successive models
            (`next`, round-robin), or what a neighbour can make of the models it gets (`neighbour`); None takes the
            first that the algorithm has.
        delta: of the guarantee, where a defense has one and an accountant is installed.
        seed: of all randomness.
    """

    algorithm: Algorithm = "fedavg"
    rounds: int = 10
    fraction: float = 1.0
    local_epochs: int = 1
    local_steps: int | None = None
    batch_size: int | None = 32
    local: LocalTraining = field(default_factory=lambda: LocalTraining(lr=0.1))
    server_lr: float = 1.0
    mode: Mode = "train"
    share_buffers: bool = True
    graph: str = "ring"
    view: View | None = None
    delta: float = 1e-5
    seed: int = 0

    def __post_init__(self) -> None:
        if self.algorithm not in _VIEWS:
            raise ValueError(f"algorithm must be one of {', '.join(_VIEWS)}, got '{self.algorithm}'")
        for name in ("rounds", "local_epochs", "local_steps", "batch_size"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        if not 0 < self.fraction <= 1:
            raise ValueError(f"fraction must be above 0 and at most 1, got {self.fraction}")
        if not 0 < self.delta < 1:
            raise ValueError(f"delta must be above 0 and below 1, got {self.delta}")
        if not 0 < self.server_lr < math.inf:
            raise ValueError(f"server_lr must be above 0 and finite, got {self.server_lr}")
        if not 0 <= self.seed < 2**63:
            raise ValueError(f"seed must be at least 0 and below 2^63, got {self.seed}")
        if self.view is not None and self.view not in _VIEWS[self.algorithm]:
            known = " or ".join(_VIEWS[self.algorithm])
            raise ValueError(f"the adversary's view of {self.algorithm} must be {known}, got '{self.view}'")

    @property
    def seen_by(self) -> View:
        """The adversary's view, after the default of the algorithm."""
        return self.view or _VIEWS[self.algorithm][0]


def build_federation(settings: str, local: str, *, rounds: int, seed: int) -> Federation:
    """Make the settings of a federation from `field=value,...` of it and of its clients' training.

    Example:
        >>> build_federation("algorithm=fedsgd,fraction=0.5", "lr=0.2", rounds=3, seed=0).local.lr
        0.2
    """
    values = parse_settings(Federation, settings, "the federation")
    training = parse_settings(LocalTraining, local, "local training")
    for name in ("steps", "shares", "local_batch_size", "shuffled"):
        if name in training:
            raise SpecError(
                f"{name} follows from the federation; use --settings local_steps=...,batch_size=... instead"
            )
    try:
        built = Federation(**{"rounds": rounds, "seed": seed, **values, "local": LocalTraining(**training)})
    except ValueError as error:
        raise SpecError(str(error)) from error
    _check_one_gradient(built)
    return built


def _check_one_gradient(federation: Federation) -> None:
    """Refuse settings of local training that a shared gradient would pass by; momentum does nothing in one step."""
    local = federation.local
    idle = {"optimizer": local.optimizer != "sgd", "nesterov": local.nesterov, "weight_decay": local.weight_decay > 0}
    named = [name for name, asked in idle.items() if asked]
    if federation.algorithm == "fedsgd" and named:
        raise SpecError(
            f"fedsgd shares a gradient, by which the server takes a plain step, so that {named[0]} of local training "
            "would do nothing; leave it out, or use algorithm=fedavg,local_steps=1"
        )
