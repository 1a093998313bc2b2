"""A Flower app in the style of a PyTorch quickstart: it knows nothing of GradVeil."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import Mod
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg, Strategy
from torch import Tensor, nn

SAMPLES, BATCH, RATE = 8, 4, 0.1


class Net(nn.Module):
    """A small convolutional network with batch norm."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 3, 3)
        self.norm = nn.BatchNorm2d(3)
        self.fc = nn.Linear(3 * 6 * 6, 4)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.fc(F.relu(self.norm(self.conv(inputs))).flatten(1))
        return outputs


def make_net() -> Net:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Net()


def load_data(partition: int) -> tuple[Tensor, Tensor]:
    draw = np.random.default_rng(100 + partition)
    images = torch.from_numpy(draw.random((SAMPLES, 1, 8, 8), dtype=np.float32))
    return images, torch.from_numpy(draw.integers(4, size=SAMPLES))


def ignore(images: Tensor, labels: Tensor, *, rows: Tensor) -> None:
    """Note nothing."""


def make_client(mods: Sequence[Mod], saw: Callable[..., None] = ignore) -> ClientApp:
    app = ClientApp(mods=list(mods))

    def train(message: Message, context: Context) -> Message:
        net = make_net()
        net.load_state_dict(message.content["arrays"].to_torch_state_dict())
        images, labels = load_data(int(context.node_config["partition-id"]))
        optimizer = torch.optim.SGD(net.parameters(), lr=RATE)
        net.train()
        for rows in torch.arange(SAMPLES).split(BATCH):
            optimizer.zero_grad()
            saw(images[rows], labels[rows], rows=rows)
            F.cross_entropy(net(images[rows]), labels[rows]).backward()
            optimizer.step()
        metrics = MetricRecord({"num-examples": SAMPLES})
        content = RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics})
        return Message(content=content, reply_to=message)

    def evaluate(message: Message, context: Context) -> Message:
        metrics = MetricRecord({"num-examples": SAMPLES, "loss": 1.0})
        return Message(content=RecordDict({"metrics": metrics}), reply_to=message)

    app.train()(train)
    app.evaluate()(evaluate)
    return app


def make_server(results: list[dict[str, Tensor]], strategy: Strategy | None = None, rounds: int = 3) -> ServerApp:
    app = ServerApp()

    def main(grid: Grid, context: Context) -> None:
        chosen = strategy or FedAvg()
        start = ArrayRecord(make_net().state_dict())
        result = chosen.start(grid, start, num_rounds=rounds, train_config=ConfigRecord({"lr": RATE}))
        results.append(dict(result.arrays.to_torch_state_dict()))

    app.main()(main)
    return app
