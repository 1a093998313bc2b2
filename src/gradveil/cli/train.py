"""`gradveil train`."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import torch
import typer

from gradveil import data
from gradveil.cli._device import chosen_device
from gradveil.cli._show import output, progress_bar
from gradveil.defenses import defenses as known_defenses
from gradveil.engine import normalized
from gradveil.errors import SpecError
from gradveil.models import architectures, checkpoints
from gradveil.models.training import train
from gradveil.spec import build, build_training
from gradveil.storage import TensorFolder, cannot_write


def command(
    out: Annotated[Path, typer.Argument(help="safetensors file to write")],
    dataset: Annotated[str, typer.Option(help="digits, cifar100, folder:PATH, ...")] = "digits",
    model: Annotated[str, typer.Option(help="lenet, resnet20-4, ...")] = "lenet",
    preset: Annotated[str, typer.Option(help="fast or conservative; settings override it")] = "fast",
    settings: Annotated[str, typer.Option(help="such as epochs=60,lr=0.4,batch_size=512")] = "",
    defense: Annotated[list[str] | None, typer.Option(help="trained under these, in order")] = None,
    data_dir: Annotated[Path | None, typer.Option(help="where data sets lie; else GRADVEIL_DATA")] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda; a GPU if there is one")] = None,
) -> None:
    """Train a network through the protected client step, and keep it as a checkpoint."""
    if out.is_dir():
        raise SpecError(f"{out} is a folder; name the file to write, such as {out / 'model.safetensors'}")
    recipe, place = build_training(preset, settings), chosen_device(device)
    protections = [build(known_defenses, text) for text in defense or []]
    loaded = data.load(dataset, data_dir)
    plain = build(architectures, model).build(input_shape=loaded.input_shape, num_classes=loaded.num_classes)
    store = TensorFolder(out.with_suffix(".unfinished"))
    with progress_bar(quiet=False) as bar:
        done = train(
            normalized(plain, loaded.mean, loaded.std),
            loaded.train,
            training=recipe,
            defenses=protections,
            test=loaded.test,
            progress=bar,
            store=store,
            device=place,
        )
    about = {
        "model": model, "dataset": dataset, "defenses": " + ".join(defense or []) or "no defense",
        "accuracy": repr(done.accuracy), "training": json.dumps(asdict(recipe)), "torch": torch.__version__,
    }  # fmt: skip
    try:
        checkpoints.save(done.model, out, about=about)
    except OSError as error:
        raise cannot_write(out, error) from error
    store.clear()
    reached = f"accuracy {100 * (done.accuracy or 0):.2f} % after {done.epochs} epochs in {done.seconds:.1f} s: {out}"
    output.print(reached, markup=False, highlight=False, soft_wrap=True)
