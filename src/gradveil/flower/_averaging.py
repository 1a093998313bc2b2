"""The strategy of the ready server: plain averaging, with clients drawn from a seed."""

import secrets
from collections.abc import Iterable, Sequence

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg

from gradveil.defenses import CentralDP
from gradveil.federated._central import finished
from gradveil.federated.settings import Federation
from gradveil.flower._messages import to_arrays, to_state
from gradveil.streams import Streams
from gradveil.types import State


class Averaging(FedAvg):  # type: ignore[misc]
    """Flower's FedAvg, whose draw of clients depends on the seed alone, with a learning rate of the server.

    Args:
        federation: fraction, server learning rate and seed.
        clients: to wait for.
        central: the server's half of central privacy: clients count equally, and their mean gets noise.
        trained: names of the parameters that the clients train, in the order of the model; the noise is theirs.
        noise_seed: of that noise; None draws one that nobody else knows. Who knows it can take the noise off.
    """

    def __init__(
        self,
        federation: Federation,
        *,
        clients: int,
        central: CentralDP | None = None,
        trained: Sequence[str] = (),
        noise_seed: int | None = None,
    ) -> None:
        super().__init__(fraction_evaluate=0.0, min_train_nodes=1, min_available_nodes=clients)
        self.federation, self.central, self.trained = federation, central, tuple(trained)
        self._seed = secrets.randbits(62) if noise_seed is None else noise_seed
        self._sent: State = {}

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Send the model to the clients of the round."""
        self._sent = to_state(arrays)
        everybody = [
            int(one.metadata.dst_node_id) for one in super().configure_train(server_round, arrays, config, grid)
        ]
        content = RecordDict({self.arrayrecord_key: arrays, self.configrecord_key: config})
        drawn = self._draw(sorted(everybody), server_round)
        return [Message(content=content, message_type=MessageType.TRAIN, dst_node_id=node) for node in drawn]

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Average, add noise if there is central privacy, and go as far as the server's rate says."""
        answers = [reply for reply in replies if not reply.has_error()]
        if self.central is not None:
            _count_equally(answers)
        arrays, metrics = super().aggregate_train(server_round, answers)
        if arrays is None or (self.federation.server_lr == 1 and self.central is None):
            return arrays, metrics
        mean = {**to_state(arrays), **self._noisy(to_state(arrays), server_round, len(answers))}
        rate = self.federation.server_lr
        moved = {n: t + rate * (mean[n] - t) if t.is_floating_point() else mean[n] for n, t in self._sent.items()}
        return to_arrays(moved), metrics

    def _noisy(self, mean: State, number: int, clients: int) -> State:
        if self.central is None:
            return {}
        # A client of FedSGD sends its gradient as a step of the agreed rate; the noise is that of the gradient.
        rate = self.federation.local.lr if self.federation.algorithm == "fedsgd" else 1.0
        update = {name: (self._sent[name] - mean[name]) / rate for name in self.trained}
        noisy = finished(update, self.central, clients=clients, seed=self._seed, number=number)
        return {name: self._sent[name] - rate * tensor for name, tensor in noisy.items()}

    def _draw(self, nodes: list[int], server_round: int) -> list[int]:
        count = max(int(self.federation.fraction * len(nodes) + 1e-9), 1)
        server = Streams(seed=self.federation.seed, purpose="server").bind(1)
        order: list[int] = server.permutation(f"round-{server_round}", len(nodes))[0].tolist()
        return [nodes[place] for place in sorted(order[:count])]


def _count_equally(replies: Iterable[Message]) -> None:
    """Let every client weigh the same, however many samples it holds."""
    for reply in replies:
        for metrics in reply.content.metric_records.values():
            if "num-examples" in metrics:
                metrics["num-examples"] = 1
