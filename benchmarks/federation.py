"""A round of FedAvg beside a plain PyTorch loop over its clients, in one run.

GRADVEIL_DATA=... python benchmarks/federation.py --threads 2
GRADVEIL_DATA=... python benchmarks/federation.py --device cuda

Ten clients, one local epoch of 2,000 MNIST images each, the LeNet, batches of 32, SGD. `plain` is what one would write
by hand: a copy of the model, `torch.optim.SGD` and a loop, one client after another. `stacked` is `gradveil.federate`,
`alone` the same with one client at a time. All of them begin with images in the memory of the machine, bring them to
the device as bytes, take 62 steps a client in float32 and average. One round of each comes first, in which libraries
choose their kernels; then they are timed in turn, each from an idle device until it is idle again. Ratios are of one
turn, and the median is printed; below 1 the stack is faster.
"""

import argparse
import copy
import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gradveil import data
from gradveil.data import Split
from gradveil.engine import Runtime, normalized
from gradveil.federated import Federation, federate
from gradveil.federated.partition import partition
from gradveil.models import build
from gradveil.record import about_this_run
from gradveil.storage import write_atomically
from gradveil.types import LocalTraining

LR, BATCH = 0.05, 32


@dataclass(frozen=True)
class Took:
    """Seconds of one round: on the clock, and of the processors."""

    wall: float
    cpu: float


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--images", type=int, default=2000, help="of each client")
    parser.add_argument("--model", default="lenet")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seed", type=int, default=0, help="of the partition, the weights and the orders of samples")
    parser.add_argument("--out", type=Path, default=None, help="folder for record.json")
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    device = torch.device(chosen.device)

    mnist = data.load("mnist")
    some = mnist.train.select(range(chosen.clients * chosen.images))
    clients = partition(some, "iid", clients=chosen.clients, seed=chosen.seed).apply(some)
    network = build(chosen.model, input_shape=mnist.input_shape, num_classes=mnist.num_classes, seed=chosen.seed)
    model = normalized(network, mnist.mean, mnist.std).to(device)
    ways: dict[str, Callable[[], dict[str, Tensor]]] = {
        "plain": lambda: with_our_numerics(lambda: plain(model, clients, device, seed=chosen.seed)),
        "stacked": lambda: ours(model, clients, device, chunk=None, seed=chosen.seed),
        "alone": lambda: ours(model, clients, device, chunk=1, seed=chosen.seed),
    }
    check({name: way() for name, way in ways.items()})  # the first call of each also warms up
    turns = [{name: timed(way, device) for name, way in ways.items()} for _ in range(chosen.turns)]
    found = summarize(turns)
    print(json.dumps(found, indent=1))
    if chosen.out:
        run = about_this_run(seconds={}, chunk=chosen.clients, device=device)
        spec = {name: str(value) for name, value in vars(chosen).items() if name != "out"}
        each = [{way: asdict(took) for way, took in turn.items()} for turn in turns]
        about = {"date": run.date, "device": run.device, "seed": chosen.seed, "versions": run.versions}
        made = {"spec": spec, **found, "turns": each, "run": about}
        write_atomically(chosen.out / "record.json", json.dumps(made, indent=1).encode())


def plain(model: nn.Module, clients: Sequence[Split], device: torch.device, *, seed: int) -> dict[str, Tensor]:
    """Train one client after another, and average."""
    total: dict[str, Tensor] = {}
    for number, split in enumerate(clients):
        own = copy.deepcopy(model).train()
        optimizer = torch.optim.SGD(own.parameters(), lr=LR)
        there = Split(split.images.to(device), split.labels.to(device))
        inputs, labels = there.inputs(), there.labels
        order = torch.randperm(len(split), generator=torch.Generator().manual_seed(seed + number)).to(device)
        for rows in order[: len(order) // BATCH * BATCH].split(BATCH):
            optimizer.zero_grad()
            F.cross_entropy(own(inputs[rows]), labels[rows]).backward()
            optimizer.step()
        for name, tensor in own.named_parameters():
            total[name] = total.get(name, 0) + tensor.detach() / len(clients)
    return total


def with_our_numerics(way: Callable[[], dict[str, Tensor]]) -> dict[str, Tensor]:
    """Run what was written by hand in the precision, and with the choice of kernels, that `federate` uses."""
    with Runtime(precision="float32").numerics():
        return way()


def ours(
    model: nn.Module, clients: Sequence[Split], device: torch.device, *, chunk: int | None, seed: int
) -> dict[str, Tensor]:
    settings = Federation(rounds=1, batch_size=BATCH, local=LocalTraining(lr=LR), seed=seed)
    runtime = None if chunk is None else Runtime(precision="float32", chunk=chunk)
    made = federate(model, clients, settings=settings, runtime=runtime, device=device).model
    return {name: tensor.detach() for name, tensor in made.named_parameters()}


def check(found: dict[str, dict[str, Tensor]]) -> None:
    """See that all of them trained alike: their orders of samples differ, so that they agree by and large."""
    flat = {way: torch.cat([t.flatten() for t in state.values()]) for way, state in found.items()}
    assert float((flat["stacked"] - flat["alone"]).norm() / flat["alone"].norm()) < 1e-3
    assert float((flat["plain"] - flat["alone"]).norm() / flat["alone"].norm()) < 0.1


def timed(way: Callable[[], object], device: torch.device) -> Took:
    """Time a round, until the device has finished it."""
    if device.type == "cuda":
        torch.cuda.synchronize()
    wall, cpu = time.perf_counter(), time.process_time()
    way()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return Took(time.perf_counter() - wall, time.process_time() - cpu)


def summarize(turns: list[dict[str, Took]]) -> dict[str, object]:
    seconds = {
        way: {
            "wall": statistics.median(turn[way].wall for turn in turns),
            "cpu": statistics.median(turn[way].cpu for turn in turns),
        }
        for way in turns[0]
    }
    ratios = {
        f"stacked / {other}": {
            "wall": statistics.median(turn["stacked"].wall / turn[other].wall for turn in turns),
            "cpu": statistics.median(turn["stacked"].cpu / turn[other].cpu for turn in turns),
        }
        for other in ("plain", "alone")
    }
    return {"median seconds": seconds, "median of ratios": ratios}


if __name__ == "__main__":
    main()
