"""The strategy of the ready server: plain averaging, with clients drawn from a seed."""

from collections.abc import Iterable

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg

from gradveil.federated.settings import Federation
from gradveil.flower._messages import to_arrays, to_state
from gradveil.streams import Streams
from gradveil.types import State


class Averaging(FedAvg):  # type: ignore[misc]
    """Flower's FedAvg, whose draw of clients depends on the seed alone, with a learning rate of the server.

    Args:
        federation: fraction, server learning rate and seed.
        clients: to wait for.
    """

    def __init__(self, federation: Federation, *, clients: int) -> None:
        super().__init__(fraction_evaluate=0.0, min_train_nodes=1, min_available_nodes=clients)
        self.federation = federation
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
        """Average, and go so far towards the mean as the server's rate says."""
        arrays, metrics = super().aggregate_train(server_round, replies)
        if arrays is None or self.federation.server_lr == 1:
            return arrays, metrics
        mean, rate = to_state(arrays), self.federation.server_lr
        moved = {n: t + rate * (mean[n] - t) if t.is_floating_point() else mean[n] for n, t in self._sent.items()}
        return to_arrays(moved), metrics

    def _draw(self, nodes: list[int], server_round: int) -> list[int]:
        count = max(int(self.federation.fraction * len(nodes) + 1e-9), 1)
        server = Streams(seed=self.federation.seed, purpose="server").bind(1)
        order: list[int] = server.permutation(f"round-{server_round}", len(nodes))[0].tolist()
        return [nodes[place] for place in sorted(order[:count])]
