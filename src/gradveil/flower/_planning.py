"""What server and clients of the ready apps agree on, read from Flower's run config."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self, TypeVar

import torch.nn.functional as F
from torch import nn

from gradveil import data
from gradveil.client import Client
from gradveil.data import Dataset, Split
from gradveil.defenses import Defense
from gradveil.defenses import defenses as known_defenses
from gradveil.engine import Runtime, normalized
from gradveil.engine.normalization import Standardize, find_normalization
from gradveil.errors import SpecError
from gradveil.federated._participants import Site
from gradveil.federated.importing import PREFIX, import_object
from gradveil.federated.partition import partition
from gradveil.federated.settings import Federation, build_federation
from gradveil.models import architectures
from gradveil.spec import build
from gradveil.types import Knowledge, LossFn

T = TypeVar("T")
_KEYS = (
    "model", "data", "test", "partition", "input-shape", "num-classes", "settings", "local", "defenses", "rounds",
    "seed", "client-seed", "timeout", "out", "record", "clients",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A federation of the ready apps.

    Args:
        model: spec such as `lenet`, or `import:package.module:name` of a function that makes a network, which eats
            images in [0, 1].
        data: name of a data set, or `import:package.module:name` of a function that takes a client's number and how
            many there are, and returns its `Split`.
        test: `import:package.module:name` of a function that returns the server's own `Split` to measure on; empty
            takes the data set's test images, or none if the data are imported.
        partition: of a data set.
        input_shape: (C, H, W), for a model by spec on imported data.
        num_classes: K, likewise.
        federation: how it trains; `fedavg` or `fedsgd`.
        defenses: of every client, in the order of the client step; those of all kinds.
        loss: of outputs and labels.
        clients: how many the server waits for.
        timeout: seconds that the server waits for the clients of a round.
        out: folder of the server for models and tables; empty keeps nothing.
        record: whether the server keeps every client's update there too.
    """

    model: str = "lenet"
    data: str = "digits"
    test: str = ""
    partition: str = "iid"
    input_shape: tuple[int, ...] = ()
    num_classes: int = 0
    federation: Federation = field(default_factory=Federation)
    defenses: tuple[Defense, ...] = ()
    loss: LossFn = F.cross_entropy
    clients: int = 2
    timeout: float = 3600.0
    out: str = ""
    record: bool = False

    def __post_init__(self) -> None:
        if self.federation.algorithm not in {"fedavg", "fedsgd"}:
            raise SpecError(
                f"Flower's server averages, which {self.federation.algorithm} does not; use fedavg or fedsgd, "
                "or gradveil.federate on this machine"
            )

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> Self:
        """Read the run config of an app, `[tool.flwr.app.config]`; what is not there takes its default.

        Example:
            >>> Plan.read({"model": "mlp", "rounds": 5, "defenses": "gaussian-noise:std=0.01"}).federation.rounds
            5
        """
        unknown = [key for key in config if key not in _KEYS]
        if unknown:
            raise SpecError(f"the run config says {unknown[0]}, which is none of {', '.join(_KEYS)}")
        words = str(config.get("defenses", ""))
        shape = str(config.get("input-shape", ""))
        return cls(
            model=str(config.get("model", "lenet")),
            data=str(config.get("data", "digits")),
            test=str(config.get("test", "")),
            partition=str(config.get("partition", "iid")),
            out=str(config.get("out", "")),
            input_shape=tuple(int(side) for side in shape.split("x") if side),
            num_classes=int(config.get("num-classes", 0)),
            federation=build_federation(
                str(config.get("settings", "")),
                str(config.get("local", "lr=0.1")),
                rounds=int(config.get("rounds", 3)),
                seed=int(config.get("seed", 0)),
            ),
            defenses=tuple(build(known_defenses, text.strip()) for text in words.split(" + ") if text.strip()),
            clients=int(config.get("clients", 2)),
            timeout=float(config.get("timeout", 3600.0)),
            record=bool(config.get("record", False)),
        )

    def client(self) -> Client:
        """Return what all clients have in common; the weights are those that the seed of the federation gives."""
        return Client(model=self._network(), loss=self.loss, defenses=self.defenses, mode=self.federation.mode)

    def site(self, number: int, *, clients: int, seed: int) -> Site:
        """Return one client with its own samples.

        Args:
            number: of the client.
            clients: how many there are.
            seed: of this client's randomness.
        """
        return Site(
            client=self.client(),
            splits={number: self._private(number, clients)},
            settings=replace(self.federation, seed=seed),
            knowledge=Knowledge.NOTHING,
            auxiliary=None,
            runtime=Runtime(precision="float32"),
        )

    def normalization(self) -> Standardize:
        """Return how the model standardizes pixels."""
        return find_normalization(self._network())

    def measured(self) -> Split | None:
        """Return what the server measures on, if it has anything."""
        if self.test:
            return _checked(import_object(self.test)(), Split, self.test)
        return None if self.data.startswith(PREFIX) else self._dataset().test

    def _network(self) -> nn.Module:
        if self.model.startswith(PREFIX):
            return _checked(import_object(self.model)(), nn.Module, self.model)
        own = self.data.startswith(PREFIX)
        if own and (len(self.input_shape) != 3 or self.num_classes < 1):
            raise SpecError("a model by spec on imported data needs input-shape such as 1x28x28, and num-classes")
        loaded = None if own else self._dataset()
        channels, height, width = self.input_shape if loaded is None else loaded.input_shape
        plain = build(architectures, self.model).build(
            input_shape=(channels, height, width),
            num_classes=self.num_classes if loaded is None else loaded.num_classes,
            seed=self.federation.seed,
        )
        return plain if loaded is None else normalized(plain, loaded.mean, loaded.std)

    def _private(self, number: int, clients: int) -> Split:
        if self.data.startswith(PREFIX):
            return _checked(import_object(self.data)(number, clients), Split, self.data)
        train = self._dataset().train
        return partition(train, self.partition, clients=clients, seed=self.federation.seed).apply(train)[number]

    def _dataset(self) -> Dataset:
        return data.load(self.data, None)


def _checked(made: object, kind: type[T], text: str) -> T:
    if not isinstance(made, kind):
        raise SpecError(f"'{text}' must return a {kind.__name__}, got {type(made).__name__}")
    return made
