"""`gradveil train`: a network by default, or what attacks and defenses need beside one."""

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from typer.core import TyperGroup
from typing_extensions import override

from gradveil import data, obscuring
from gradveil.cli import train
from gradveil.cli._device import chosen_device
from gradveil.cli._show import output, progress_bar
from gradveil.errors import SpecError
from gradveil.models import checkpoints, generators
from gradveil.models.generators import GeneratorTraining
from gradveil.registry import parse_settings
from gradveil.storage import TensorFolder, cannot_write

_DEFAULT = "network"
Out = Annotated[Path, typer.Argument(help="safetensors file to write")]
DataDir = Annotated[Path | None, typer.Option(help="where data sets lie; else GRADVEIL_DATA")]
Device = Annotated[str | None, typer.Option(help="cpu, cuda; a GPU if there is one")]
Quiet = Annotated[bool, typer.Option("--quiet", help="no progress bar")]
AsJson = Annotated[bool, typer.Option("--json", help="for machines")]


class _NetworkByDefault(TyperGroup):
    """`gradveil train OUT` means `gradveil train network OUT`."""

    @override
    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        known = {*self.commands, *ctx.help_option_names}
        return super().parse_args(ctx, args if not args or args[0] in known else [_DEFAULT, *args])


app = typer.Typer(
    cls=_NetworkByDefault,
    no_args_is_help=True,
    help="Train a network (`gradveil train OUT`), a generator or an extractor, and keep it as a checkpoint.",
)
app.command(_DEFAULT)(train.command)


@app.command()
def generator(
    out: Out,
    dataset: Annotated[str, typer.Option(help="public images: digits, cifar100, folder:PATH, ...")] = "digits",
    settings: Annotated[str, typer.Option(help="such as epochs=100,latent_size=128,conditional=yes")] = "",
    data_dir: DataDir = None,
    device: Device = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Train an image generator on public data, for attacks that search its latents."""
    _check_file(out)
    recipe = _made(GeneratorTraining(), settings, "the generator")
    checkpoints.refuse_another(out, {"dataset": dataset, "training": json.dumps(asdict(recipe))})
    place, loaded = chosen_device(device), data.load(dataset, data_dir)
    store = TensorFolder(out.with_suffix(".unfinished"))
    with progress_bar(quiet=quiet or as_json) as bar:
        done = generators.train_generator(loaded, training=recipe, progress=bar, store=store, device=place)
    about = {
        "dataset": dataset, "training": json.dumps(asdict(recipe)), "error": repr(done.error),
        "torch": torch.__version__,
    }  # fmt: skip
    try:
        generators.save(done.generator, out, about=about)
    except OSError as error:
        raise cannot_write(out, error) from error
    store.clear()
    facts = {"file": str(out), "dataset": dataset, "psnr": done.psnr, "error": done.error, "seconds": done.seconds}
    reached = (
        f"unseen images come back at {done.psnr:.2f} dB after {recipe.epochs} epochs in {done.seconds:.1f} s: {out}"
    )
    _show(reached, facts, as_json=as_json)


@app.command()
def extractor(
    out: Out,
    dataset: Annotated[str, typer.Option(help="public images: cifar100, digits, folder:PATH, ...")] = "cifar100",
    model: Annotated[str, typer.Option(help="any with convolutions: resnet18, lenet, ...")] = "resnet18",
    settings: Annotated[str, typer.Option(help="over the published ones, such as epochs=60,lr=0.1")] = "",
    data_dir: DataDir = None,
    device: Device = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Train a feature extractor on public data, for the defense `loda:extractor=OUT`."""
    _check_file(out)
    recipe = _made(obscuring.PUBLISHED, settings, "the extractor")
    place, loaded = chosen_device(device), data.load(dataset, data_dir)
    about = {"model": model, "dataset": loaded.name, "training": json.dumps(asdict(recipe))}
    checkpoints.refuse_another(out, about)
    store = TensorFolder(out.with_suffix(".unfinished"))
    with progress_bar(quiet=quiet or as_json) as bar:
        done = obscuring.train_extractor(
            loaded, architecture=model, training=recipe, progress=bar, store=store, device=place
        )
    try:
        obscuring.save_extractor(done, out)
    except OSError as error:
        raise cannot_write(out, error) from error
    store.clear()
    facts = {"file": str(out), "dataset": dataset, "model": model, "accuracy": done.accuracy, "seconds": done.seconds}
    reached = f"accuracy {100 * done.accuracy:.2f} % after {recipe.epochs} epochs in {done.seconds:.1f} s: {out}"
    _show(reached, facts, as_json=as_json)


def _check_file(out: Path) -> None:
    if out.is_dir():
        raise SpecError(f"{out} is a folder; name the file to write, such as {out / 'part.safetensors'}")


def _made(base: Any, settings: str, where: str) -> Any:
    """Put `field=value,...` over settings."""
    try:
        return replace(base, **parse_settings(type(base), settings, where))
    except ValueError as error:
        raise SpecError(str(error)) from error


def _show(text: str, facts: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        output.print_json(json.dumps(facts))
    else:
        output.print(text, markup=False, highlight=False, soft_wrap=True)
