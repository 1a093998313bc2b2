"""`gradveil train`."""

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

import typer

from gradveil import data, training_record
from gradveil.cli._device import chosen_device
from gradveil.cli._show import output, progress_bar
from gradveil.engine import normalized
from gradveil.errors import SpecError
from gradveil.models import architectures, checkpoints
from gradveil.models.training import train
from gradveil.obscuring import mark_of
from gradveil.spec import build, build_defenses, build_training
from gradveil.storage import TensorFolder


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
    """Train a network through the protected client step, and keep it as a checkpoint with a record beside it."""
    if out.is_dir():
        raise SpecError(f"{out} is a folder; name the file to write, such as {out / 'model.safetensors'}")
    recipe, place = build_training(preset, settings), chosen_device(device)
    under = " + ".join(defense or []) or "none"
    protections = build_defenses(under)
    if recipe.augment == "crop-flip" and any(getattr(one, "crop_and_flip", False) for one in protections):
        if "augment" in settings:
            raise SpecError("the policy crops and mirrors by itself, got augment=crop-flip too; write augment=none")
        recipe = replace(recipe, augment="none")
        output.print("the policy crops and mirrors by itself: augment=none")
    words = "no defense" if under == "none" else under
    training = json.dumps(asdict(recipe))
    checkpoints.refuse_another(out, {"model": model, "dataset": dataset, "defenses": words, "training": training})
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
    training_record.keep(
        done,
        out,
        model=model,
        dataset=dataset,
        loaded=loaded,
        defenses=words,
        training=recipe,
        extractor=mark_of(protections),
    )
    store.clear()
    reached = f"accuracy {100 * (done.accuracy or 0):.2f} % after {done.epochs} epochs in {done.seconds:.1f} s: {out}"
    output.print(reached, markup=False, highlight=False, soft_wrap=True)
