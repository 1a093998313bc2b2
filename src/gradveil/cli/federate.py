"""`gradveil federate`."""

import json
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from gradveil import data
from gradveil.cli._device import chosen_device
from gradveil.cli._show import console, output, progress_bar
from gradveil.data import Dataset
from gradveil.defenses import defenses as known_defenses
from gradveil.engine import normalized
from gradveil.federated import (
    About,
    History,
    Partition,
    Sighting,
    federate,
    partition_picture,
    recorded_from,
    save_update,
)
from gradveil.federated.history import csv_of
from gradveil.federated.partition import partition
from gradveil.federated.round_log import write_tensorboard
from gradveil.federated.settings import build_federation
from gradveil.federated.views import ignore
from gradveil.models import architectures, checkpoints
from gradveil.spec import build
from gradveil.storage import TensorFolder, write_atomically
from gradveil.types import Knowledge

_NAMED = 4


def command(
    dataset: Annotated[str, typer.Option(help="digits, cifar100, folder:PATH, ...")] = "digits",
    model: Annotated[str, typer.Option(help="lenet, resnet20-4, ...")] = "lenet",
    how: Annotated[str, typer.Option("--partition", help="iid, dirichlet:0.5, pathological:2, ...")] = "iid",
    clients: Annotated[int | None, typer.Option(help="how many; 10, or what the partition says")] = None,
    settings: Annotated[str, typer.Option(help="algorithm=fedavg,fraction=0.5,batch_size=32,view=server,...")] = "",
    local: Annotated[str, typer.Option(help="of the clients: lr=0.1,momentum=0.9,...")] = "lr=0.1",
    rounds: Annotated[int, typer.Option(help="of training", min=1)] = 10,
    defense: Annotated[list[str] | None, typer.Option(help="of every client, in order; repeat")] = None,
    seed: Annotated[int, typer.Option()] = 0,
    record: Annotated[bool, typer.Option("--record", help="keep what the adversary sees, one file each")] = False,
    show_partition: Annotated[bool, typer.Option("--show-partition", help="draw who holds what, and stop")] = False,
    out: Annotated[Path | None, typer.Option(help="run folder; the same folder resumes")] = None,
    data_dir: Annotated[Path | None, typer.Option(help="where data sets lie; else GRADVEIL_DATA")] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda; a GPU if there is one")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print the rounds as JSON")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="show no progress")] = False,
) -> None:
    """Train over many clients on this machine, protected, and keep what an adversary would see."""
    chosen, place = build_federation(settings, local, rounds=rounds, seed=seed), chosen_device(device)
    protections = [build(known_defenses, text) for text in defense or []]
    loaded = data.load(dataset, data_dir)
    folder = out or Path("runs") / f"{datetime.now(UTC):%Y%m%d-%H%M%S}-federate-{loaded.name}"
    count = 10 if clients is None and not how.startswith(("size", "natural-id")) else clients
    parts = partition(loaded.train, how, clients=count, seed=seed)
    _draw(parts, loaded, folder, again=show_partition)
    if show_partition:
        return
    plain = build(architectures, model).build(input_shape=loaded.input_shape, num_classes=loaded.num_classes, seed=seed)
    words = " + ".join(defense or [])
    about = About(model=model, mean=loaded.mean, std=loaded.std, loss="cross-entropy", defenses=words)
    with progress_bar(quiet=quiet or as_json) as bar:
        history = federate(
            normalized(plain, loaded.mean, loaded.std),
            parts.apply(loaded.train),
            settings=chosen,
            defenses=protections,
            test=loaded.test,
            store=TensorFolder(folder / "checkpoint"),
            progress=bar,
            log=lambda rounds: write_atomically(folder / "rounds.csv", csv_of(rounds).encode()),
            device=place,
            knowledge=Knowledge.BUFFERS | Knowledge.LOCAL_TRAINING,
            watch=(lambda seen: _keep(seen, about, folder)) if record else ignore,
        )
    kept = {"model": model, "dataset": dataset, "defenses": words or "no defense", "federation": repr(chosen)}
    checkpoints.save(history.model, folder / "model.safetensors", about=kept)
    write_atomically(folder / "rounds.csv", history.to_csv().encode())
    write_tensorboard(folder / "tensorboard", history.scalars())
    _show(history, folder, as_json=as_json)


def _draw(parts: Partition, loaded: Dataset, folder: Path, *, again: bool) -> None:
    """Draw who holds what; the picture of a federation that goes on is left as it is, unless asked for again."""
    if again or not (folder / "partition.png").exists():
        counts = parts.counts(loaded.train.labels, loaded.num_classes)
        write_atomically(folder / "partition.png", partition_picture(counts, classes=loaded.classes))
    words = f"{len(parts)} clients of {min(parts.sizes)} to {max(parts.sizes)} samples: {folder / 'partition.png'}"
    console.print(words, markup=False, highlight=False, soft_wrap=True)


def _keep(seen: Sighting, about: About, folder: Path) -> None:
    """Write one recorded update."""
    who = "-".join(map(str, seen.clients)) if len(seen.clients) <= _NAMED else f"{len(seen.clients)}-clients"
    name = f"round-{seen.round}-client-{who}-seen-by-{seen.observer.replace(' ', '-')}.safetensors"
    save_update(recorded_from(seen, about), folder / "updates" / name)


def _show(history: History, folder: Path, *, as_json: bool) -> None:
    if as_json:
        output.print_json(json.dumps([asdict(one) for one in history.rounds]))
        return
    table = Table("round", "clients", "loss", "accuracy", "mean update norm", "ε", "left out")
    for number, one in enumerate(history.rounds, start=1):
        norm = sum(one.norms.values()) / len(one.norms)
        loss, accuracy = f"{one.loss or 0:.4f}", f"{100 * (one.accuracy or 0):.2f} %"
        epsilon = "" if one.epsilon is None else f"{one.epsilon:.3g}"
        dropped = " ".join(map(str, one.dropped))
        table.add_row(str(number), str(len(one.norms)), loss, accuracy, f"{norm:.4g}", epsilon, dropped)
    output.print(table)
    output.print(f"model, rounds and checkpoint: {folder}", markup=False, highlight=False, soft_wrap=True)
